// The name of the page, and the choices of language and theme.

import { el, icon } from './dom.js';
import { language, say } from './words.js';

const YEAR = 365 * 24 * 3600;
const MARK = `<svg viewBox="0 0 32 32" aria-hidden="true"><rect x="1.5" y="6.5" width="29" height="19" rx="4"
  fill="none" stroke="currentColor" stroke-width="2.4"/><circle class="spark" cx="21" cy="13" r="3.4"/>
  <path d="M6.5 21c4-1.2 8-3 11-6" fill="none" stroke="currentColor" stroke-width="1.8" stroke-linecap="round"
  stroke-dasharray="0.1 3.6"/></svg>`;

export function brand(place) {
  const mark = el('span.fl-mark');
  mark.innerHTML = MARK;
  const other = language === 'zh' ? 'en' : 'zh';
  const name = other === 'zh' ? '中文' : 'English';
  place.append(
    el(
      'header.fl-brand',
      {},
      mark,
      el('div', {}, el('h1', {}, 'Firstlook'), el('p', {}, say('tagline'))),
      el(
        'nav',
        { 'aria-label': say('page_settings') },
        el(
          'button.fl-quiet',
          { type: 'button', id: 'language', lang: other, onclick: () => speak(other) },
          name,
        ),
        el(
          'button.fl-quiet.round',
          {
            type: 'button',
            id: 'theme',
            title: say('theme'),
            'aria-label': say('theme'),
            onclick: () => window.firstlookTheme.toggle(),
          },
          icon('sun'),
        ),
      ),
    ),
  );
}

/** The page is drawn anew in the other language; the form and the job on show come back by themselves. */
function speak(other) {
  document.cookie = `firstlook-language=${other}; path=/; max-age=${YEAR}; samesite=strict`;
  location.reload();
}
