// Numbers and times as short texts.

// With `isShort`, only the larger unit.
export function duration(ms, isShort = false) {
  if (ms === null || ms === undefined) return '–';
  if (ms < 1000) return ms <= 0 ? '0 s' : '<1 s';
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1).replace('.0', '') : Math.round(seconds)} s`;
  if (seconds < 3600) return two(seconds, 60, 'min', 1, 's', isShort ? 0 : 10);
  if (seconds < 86400) return two(seconds, 3600, 'h', 60, 'min', isShort ? 0 : 10);
  return two(seconds, 86400, 'd', 3600, 'h', isShort ? 0 : 10);
}

function two(seconds, large, largeName, small, smallName, singleFrom) {
  const whole = Math.floor(seconds / large);
  const rest = Math.floor((seconds % large) / small);
  return whole >= singleFrom || rest === 0 ? `${whole} ${largeName}` : `${whole} ${largeName} ${rest} ${smallName}`;
}

export function kilobytes(kbps) {
  if (kbps === null || kbps === undefined) return '–';
  if (kbps >= 1024 * 1024) return `${(kbps / 1024 / 1024).toFixed(1)} GB/s`;
  if (kbps >= 1024) return `${(kbps / 1024).toFixed(1)} MB/s`;
  return `${kbps >= 10 ? Math.round(kbps) : Number(kbps.toFixed(1))} kB/s`;
}

export function count(number) {
  return number.toLocaleString('en-US');
}

export function plural(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? '' : 's'}`;
}

const TAIL = 6; // the ends of the names of pods, processes and queries differ
const NAME_MAX = 14;

export function splitName(name) {
  return [name.slice(0, -TAIL), name.slice(-TAIL)];
}

// The word joiner keeps the ellipsis and the end in one line.
export function shortName(name) {
  return name.length > NAME_MAX ? `…\u2060${splitName(name)[1]}` : name;
}

// A sentence for a narrow cell beside the owner: without the name after "its owner", and with only the ends of the other long names.
export function brief(sentence, owner, names) {
  const text = owner === null ? sentence : sentence.replaceAll(`its owner ${owner}`, 'its owner');
  return text.replace(/\S+/g, (word) => {
    const name = word.replace(/[,;:.]+$/, '');
    return names.has(name) ? shortName(name) + word.slice(name.length) : word;
  });
}

export function clock(ms) {
  return new Date(ms).toLocaleTimeString('en-GB');
}

export function date(ms) {
  return `${new Date(ms).toLocaleDateString('en-CA')} ${clock(ms)}`;
}
