// A frame in its black well. A small one is enlarged crisply: by whole pixels, then to the size on screen.

import { el } from './dom.js';

const SMALL_WIDTH = 256;
const ENOUGH_WIDTH = 1200;

/** Draw a picture; a small one so that its own pixels stay visible when it is shown large. */
export function enlarge(canvas, picture) {
  const scale = picture.width > SMALL_WIDTH ? 1 : Math.ceil(ENOUGH_WIDTH / picture.width);
  const [width, height] = [picture.width * scale, picture.height * scale];
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  const context = canvas.getContext('2d');
  context.imageSmoothingEnabled = false;
  context.drawImage(picture, 0, 0, width, height);
}

/** A well for frame `label`; `show(address)` swaps the picture once it is decoded: nothing flickers. */
export function cell(label, description) {
  const canvas = el('canvas', { role: 'img', 'aria-label': description });
  const node = el('figure.fl-cell.waiting', {}, canvas, el('figcaption.fl-tag', {}, String(label)));
  let wanted = '';
  return {
    node,
    async show(address) {
      if (address === wanted) return;
      wanted = address;
      const picture = new Image();
      picture.src = address;
      try {
        await picture.decode();
      } catch {
        return;
      }
      if (address !== wanted) return;
      enlarge(canvas, picture);
      node.classList.remove('waiting');
    },
  };
}

/** Which `count` of `total` frames stand for the whole: evenly spaced from first to last, from 1. */
export function spread(total, count) {
  if (count >= total) return Array.from({ length: total }, (_, i) => i + 1);
  if (count === 1) return [Math.floor(total / 2) + 1];
  return Array.from(
    { length: count },
    (_, i) => Math.floor((2 * i * (total - 1) + count - 1) / (2 * (count - 1))) + 1,
  );
}
