// The newest view, and the lag and throughput of shards over time, as far as they were requested.

export const store = { view: null, series: new Map(), frame: 0, live: true };

const TABLES = ['shards', 'workers'];

export function setView(view) {
  store.view = view;
  store.series.clear();
}

export function applyChange(change) {
  const view = store.view;
  for (const [name, value] of Object.entries(change)) {
    if (!TABLES.includes(name)) {
      view[name] = value;
      continue;
    }
    const rows = view[name];
    for (const [key, row] of Object.entries(value)) {
      if (row === null) {
        delete rows[key];
        store.series.delete(Number(key));
      } else if (rows[key] === undefined) rows[key] = row;
      else Object.assign(rows[key], row);
    }
  }
  for (const [key, row] of Object.entries(change.shards ?? {})) addPoint(Number(key), row);
}

function addPoint(number, row) {
  const points = store.series.get(number);
  if (points === undefined || row === null || (row.lag === undefined && row.kbps === undefined)) return;
  const now = store.view.shards[number];
  points.push([Math.floor(store.view.at / 1000), now.lag, now.kbps]);
  if (points.length > 120) points.shift();
}

let requested = new Set();
let waiting = new Set();
let timer = null;

// Requests the series of these shards, unless they are known. Many requests within a moment become one.
export function wantSeries(numbers, whenKnown) {
  const unknown = numbers.filter((number) => !store.series.has(number));
  if (unknown.length === 0) return;
  for (const number of unknown) requested.add(number);
  waiting.add(whenKnown);
  if (timer !== null) return;
  timer = setTimeout(async () => {
    const ids = [...requested].slice(0, 200);
    const frame = store.frame;
    const callers = waiting;
    requested = new Set();
    waiting = new Set();
    timer = null;
    try {
      const response = await fetch(`/api/series?ids=${ids.join(',')}&frame=${frame}`);
      if (!response.ok) return;
      const found = await response.json();
      if (frame !== store.frame) return;
      for (const id of ids) store.series.set(id, found[id] ?? []);
      for (const caller of callers) caller();
    } catch {
      // The connection is lost; the page says so, and the next view asks again.
    }
  }, 60);
}
