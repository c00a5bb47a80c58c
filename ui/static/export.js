// What can be taken away: the PNG sequence, the mp4, and where both are on this machine.

import { el, icon, write } from './dom.js';
import { download } from './facts.js';
import { listen, url, viewed } from './store.js';
import { say } from './words.js';

export function exporting(place) {
  const empty = el('p.fl-empty', {}, say('export_empty'));
  const list = el('dl.fl-export');
  place.append(empty, list);
  let built = '';
  listen(() => {
    const job = viewed();
    const ready = job && job.state !== 'running' && job.state !== 'queued' && job.frames_written > 0;
    const key = ready ? `${job.id} ${job.frames_written} ${job.clip}` : '';
    if (key === built) return;
    built = key;
    empty.hidden = Boolean(key);
    list.hidden = !key;
    list.replaceChildren(...(key ? rows(job).flat() : []));
  });
}

function rows(job) {
  const shape = `${job.width}×${job.height}`;
  const png = row(
    say('export_png'),
    say('export_png_text', { frames: job.frames_written, shape }),
    download(url(job.id, 'frames.zip'), `${job.id}.zip`, say('download_zip')),
  );
  const mp4 = job.clip
    ? [
        row(
          say('export_mp4'),
          say('export_mp4_text', { fps: job.fps }),
          download(url(job.id, 'clip.mp4'), `${job.id}.mp4`, say('download_mp4')),
        ),
      ]
    : [];
  return [png, ...mp4, row(say('export_folder'), say('export_folder_text'), folder(job.folder))];
}

const row = (name, text, control) => [el('dt', {}, name), el('dd', {}, el('p', {}, text), control)];

function folder(path) {
  const words = el('span', {}, say('copy'));
  const button = el('button.fl-plain', { type: 'button', onclick: copy }, icon('copy'), words);
  const code = el('code', { tabindex: 0 }, path);
  async function copy() {
    try {
      await navigator.clipboard.writeText(path);
      write(words, say('copied'));
    } catch {
      getSelection().selectAllChildren(code);
      write(words, say('selected'));
    }
    setTimeout(() => write(words, say('copy')), 2000);
  }
  return el('div.fl-folder', {}, code, button);
}
