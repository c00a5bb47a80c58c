// The stage: what happens now, and what came of it. Built once for each job and mode, then only touched.

import { cell, spread } from './cells.js';
import { el, write } from './dom.js';
import { welcome } from './welcome.js';
import { facts, missingFiles, remains } from './facts.js';
import { player } from './player.js';
import { follow, isPinned, isRunning, listen, store, url, viewed } from './store.js';
import { duration, has, roughly, say } from './words.js';

const PREVIEW_FPS = 3;
const NARROWEST = 1.2;
const WIDEST = 2.4;
const NARROW_PX = 900;

export function stage(place) {
  const title = el('h2.fl-title');
  const clock = el('p.fl-clock');
  const back = el(
    'button.fl-quiet.fl-back',
    { type: 'button', hidden: true, onclick: follow },
    say('watch_running'),
  );
  const fill = el('i');
  const bar = el(
    'div.fl-bar',
    { role: 'progressbar', 'aria-valuemin': 0, 'aria-valuemax': 100, 'aria-label': say('progress') },
    fill,
  );
  const spoken = el('p.fl-hidden', { role: 'status' });
  const light = el('div.fl-light');
  const head = el('header.fl-status', {}, title, back, clock);
  const offline = el('p.fl-offline', { role: 'alert', hidden: true }, say('offline'));
  place.append(el('section.fl-stage', { 'aria-label': say('stage') }, offline, head, bar, light, spoken));

  let built = '';
  let live = null;

  listen(() => {
    offline.hidden = !store.offline;
    if (!store.state) return;
    const job = viewed();
    const mode = modeOf(job);
    const key = `${mode} ${job?.id ?? ''} ${mode === 'missing' ? JSON.stringify(store.plan.missing) : ''}`;
    if (key !== built) {
      built = key;
      live?.stop?.();
      live = BUILD[mode](job);
      light.className = `fl-light ${mode} ${job?.stage ?? ''}`;
      light.style.setProperty('--shape', shape(job));
      light.replaceChildren(...live.nodes);
      place.dataset.mode = mode;
      if (mode === 'running' && store.bringStage) bring(place);
    }
    live.update?.(job);
    head.hidden = mode === 'empty' || mode === 'missing';
    bar.hidden = head.hidden;
    bar.classList.toggle('off', mode !== 'running');
    back.hidden = !(isRunning() && job && job.id !== store.state.job.id);
    if (head.hidden) return;
    write(title, titleOf(job, mode));
    write(clock, clockOf(job, mode));
    const percent = Math.round((job.fraction ?? 0) * 1000) / 10;
    fill.style.transform = `scaleX(${percent / 100})`;
    bar.setAttribute('aria-valuenow', String(Math.round(percent)));
    bar.setAttribute('aria-valuetext', title.textContent);
    write(spoken, spokenOf(job, mode));
  });
}

/** On a narrow screen the stage lies below the form. */
function bring(place) {
  store.bringStage = false;
  if (innerWidth <= NARROW_PX) place.scrollIntoView({ behavior: 'smooth', block: 'start' });
}

function modeOf(job) {
  if (!isRunning() && !isPinned() && store.plan.missing?.length) return 'missing';
  if (!job) return 'empty';
  if (job.state === 'queued' || job.state === 'running') return 'running';
  return job.state === 'done' ? 'done' : 'stopped';
}

const BUILD = {
  empty: () => ({ nodes: [welcome()] }),
  missing: () => ({ nodes: [missingFiles(store.plan)] }),
  running: (job) => (job.stage === 'preview' ? livePreview(job) : liveRender(job)),
  done: (job) => (job.stage === 'preview' ? donePreview(job) : doneRender(job)),
  stopped: (job) => stopped(job),
};

function shape(job) {
  const ratio = job?.width && job?.height ? job.width / job.height : 12 / 7;
  return Math.min(WIDEST, Math.max(NARROWEST, ratio)).toFixed(4);
}

function liveCells(job, count) {
  const cells = spread(job.frames_total, count).map((number) =>
    cell(number, say('frame_number', { number })),
  );
  const update = ({ id, live_count: there, live_revision: revision }) => {
    cells.forEach((one, index) => {
      if (index < there) one.show(url(id, `live/${index}?r=${revision}`));
    });
  };
  return { cells, update };
}

