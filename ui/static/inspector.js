// Frames 1, 8 and 16 side by side, one frame to scrub through, or their differences; all share one zoom.

import { spread } from './cells.js';
import { el, icon, write } from './dom.js';
import { frames } from './frames.js';
import { camera } from './camera.js';
import { listen, viewed } from './store.js';
import { say } from './words.js';

const USUAL = [1, 8, 16];
const MODES = ['side', 'scrub', 'difference'];
const GAIN = { min: 1, max: 16, start: 4 };
const FILM_WIDTH = 96;
const FEW = 4;

/** The frames to compare: 1, 8 and 16 where there are as many; a preview's four; else first, middle, last. */
function usualFrames(count) {
  if (count >= USUAL.at(-1)) return [...USUAL];
  return count <= FEW ? spread(count, count) : spread(count, 3);
}

export function inspector(place) {
  const empty = el('p.fl-empty', {}, say('inspect_empty'));
  const body = el('section.fl-inspector', { tabindex: 0, hidden: true, 'aria-label': say('inspect') });
  place.append(empty, body);
  let shown = '';
  listen(() => {
    const job = viewed();
    const count = job && job.state !== 'running' && job.state !== 'queued' ? job.frames_written : 0;
    const key = count ? `${job.id} ${count}` : '';
    if (key === shown) return;
    shown = key;
    empty.hidden = Boolean(key);
    body.hidden = !key;
    body.replaceChildren();
    if (!key) return;
    frames(job.id, count).then((bitmaps) => {
      if (key === shown) build(body, bitmaps);
    });
  });
}

function build(body, bitmaps) {
  const count = bitmaps.length;
  const [width, height] = [bitmaps[0]?.width ?? 192, bitmaps[0]?.height ?? 112];
  const usual = usualFrames(count);
  let picks = [...usual];
  let active = 0;
  let mode = 'side';
  let gain = GAIN.start;

  const stageBox = el('div.fl-panels');
  const film = el('div.fl-film', {
    role: 'listbox',
    'aria-label': say('all_frames'),
    'aria-orientation': 'horizontal',
  });
  const readout = el('p.fl-readout', { 'aria-hidden': 'true' });
  const number = el('output.fl-mono');
  const slider = el('input', { type: 'range', min: 1, max: count, step: 1, 'aria-label': say('frame') });
  const gainSlider = el('input', {
    type: 'range',
    ...{ min: GAIN.min, max: GAIN.max, value: gain },
    step: 1,
    'aria-label': say('gain'),
  });
  const gainValue = el('output.fl-mono');
  const zoomValue = el('output.fl-mono');
  const view = camera(width, height, () => draw());

  const labels = { side: usual.join(' · '), scrub: say('scrub'), difference: say('difference') };
  const modes = MODES.map((name) =>
    el('button', { type: 'button', 'data-mode': name, onclick: () => setMode(name) }, labels[name]),
  );
  const gainBox = el('label.fl-control.gain', {}, el('span', {}, say('gain')), gainSlider, gainValue);
  const tools = el(
    'div.fl-tools',
    {},
    el('div.fl-segments', { role: 'group', 'aria-label': say('inspect') }, ...modes),
    el('label.fl-control', {}, el('span', {}, say('frame')), slider, number),
    gainBox,
    el(
      'div.fl-control.zoom',
      { role: 'group', 'aria-label': say('zoom') },
      tool('minus', say('zoom_out'), () => view.zoomBy(1 / 1.5)),
      zoomValue,
      tool('plus', say('zoom_in'), () => view.zoomBy(1.5)),
      tool('fit', say('zoom_fit'), () => view.fit()),
    ),
  );

  let panels = [];

  function setMode(name) {
    mode = name;
    for (const button of modes) button.setAttribute('aria-pressed', String(button.dataset.mode === mode));
    gainBox.hidden = mode !== 'difference';
    const amount =
      mode === 'scrub' ? 1 : Math.max(1, mode === 'difference' && picks.length === 2 ? 1 : picks.length);
    panels = Array.from({ length: amount }, (_, index) => panel(index));
    stageBox.className = `fl-panels ${mode} of-${amount}`;
    stageBox.style.setProperty('--shape', (width / height).toFixed(4));
    stageBox.replaceChildren(...panels.map(({ node }) => node));
    draw();
  }

  function panel(index) {
    const canvas = el('canvas', { role: 'img' });
    const tag = el('figcaption.fl-tag');
    const node = el('figure.fl-panel', {}, canvas, tag);
    node.addEventListener('pointerdown', () => {
      if (mode === 'side') {
        active = index;
        draw();
      }
    });
    view.attach(canvas, (x, y) => point(index, x, y));
    sizes.observe(canvas);
    return { node, canvas, tag };
  }

  const sizes = new ResizeObserver(() => draw());

  /** The frames that panel `index` shows: one, or the two whose difference it is. */
  function shownIn(index) {
    if (mode === 'scrub') return [picks[active]];
    if (mode === 'side') return [picks[index]];
    if (picks.length < 2) return [picks[0], picks[0]];
    return index === picks.length - 1 ? [picks[0], picks.at(-1)] : [picks[index], picks[index + 1]];
  }

  function draw() {
    panels.forEach(({ node, canvas, tag }, index) => {
      const [first, second] = shownIn(index);
      paint(canvas, view, bitmaps[first - 1], second ? bitmaps[second - 1] : null, gain);
      write(tag, second ? `${first} − ${second}` : String(first));
      canvas.setAttribute(
        'aria-label',
        second ? say('difference_of', { first, second }) : say('frame_number', { number: first }),
      );
      node.classList.toggle('active', mode === 'side' && picks.length > 1 && index === active);
    });
    slider.value = picks[active];
    write(number, `${picks[active]} / ${count}`);
    write(gainValue, `×${gain}`);
    write(zoomValue, `${Math.round(view.zoom * 100)} %`);
    for (const [index, thumb] of [...film.children].entries()) {
      const selected = index + 1 === picks[active];
      thumb.setAttribute('aria-selected', String(selected));
      thumb.classList.toggle('picked', mode !== 'scrub' && picks.includes(index + 1));
    }
  }

  function pick(value) {
    picks[active] = Math.min(count, Math.max(1, value));
    draw();
    film.children[picks[active] - 1]?.scrollIntoView({ block: 'nearest', inline: 'nearest' });
  }

  function point(index, x, y) {
    const [first] = shownIn(index);
    write(readout, x === null ? '' : `${first}: x ${x} y ${y} ${colour(bitmaps[first - 1], x, y)}`);
  }

  film.hidden = count <= FEW;
  film.append(...bitmaps.map((bitmap, index) => thumbnail(bitmap, index + 1, () => pick(index + 1))));
  slider.addEventListener('input', () => pick(slider.valueAsNumber));
  gainSlider.addEventListener('input', () => {
    gain = gainSlider.valueAsNumber;
    draw();
  });
  body.onkeydown = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const inSlider = event.target.matches?.('input[type=range]');
    const action = {
      ArrowLeft: () => !inSlider && pick(picks[active] - 1),
      ArrowRight: () => !inSlider && pick(picks[active] + 1),
      Home: () => !inSlider && pick(1),
      End: () => !inSlider && pick(count),
      d: () => setMode(mode === 'difference' ? 'side' : 'difference'),
      s: () => setMode(mode === 'scrub' ? 'side' : 'scrub'),
      '+': () => view.zoomBy(1.5),
      '=': () => view.zoomBy(1.5),
      '-': () => view.zoomBy(1 / 1.5),
      0: () => view.fit(),
    }[event.key];
    if (!action || action() === false) return;
    event.preventDefault();
  };
  body.replaceChildren(
    tools,
    stageBox,
    film,
    el('footer.fl-keys', {}, el('p', {}, say('inspect_keys')), readout),
  );
  setMode('side');
}

