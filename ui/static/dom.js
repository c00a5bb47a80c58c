// A few helpers to build elements without a framework.

/** An element: `el('button.primary', { onclick, title }, 'text', child)`. Null children are skipped. */
export function el(spec, attributes = {}, ...children) {
  const [tag, ...classes] = spec.split('.');
  const node = document.createElement(tag || 'div');
  if (classes.length) node.className = classes.join(' ');
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? '' : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const ICONS = {
  play: 'M5 3.5v9l7.5-4.5z',
  pause: 'M4.5 3.5h2.5v9h-2.5zM9 3.5h2.5v9h-2.5z',
  plus: 'M8 3.5v9M3.5 8h9',
  minus: 'M3.5 8h9',
  download: 'M8 2.5v7.5M4.8 7l3.2 3.2L11.2 7M3 13h10',
  copy: 'M5.5 5.5v-3h8v8h-3M2.5 5.5h8v8h-8z',
  check: 'M3 8.5l3.2 3.2L13 5',
  sun:
    'M8 5.2a2.8 2.8 0 1 0 0 5.6a2.8 2.8 0 1 0 0-5.6M8 1.2v1.6M8 13.2v1.6M1.2 8h1.6M13.2 8h1.6' +
    'M3.2 3.2l1.1 1.1M11.7 11.7l1.1 1.1M3.2 12.8l1.1-1.1M11.7 4.3l1.1-1.1',
  fit: 'M2.5 6v-3.5h3.5M10 2.5h3.5v3.5M13.5 10v3.5h-3.5M6 13.5h-3.5v-3.5',
};
const FILLED = new Set(['play', 'pause']);

/** A 16-pixel line icon, hidden from screen readers. */
export function icon(name) {
  const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
  const path = document.createElementNS('http://www.w3.org/2000/svg', 'path');
  svg.setAttribute('viewBox', '0 0 16 16');
  svg.setAttribute('aria-hidden', 'true');
  svg.classList.add('fl-icon', FILLED.has(name) ? 'filled' : 'line');
  path.setAttribute('d', ICONS[name]);
  svg.append(path);
  return svg;
}

/** Set text only when it changed, so that selections and screen readers are left alone. */
export function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
