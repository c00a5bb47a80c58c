// Around the form's fields: examples, the preset's description, and what the form as it stands would make.

import { el } from './dom.js';
import { askPlan, listen, store, tell, whenJobsChange } from './store.js';
import { roughly, say } from './words.js';

const SHOWN = 3;
const SETTLED_MS = 150;

/** Write into one of Gradio's text fields as if it had been typed. */
export function type(field, text) {
  const input = document.querySelector(`#${field} textarea, #${field} input`);
  if (!input) return;
  input.value = text;
  input.dispatchEvent(new Event('input', { bubbles: true }));
  input.focus();
}

export const chosenExamples = [];

/** Example prompts of the preset as chips: a click takes one. */
export function examples(place, { props, watch }) {
  let offset = 0;
  const row = el('div.fl-examples', { role: 'group', 'aria-label': say('examples') });
  place.append(row);
  const draw = () => {
    const all = props.value?.examples ?? [];
    chosenExamples.splice(0, Infinity, ...all);
    const some = Array.from(
      { length: Math.min(SHOWN, all.length) },
      (_, i) => all[(offset + i) % all.length],
    );
    const chips = some.map((text) =>
      el('button.fl-chip', { type: 'button', title: text, onclick: () => type('prompt', text) }, text),
    );
    const more =
      all.length > SHOWN
        ? el(
            'button.fl-quiet',
            {
              type: 'button',
              onclick: () => {
                offset += SHOWN;
                draw();
              },
            },
            say('other_examples'),
          )
        : null;
    row.replaceChildren(...chips, ...(more ? [more] : []));
    tell();
  };
  watch('value', () => {
    draw();
    ready();
  });
  draw();
}

/** The form is what this browser left: from now on it may be typed in. */
function ready() {
  if (document.body.dataset.form) return;
  document.body.dataset.form = 'ready';
  if (document.activeElement === document.body)
    document.querySelector('#prompt textarea')?.focus({ preventScroll: true });
}

export function described(place, { props, watch }) {
  const box = el('div.fl-described');
  place.append(box);
  const draw = () => {
    const { description = '', problems = [] } = props.value ?? {};
    box.replaceChildren(el('p', {}, description), ...problems.map((problem) => el('p.problem', {}, problem)));
  };
  watch('value', draw);
  draw();
}

/** How long, what shape, from what: said before anything starts. A notice takes its place for a moment. */
export function estimate(place) {
  const box = el('div.fl-estimate', { 'aria-live': 'polite' });
  place.append(box);
  let shown = '';
  listen(() => {
    const lines = store.notice ? [['notice', store.notice]] : sentences(store.plan);
    const key = JSON.stringify(lines);
    if (key === shown) return;
    shown = key;
    box.replaceChildren(...lines.map(([kind, text]) => el(`p.${kind}`, {}, text)));
  });
}

let planTimer = 0;

/** Ask again what the form would make: it has changed, or the jobs have. */
function planAgain() {
  clearTimeout(planTimer);
  planTimer = setTimeout(async () => {
    const form = window.firstlookForm;
    const plan = form ? await askPlan(form) : null;
    if (!plan || form !== window.firstlookForm) return;
    store.plan = plan;
    tell();
  }, SETTLED_MS);
}

window.addEventListener('firstlook-form', planAgain);
whenJobsChange(planAgain);
planAgain();

let noticeTimer = 0;

/** Say something for a moment where the estimate stands. */
export function notice(text, milliseconds = 3000) {
  clearTimeout(noticeTimer);
  store.notice = text;
  tell();
  noticeTimer = setTimeout(() => {
    store.notice = null;
    tell();
  }, milliseconds);
}

function sentences(plan) {
  if (plan.problem) return [['problem', plan.problem]];
  if (plan.missing?.length) return [['problem', say('missing_short', { count: plan.missing.length })]];
  if (!('preview_seconds' in plan)) return [];
  const lines = [['times', times(plan)]];
  for (const note of plan.notes ?? []) lines.push(['note', note]);
  if (plan.source) lines.push(['source', say(plan.keep ? 'from_preview' : 'from_noise')]);
  return lines;
}

function times({ preview_seconds: preview, render_seconds: render }) {
  if (preview === null && render === null) return say('no_estimate');
  const about = (seconds) =>
    seconds === null ? say('unknown_time') : say('about', { time: roughly(seconds) });
  return say('times', { preview: about(preview), render: about(render) });
}
