// The stage before anything was made: what to type, and what will happen.

import { el } from './dom.js';
import { type, chosenExamples } from './form.js';
import { say } from './words.js';

const STEPS = ['look', 'render', 'inspect', 'save'];
// Four frames of one clip: a firefly rises over a hill, and its way so far.
const WAY = [
  [14, 38],
  [36, 20],
  [60, 26],
  [80, 14],
];

export function welcome() {
  const strip = el('div.fl-strip', { 'aria-hidden': 'true' });
  strip.innerHTML = drawing();
  const start = el(
    'button.fl-primary',
    { type: 'button', onclick: () => type('prompt', chosenExamples[0] ?? '') },
    say('welcome_try'),
  );
  return el(
    'div.fl-welcome',
    {},
    el('h2', {}, say('welcome_title')),
    el('p.lead', {}, say('welcome_lead')),
    strip,
    el(
      'ol.fl-steps',
      {},
      ...STEPS.map((step) =>
        el('li', {}, el('strong', {}, say(`step_${step}`)), el('span', {}, say(`step_${step}_text`))),
      ),
    ),
    el('p.fl-start', {}, start, el('span', {}, say('welcome_or'))),
  );
}

function drawing() {
  const clip = '<clipPath id="fl-frame"><rect width="96" height="56" rx="5"/></clipPath>';
  return `<svg viewBox="0 0 408 70">${clip}${WAY.map(frame).join('')}</svg>`;
}

function frame([x, y], index) {
  const trail = WAY.slice(0, index + 1)
    .map(([a, b], i) => (i ? `S${a - 12} ${b} ${a} ${b}` : `M${a} ${b}`))
    .join('');
  return `<g transform="translate(${index * 104} 0)">
    <g clip-path="url(#fl-frame)">
      <rect class="well" width="96" height="56"/>
      <circle class="moon" cx="78" cy="40" r="7"/>
      <path class="hill" d="M0 46c18-9 34-9 52-3s28 5 44 0v13H0z"/>
      <path class="trail" d="${trail}"/>
      <circle class="halo" cx="${x}" cy="${y}" r="8"/>
      <circle class="spark" cx="${x}" cy="${y}" r="2.6"/>
    </g>
    <text x="1" y="67">${index + 1}</text>
  </g>`;
}
