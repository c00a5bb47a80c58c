// The PNG frames of finished jobs as bitmaps, fetched once and shared by the player and the inspector.

import { url } from './store.js';

const KEPT = 3; // jobs
const AT_ONCE = 6;
const cache = new Map();

/** All frames of a job, 1 to `count`, in order; null where one cannot be read. */
export function frames(job, count) {
  const key = `${job} ${count}`;
  if (!cache.has(key)) {
    cache.set(key, load(job, count));
    for (const old of cache.keys()) {
      if (cache.size <= KEPT) break;
      cache.delete(old);
    }
  }
  return cache.get(key);
}

async function load(job, count) {
  const bitmaps = new Array(count).fill(null);
  let next = 0;
  const work = async () => {
    while (next < count) {
      const index = next++;
      bitmaps[index] = await bitmap(url(job, `frame/${index + 1}.png`));
    }
  };
  await Promise.all(Array.from({ length: Math.min(AT_ONCE, count) }, work));
  return bitmaps;
}

async function bitmap(address) {
  try {
    const answer = await fetch(address);
    return answer.ok ? await createImageBitmap(await answer.blob()) : null;
  } catch {
    return null;
  }
}
