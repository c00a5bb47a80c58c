// What is known of a job beside its pictures, and what can be done with it.

import { el, icon } from './dom.js';
import { notice } from './form.js';
import { post, url, hurry, follow } from './store.js';
import { say } from './words.js';

const RESUMABLE = new Set(['cancelled', 'failed', 'interrupted']);
let useSettings = () => {};

/** The history view knows how to ask Python for a job's settings. */
export function onUseSettings(action) {
  useSettings = action;
}

export const settingsButton = (id) =>
  el(
    'button.fl-plain',
    {
      type: 'button',
      'data-settings': id,
      onclick: (event) => {
        event.stopPropagation();
        useSettings(id);
      },
    },
    say('use_settings'),
  );

export function resumeButton(job, strong = true) {
  if (!RESUMABLE.has(job.state)) return null;
  return el(
    strong ? 'button.fl-plain.strong' : 'button.fl-plain',
    {
      type: 'button',
      onclick: (event) => {
        event.stopPropagation();
        resume(job.id);
      },
    },
    say('resume'),
  );
}

async function resume(id) {
  try {
    await post(id, 'resume');
    follow();
    hurry();
  } catch (error) {
    notice(error.message, 6000);
  }
}

/** Prompt, numbers and ways on; `above` goes over them. */
export function facts(job, above = null) {
  const { request } = job;
  const wish = request ?? {};
  const size = `${job.width}×${job.height}`;
  const length =
    job.stage === 'preview'
      ? say('some_frames', { frames: job.frames_total })
      : say('frames_at', { frames: job.frames_total, fps: job.fps });
  const rows = [
    ['seed', wish.seed ?? job.seed],
    ['size', `${size}, ${length}`],
    ['steps', stepsOf(job, wish)],
  ];
  const finished = job.state === 'done';
  return el(
    'aside.fl-facts',
    { 'aria-label': say('about_this') },
    above,
    el('p.fl-prompt', { title: wish.prompt ?? '' }, wish.prompt ?? job.prompt ?? ''),
    el('dl', {}, ...rows.flatMap(([name, value]) => [el('dt', {}, say(name)), el('dd.fl-mono', {}, value)])),
    finished && job.stage === 'preview' ? el('p.fl-hint', {}, say('preview_hint')) : null,
    RESUMABLE.has(job.state) || (finished && job.stage === 'render' && !job.clip)
      ? el(`p.fl-hint.${job.state}`, {}, job.message)
      : null,
    el(
      'div.fl-ways',
      {},
      finished && job.clip ? download(url(job.id, 'clip.mp4'), `${job.id}.mp4`, say('save_mp4')) : null,
      finished && job.stage === 'render'
        ? download(url(job.id, 'frames.zip'), `${job.id}.zip`, say('save_png'))
        : null,
      resumeButton(job),
      job.state === 'queued' || job.state === 'running' ? null : settingsButton(job.id),
    ),
  );
}

/** A render that keeps a preview takes only the later part of the steps that were asked for. */
function stepsOf(job, wish) {
  const steps = job.steps || wish.steps || '';
  const fewer = job.stage === 'render' && wish.steps && job.steps && job.steps < wish.steps;
  return fewer ? say('steps_kept', { steps }) : String(steps);
}

export const download = (address, name, text) =>
  el('a.fl-plain', { href: address, download: name }, icon('download'), text);

/** In place of pictures that are not there. */
export function remains(job) {
  return el('div.fl-remains', {}, el('p', {}, say(`remains_${job.state}`)));
}

/** Which files the chosen preset lacks and where each goes. */
export function missingFiles({ missing, folder }) {
  return el(
    'div.fl-missing',
    { role: 'region', 'aria-label': say('missing_title') },
    el('h2', {}, say('missing_title')),
    el('p.lead', {}, say('missing_lead', { count: missing.length })),
    el('p.fl-path', {}, el('code', {}, folder)),
    el(
      'ul',
      {},
      ...missing.map(({ role, path, note }) =>
        el('li', {}, el('strong', {}, role), el('code', {}, path), el('span', {}, note)),
      ),
    ),
    el('p.fl-hint', {}, say('missing_after')),
  );
}
