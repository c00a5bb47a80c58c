// What the page knows of the server, asked for at a pace that fits: one poll, any number of listeners.
//
// `view` is the job on show. A tab follows what runs until something of the history is opened in it.

const RUNNING_MS = 250;
const IDLE_MS = 1500;
const HIDDEN_MS = 3000;
const HURRY_MS = 4000;
const PATIENCE_MS = 5000;
const PLAN_PATIENCE_MS = 60000; // the first plan waits for the server to load what it plans with
const FAILURES = 2; // a busy server may be late once
const VIEW_KEY = 'firstlook-view';

const root = (window.gradio_config?.root ?? '').replace(/\/$/, '');
export const url = (job, rest) => `${root}/api/jobs/${encodeURIComponent(job)}/${rest}`;

export const store = {
  state: null, // the last answer of /api/state
  jobs: [], // rows of the history
  total: 0,
  limit: 60,
  view: null, // id of the job on show
  detail: null, // that job, whole
  offline: false,
  plan: {}, // what the form as it stands would make
  notice: null, // said for a moment in place of the plan
  bringStage: false, // something was started in this tab: let the stage be seen
};

const listeners = new Set();
let pinned = false;
let timer = 0;
let asking = false;
let againSoon = false;
let hurriedUntil = 0;
let failures = 0;
let lastServer = null;
let lastRevision = null;
let lastKey = '';
let onChange = () => {};

/** Call `listener(store)` after every answer. */
export function listen(listener) {
  listeners.add(listener);
  listener(store);
}

/** Call `action` when a job begins, ends or changes hands: Python has then something new to say. */
export function whenJobsChange(action) {
  onChange = action;
}

export function tell() {
  for (const listener of listeners) listener(store);
}

/** The snapshot of the job on show, the freshest there is. */
export function viewed() {
  const running = store.state?.job;
  if (running && running.id === store.view) return { ...store.detail, ...running };
  return store.detail?.id === store.view ? store.detail : null;
}

export const isPinned = () => pinned;
export const isRunning = () => Boolean(store.state?.job);

/** Show this job and stay with it. */
export async function open(id) {
  pinned = id !== store.state?.job?.id;
  await show(id);
}

/** Show whatever runs, now and next. */
export function follow() {
  pinned = false;
  const running = store.state?.job;
  if (running) show(running.id);
  poke();
}

/** Ask again at once. */
function poke() {
  clearTimeout(timer);
  if (asking) againSoon = true;
  else poll();
}

/** For a few seconds ask often: something is about to begin or end. */
export function hurry() {
  hurriedUntil = performance.now() + HURRY_MS;
  poke();
}

export async function post(id, command) {
  const answer = await fetch(url(id, command), { method: 'POST' });
  if (!answer.ok) throw new Error((await answer.json()).detail ?? answer.statusText);
  poke();
  return answer.json();
}

/** What the form would make; null where the server does not answer. */
export const askPlan = (form) =>
  ask(`${root}/api/plan`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(form),
    signal: AbortSignal.timeout(PLAN_PATIENCE_MS),
  });

export function showMore() {
  store.limit += 60;
  readJobs();
}

async function show(id) {
  store.view = id;
  remember(id);
  await readDetail(id);
  tell();
}

async function readDetail(id) {
  const answer = await ask(`${root}/api/jobs/${encodeURIComponent(id)}`);
  if (store.view !== id) return;
  store.detail = answer;
  if (!answer && !isRunning()) store.view = null;
}

async function readJobs() {
  const answer = await ask(`${root}/api/jobs?limit=${store.limit}`);
  if (answer) Object.assign(store, { jobs: answer.jobs, total: answer.total });
  tell();
}

async function ask(address, options = {}) {
  try {
    const answer = await fetch(address, {
      cache: 'no-store',
      signal: AbortSignal.timeout(PATIENCE_MS),
      ...options,
    });
    return answer.ok ? await answer.json() : null;
  } catch {
    return null;
  }
}

async function poll() {
  asking = true;
  const state = await ask(`${root}/api/state`);
  failures = state ? 0 : failures + 1;
  if (state) await accept(state);
  store.offline = failures >= FAILURES;
  tell();
  asking = false;
  timer = setTimeout(poll, againSoon ? 0 : pace());
  againSoon = false;
}

function pace() {
  if (document.hidden) return HIDDEN_MS;
  const lively = isRunning() || performance.now() < hurriedUntil;
  return lively && !store.offline ? RUNNING_MS : IDLE_MS;
}

async function accept(state) {
  const first = store.state === null;
  const restarted = lastServer !== null && lastServer !== state.server;
  store.state = state;
  lastServer = state.server;
  if (first || restarted || state.revision !== lastRevision) {
    lastRevision = state.revision;
    readJobs();
  }
  const key = `${state.server} ${state.job?.id} ${state.job?.state} ${state.revision}`;
  const changed = key !== lastKey;
  lastKey = key;
  await choose(state, first, changed);
  if (changed && !first) onChange();
}

/** Which job to show, and its details again when something about it has changed. */
async function choose(state, first, changed) {
  const running = state.job?.id;
  let wanted = store.view;
  if (running && !pinned) wanted = running;
  else if (first) wanted = recall() ?? state.latest;
  else if (wanted === null) wanted = state.latest;
  if (wanted === null || wanted === undefined) return;
  if (wanted !== store.view || changed || store.detail === null) {
    store.view = wanted;
    remember(wanted);
    await readDetail(wanted);
    if (store.detail === null && wanted !== running && state.latest && wanted !== state.latest) {
      store.view = state.latest;
      await readDetail(state.latest);
    }
  }
}

function remember(id) {
  try {
    sessionStorage.setItem(VIEW_KEY, id);
  } catch {
    // Only a refresh would have used it.
  }
}

function recall() {
  try {
    return sessionStorage.getItem(VIEW_KEY);
  } catch {
    return null;
  }
}

document.addEventListener('visibilitychange', () => {
  if (!document.hidden) poke();
});
window.addEventListener('online', poke);

poll();