const tool = (name, label, action) =>
  el(
    'button.fl-quiet.round',
    { type: 'button', title: label, 'aria-label': label, onclick: action },
    icon(name),
  );

/** One frame, or the absolute difference of two times `gain`, through the shared camera. */
function paint(canvas, view, first, second, gain) {
  const ratio = window.devicePixelRatio || 1;
  const [width, height] = [Math.round(canvas.clientWidth * ratio), Math.round(canvas.clientHeight * ratio)];
  if (!width || !height || !first) return;
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  const context = canvas.getContext('2d');
  const box = view.box(width, height);
  context.globalCompositeOperation = 'source-over';
  context.filter = 'none';
  context.fillStyle = '#000';
  context.fillRect(0, 0, width, height);
  context.imageSmoothingEnabled = box.scale < 1;
  context.drawImage(first, box.x, box.y, box.width, box.height);
  if (!second) return;
  context.globalCompositeOperation = 'difference';
  context.drawImage(second, box.x, box.y, box.width, box.height);
  context.globalCompositeOperation = 'copy';
  context.filter = `brightness(${gain})`;
  context.drawImage(canvas, 0, 0);
}

function thumbnail(bitmap, number, action) {
  const canvas = el('canvas', {
    width: FILM_WIDTH,
    height: bitmap ? Math.round((FILM_WIDTH * bitmap.height) / bitmap.width) : 56,
  });
  if (bitmap) canvas.getContext('2d').drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return el(
    'button.fl-thumb',
    {
      type: 'button',
      role: 'option',
      tabindex: -1,
      'aria-label': say('frame_number', { number }),
      onclick: action,
    },
    canvas,
  );
}

const probe = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });

function colour(bitmap, x, y) {
  if (!bitmap) return '';
  probe.drawImage(bitmap, -x, -y);
  const [red, green, blue] = probe.getImageData(0, 0, 1, 1).data;
  return `rgb ${red} ${green} ${blue}`;
}
