// The finished frames as a loop at their own pace, or the mp4 in the browser's player.

import { enlarge } from './cells.js';
import { el, icon, write } from './dom.js';
import { frames } from './frames.js';
import { url } from './store.js';
import { say } from './words.js';

const still = matchMedia('(prefers-reduced-motion: reduce)');

/** A player for `count` frames of `job` at `fps`. `stop()` ends it. */
export function player({ job, count, fps, clip, bare = false }) {
  const canvas = el('canvas', { role: 'img', 'aria-label': say('loop') });
  const video = el('video', {
    controls: true,
    loop: true,
    muted: true,
    playsinline: true,
    preload: 'none',
    hidden: true,
  });
  const screen = el('div.fl-screen', {}, canvas, video);
  const position = el('input', {
    type: 'range',
    min: 1,
    max: count,
    step: 1,
    value: 1,
    'aria-label': say('frame'),
  });
  const counter = el('output.fl-mono');
  const toggle = el('button.fl-quiet.round', { type: 'button', onclick: () => (playing ? pause() : play()) });
  const source = clip ? sources() : null;
  const bar = bare ? null : el('div.fl-transport', {}, toggle, position, counter, source);
  const node = el('div.fl-player', {}, screen, bar);

  let bitmaps = [];
  let playing = false;
  let current = 0;
  let request = 0;
  let since = 0;

  const draw = () => {
    const bitmap = bitmaps[current];
    if (bitmap) enlarge(canvas, bitmap);
    position.value = current + 1;
    write(counter, `${String(current + 1).padStart(2, '0')} / ${String(count).padStart(2, '0')}`);
  };
  const tick = (now) => {
    request = requestAnimationFrame(tick);
    if (now - since < 1000 / fps) return;
    since = now - since > 2000 / fps ? now : since + 1000 / fps;
    current = (current + 1) % count;
    draw();
  };
  const mark = () => {
    toggle.replaceChildren(icon(playing ? 'pause' : 'play'));
    toggle.setAttribute('aria-label', say(playing ? 'pause' : 'play'));
  };
  const play = () => {
    if (playing) return;
    playing = true;
    since = performance.now();
    request = requestAnimationFrame(tick);
    mark();
  };
  const pause = () => {
    playing = false;
    cancelAnimationFrame(request);
    mark();
  };

  position.addEventListener('input', () => {
    pause();
    current = position.valueAsNumber - 1;
    draw();
  });

  function sources() {
    const choose = (mp4) => {
      canvas.hidden = mp4;
      video.hidden = !mp4;
      position.disabled = toggle.disabled = mp4;
      if (mp4) {
        pause();
        if (!video.src) video.src = url(job, 'clip.mp4');
        video.play().catch(() => {});
      } else {
        video.pause();
        play();
      }
      for (const button of group.children)
        button.setAttribute('aria-pressed', String((button.dataset.source === 'mp4') === mp4));
    };
    const group = el(
      'div.fl-segments',
      { role: 'group', 'aria-label': say('player') },
      el(
        'button',
        { type: 'button', 'data-source': 'png', 'aria-pressed': 'true', onclick: () => choose(false) },
        'PNG',
      ),
      el(
        'button',
        { type: 'button', 'data-source': 'mp4', 'aria-pressed': 'false', onclick: () => choose(true) },
        'mp4',
      ),
    );
    return group;
  }

  mark();
  draw();
  frames(job, count).then((all) => {
    bitmaps = all;
    draw();
    if (count > 1 && !still.matches) play();
  });
  return {
    node,
    stop: () => {
      pause();
      video.pause();
    },
  };
}
