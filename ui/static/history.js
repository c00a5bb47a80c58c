// Everything in the outputs folder, newest first. A click puts a job on the stage.

import { el } from './dom.js';
import { onUseSettings, resumeButton, settingsButton } from './facts.js';
import { listen, open, showMore, store, url } from './store.js';
import { language, say } from './words.js';

const WHEN = new Intl.DateTimeFormat(language === 'zh' ? 'zh-CN' : 'en', {
  dateStyle: 'medium',
  timeStyle: 'short',
});

export function history(place, { trigger }) {
  const empty = el('p.fl-empty', {}, say('history_empty'));
  const list = el('ul.fl-history');
  const more = el('button.fl-plain', { type: 'button', onclick: showMore }, say('show_more'));
  place.append(empty, list, more);
  onUseSettings((id) => trigger('settings', { id }));
  let built = '';
  listen(() => {
    const key = JSON.stringify([
      store.jobs.map(({ id, state, frames, picture }) => [id, state, frames, picture]),
      store.total,
    ]);
    if (key !== built) {
      built = key;
      empty.hidden = store.jobs.length > 0;
      more.hidden = store.jobs.length >= store.total;
      list.replaceChildren(...store.jobs.map(card));
    }
    for (const item of list.children) item.classList.toggle('shown', item.dataset.job === store.view);
  });
}

function card(job) {
  const { request } = job;
  const picture = job.picture
    ? el('img', {
        src: url(job.id, `thumbnail.png?f=${job.frames}`),
        alt: '',
        loading: 'lazy',
        decoding: 'async',
      })
    : el('span.fl-blank', {}, say('no_picture'));
  const shape =
    request && job.stage === 'render' ? `${request.width}×${request.height} · ${request.frames}` : '';
  return el(
    'li.fl-card',
    { 'data-job': job.id },
    el(
      'button.fl-open',
      { type: 'button', onclick: () => show(job), disabled: job.state === 'broken' },
      el(
        'span.fl-well',
        {},
        picture,
        job.state === 'done'
          ? null
          : el('span.fl-state', { class: `fl-state ${job.state}` }, say(`state_${job.state}`)),
      ),
      el('span.fl-words', { title: job.prompt }, job.prompt || job.id),
      el('span.fl-meta', {}, el('span', {}, request ? say(job.stage) : ''), el('span.fl-mono', {}, shape)),
      el(
        'span.fl-meta',
        {},
        el('time', { datetime: job.created }, job.created ? WHEN.format(new Date(job.created)) : job.message),
      ),
    ),
    request ? el('div.fl-ways', {}, settingsButton(job.id), resumeButton(job, false)) : null,
  );
}

async function show(job) {
  await open(job.id);
  document.querySelector('#stage')?.scrollIntoView({ behavior: 'smooth', block: 'start' });
}
