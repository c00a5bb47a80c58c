// The keyboard, and what the buttons do besides Gradio's part. Ctrl+Enter looks, Ctrl+Shift+Enter renders,
// Esc twice cancels.

import { notice } from './form.js';
import { follow, hurry, isRunning, post, store } from './store.js';
import { say } from './words.js';

const AGAIN_MS = 3000;
let askedAt = -Infinity;

export function keys() {
  mistakes();
  document.addEventListener('keydown', press, true);
  document.addEventListener('click', (event) => {
    const button = event.target.closest?.('#preview, #render, #cancel');
    if (button?.id === 'cancel') cancel();
    else if (button) {
      store.bringStage = true;
      follow();
      hurry();
    }
  });
}

/** Gradio writes at a field what is wrong with it: screen readers hear it, a closed group opens for it. */
function mistakes() {
  const rail = document.getElementById('rail');
  const dice = document.getElementById('dice');
  if (!rail || !dice || !document.getElementById('cancel')) return requestAnimationFrame(mistakes);
  for (const id of ['preview', 'render', 'cancel']) document.getElementById(id).title = say(`key_${id}`);
  dice.title = say('dice');
  dice.setAttribute('aria-label', say('dice'));
  let told = false;
  const look = () => {
    for (const field of rail.querySelectorAll('input, textarea')) {
      const wrong =
        field.classList.contains('validation-error') ||
        Boolean(field.closest('.block')?.querySelector('div.validation-error'));
      if (wrong) field.setAttribute('aria-invalid', 'true');
      else field.removeAttribute('aria-invalid');
    }
    const first = rail.querySelector('[aria-invalid]');
    if (first && !told) {
      const closed = [...rail.querySelectorAll('#more > button + div')].find(
        (group) => group.contains(first) && group.style.display === 'none',
      );
      closed?.previousElementSibling.click();
      if (first.getAttribute('role') === 'combobox')
        first.scrollIntoView({ block: 'nearest' }); // focus would open the list
      else first.focus();
    }
    told = Boolean(first);
  };
  return new MutationObserver(look).observe(rail, {
    subtree: true,
    childList: true,
    attributes: true,
    attributeFilter: ['class'],
  });
}

/** Stop what runs. The server obeys within one transformer block. */
async function cancel() {
  const job = store.state?.job;
  if (!job) return;
  try {
    await post(job.id, 'cancel');
    notice(say('cancelling'), 1500);
    hurry();
  } catch (error) {
    notice(error.message);
  }
}

function press(event) {
  if (event.isComposing || event.keyCode === 229) return;
  if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    event.stopPropagation();
    document.getElementById(event.shiftKey ? 'render' : 'preview')?.click();
  } else if (event.key === 'Escape' && isRunning() && !somethingOpen()) {
    escape();
  }
}

/** One press of Esc must not end an hour's work: the first asks. */
function escape() {
  const now = performance.now();
  if (now - askedAt < AGAIN_MS) {
    askedAt = -Infinity;
    cancel();
  } else {
    askedAt = now;
    notice(say('escape_again'), AGAIN_MS);
  }
}

const somethingOpen = () =>
  Boolean(document.querySelector('[role="listbox"], dialog[open]') || document.fullscreenElement);