function livePreview(job) {
  const { cells, update } = liveCells(job, 4);
  return { nodes: [el('div.fl-sheet', {}, ...cells.map(({ node }) => node)), facts(job)], update };
}

/** The middle frame large, first and last beside it. */
function liveRender(job) {
  const { cells, update } = liveCells(job, 3);
  const nodes = cells.map(({ node }) => node);
  const [large] = nodes.splice(Math.floor(nodes.length / 2), 1);
  large.classList.add('large');
  return { nodes: [large, el('div.fl-side', {}, ...nodes)], update };
}

function donePreview(job) {
  const cells = Array.from({ length: job.frames_written }, (_, i) =>
    cell(i + 1, say('frame_number', { number: i + 1 })),
  );
  cells.forEach((one, i) => one.show(url(job.id, `frame/${i + 1}.png`)));
  const loop = player({ job: job.id, count: job.frames_written, fps: PREVIEW_FPS, bare: true });
  return {
    nodes: [el('div.fl-sheet', {}, ...cells.map(({ node }) => node)), facts(job, loop.node)],
    stop: loop.stop,
  };
}

function doneRender(job) {
  const loop = player({ job: job.id, count: job.frames_written, fps: job.fps || 12, clip: job.clip });
  return { nodes: [loop.node, facts(job)], stop: loop.stop };
}

/** Cancelled, failed or interrupted: the last pictures there are, and the way on. */
function stopped(job) {
  if (!job.live_count) return { nodes: [remains(job), facts(job)] };
  const { cells, update } = liveCells(job, job.stage === 'preview' ? 4 : 3);
  update(job);
  const shown = job.stage === 'preview' ? cells : [cells[Math.floor(cells.length / 2)]];
  const sheet = el('div.fl-sheet.dimmed', {}, ...shown.map(({ node }) => node));
  sheet.classList.toggle('single', shown.length === 1);
  return { nodes: [sheet, facts(job)] };
}

function titleOf(job, mode) {
  if (mode === 'done') return say(job.stage === 'preview' ? 'preview_done' : 'render_done');
  if (mode === 'stopped') return say(`state_${job.state}`);
  if (job.state === 'queued') return say(job.id === store.state.job?.id ? 'phase_load' : 'state_queued');
  const name = has(`phase_${job.phase}`) ? say(`phase_${job.phase}`) : job.phase;
  const denoises = job.phase === 'denoise' || job.phase === 'preview';
  if (denoises && job.steps)
    return `${name} · ${say('step_of', { step: Math.max(1, job.step), steps: job.steps })}`;
  if (job.phase === 'export' && job.frames_total)
    return `${name} · ${job.frames_written} / ${job.frames_total}`;
  return name;
}

function clockOf(job, mode) {
  const elapsed = duration(job.elapsed_seconds ?? 0);
  if (mode === 'done') return say('took', { time: elapsed });
  if (mode === 'stopped')
    return job.steps && job.step ? say('after_step', { step: job.step, steps: job.steps }) : '';
  const parts = [];
  if (job.blocks) parts.push(say('block_of', { block: job.block, blocks: job.blocks }));
  if (job.state === 'running') parts.push(elapsed);
  if (job.eta_seconds !== null && job.eta_seconds > 0)
    parts.push(say('left', { time: roughly(job.eta_seconds) }));
  const { waiting } = store.state;
  if (waiting && job.state === 'running') parts.push(say('waiting', { count: waiting }));
  return parts.join(' · ');
}

/** What a screen reader hears: every step would be too much, every tenth of the way is not. */
function spokenOf(job, mode) {
  if (mode === 'stopped') return `${say(`state_${job.state}`)}. ${job.message}`;
  if (mode === 'done') return say(job.stage === 'preview' ? 'preview_done' : 'render_done');
  const tenth = Math.floor((job.fraction ?? 0) * 10) * 10;
  return tenth ? say('spoken_progress', { percent: tenth }) : titleOf({ ...job, steps: 0 }, mode);
}
