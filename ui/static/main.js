// Puts each view into the place Gradio made for it, and ties the page's own buttons and keys to the store.

import { brand } from './brand.js';
import { described, estimate, examples } from './form.js';
import { exporting } from './export.js';
import { history } from './history.js';
import { inspector } from './inspector.js';
import { keys } from './keys.js';
import { stage } from './stage.js';
import { isRunning, listen } from './store.js';

const VIEWS = { brand, described, estimate, examples, export: exporting, history, inspector, stage };

function mount() {
  for (let place; (place = window.firstlookMounts?.shift());) {
    VIEWS[place.name]?.(place.element.querySelector('.fl-view'), place);
  }
}

window.addEventListener('firstlook-mount', mount);
mount();
keys();

listen((store) => {
  const { dataset } = document.body;
  dataset.running = isRunning() ? 'yes' : 'no';
  dataset.history = store.total > 0 ? 'yes' : 'no';
  dataset.next = store.plan.source ? 'render' : 'preview';
  dataset.offline = store.offline ? 'yes' : 'no';
  dataset.ready = store.state ? 'yes' : 'no';
});
