// The sentences of the page in its language. The server put them into the head.

const sentences = JSON.parse(document.getElementById('firstlook-sentences').textContent);

export const { language } = document.documentElement.dataset;

/** The sentence `key` with its {blanks} filled in; a missing key shows itself. */
export function say(key, values = {}) {
  const sentence = sentences[key] ?? key;
  return sentence.replace(/\{(\w+)\}/g, (blank, name) => values[name] ?? blank);
}

export const has = (key) => key in sentences;

/** Seconds as a person says them: 4 s, 1 min 20 s, 3 h 5 min. */
export function duration(seconds) {
  const whole = Math.max(seconds < 1 ? 1 : 0, Math.round(seconds));
  if (whole < 60) return say('seconds', { seconds: whole });
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) return say(whole % 60 ? 'minutes' : 'whole_minutes', { minutes, seconds: whole % 60 });
  return say('hours', { hours: Math.floor(minutes / 60), minutes: minutes % 60 });
}

/** About how long: rounded so that it does not flicker. */
export function roughly(seconds) {
  if (seconds < 20) return duration(seconds);
  if (seconds < 60) return duration(Math.ceil(seconds / 5) * 5);
  if (seconds < 600) return duration(Math.ceil(seconds / 10) * 10);
  return duration(Math.ceil(seconds / 60) * 60);
}
