// The columns of the two tables.

import { sparkline, parts } from './charts.js';
import { el, mark, redraw, setText, svg } from './dom.js';
import { colour, STATE_NAMES } from './family.js';
import { brief, count, duration, kilobytes, splitName } from './format.js';
import { store } from './store.js';

const RANK = { problem: 0, notice: 1, ok: 2 };
const STATE_RANK = { silent: 0, free: 1, unleased: 2, read: 3, waiting: 4, done: 5, trimmed: 6 };
const LAG_FLOOR_MS = 60_000;
const LAG_LIMITS_MS = [10_000, 60_000, 600_000, 3_600_000];
const STRIP_MAX = 40;
const STRIP_WIDTH = 60;
const BAR_WIDTH = 24;

function text(get) {
  return (cell, item) => {
    const value = get(item);
    setText(cell, value);
    cell.title = value.length > 24 ? value : '';
  };
}

// Classes, so that rows do not change their places with every read.
function lagRank(ms) {
  return ms === null ? -1 : LAG_LIMITS_MS.filter((limit) => ms > limit).length;
}

export function lagClass(ms) {
  if (ms === null || ms === undefined) return 'unknown';
  return ['lag0', 'lag1', 'lag2', 'lag3', 'lag4'][lagRank(ms)];
}

export function rate(row) {
  if (row.kbps !== null) return kilobytes(row.kbps);
  return row.pace === null ? '–' : `${row.pace.toFixed(1)}×`;
}

export function age(row) {
  if (row.since === null || row.state === 'done') return '–';
  const passed = store.view.at - row.since;
  return `${row.exact ? '' : '≥ '}${duration(Math.max(0, passed), true)}`;
}

export function sentence(row) {
  const finding = row.findings[0];
  if (finding) return finding.text;
  if (row.state === 'trimmed') return 'the stream no longer has it';
  if (row.state === 'done') return 'it was read to its end, and its lease is deleted';
  return store.view.judged ? '' : 'being watched';
}

export function lagSpark(number, row, width, height) {
  const points = store.series.get(number);
  if (!points || row.state === 'done' || row.state === 'trimmed') return '';
  return sparkline(points.map(([at, lag]) => [at, lag]), { width, height, now: store.view.at / 1000, floor: LAG_FLOOR_MS, label: `Lag over time, now ${duration(row.lag)}` });
}

// The middle of a long name is cut.
function name(worker) {
  const [head, tail] = splitName(worker);
  return el('span', { class: 'name' }, el('span', { class: 'head' }, head), el('span', { class: 'tail' }, tail));
}

const names = { at: null, known: new Set() };

function workerNames() {
  if (names.at !== store.view.at) Object.assign(names, { at: store.view.at, known: new Set(Object.values(store.view.workers).map((each) => each.name)) });
  return names.known;
}

function drawWhy(cell, { row }) {
  const whole = sentence(row);
  const text = brief(whole, row.owner, workerNames());
  redraw(cell, text, () => el('div', { class: 'lines' }, text));
  cell.title = whole;
}

export const SHARD_COLUMNS = [
  { id: 'mark', name: 'Severity', title: '', class: 'center', value: ({ row }) => [RANK[row.severity], STATE_RANK[row.state] ?? 9, -lagRank(row.lag), row.shard], draw: (cell, { row }) => redraw(cell, row.severity, () => mark(row.severity)) },
  { id: 'shard', title: 'Shard', class: 'mono', isHeader: true, value: ({ row }) => `${row.stream ?? ''}${row.shard}`, draw: text(({ row }) => (row.stream ? `${row.stream} ${row.shard}` : row.shard)) },
  { id: 'state', title: 'State', value: ({ row }) => STATE_RANK[row.state] ?? 9, draw: (cell, { row }) => redraw(cell, `${colour(row)}${row.next}`, () => [el('span', { class: `dot ${row.state}` }), row.next ? 'handoff' : STATE_NAMES[row.state] ?? row.state]) },
  { id: 'owner', title: 'Owner', value: ({ row }) => row.owner, draw: (cell, { row }) => redraw(cell, JSON.stringify([row.owner, row.next]), () => (row.owner === null ? '–' : el('div', { class: 'who', title: row.next ? `${row.owner} → ${row.next}` : row.owner }, name(row.owner), row.next ? [el('span', { class: 'to' }, '→'), name(row.next)] : []))) },
  { id: 'lag', title: 'Lag', class: 'number', down: true, value: ({ row }) => row.lag, draw: (cell, { row }) => { setText(cell, duration(row.lag)); cell.className = `number ${lagClass(row.lag)}`; } },
  { id: 'spark', name: 'Lag over time', title: '', draw: (cell, { key, row }) => redraw(cell, `${key} ${store.view.at} ${store.series.get(key)?.length}`, () => lagSpark(key, row, 66, 20)) },
  { id: 'rate', title: 'Rate', class: 'number', down: true, value: ({ row }) => row.kbps ?? row.pace, draw: (cell, { row }) => { setText(cell, rate(row)); cell.title = row.kbps === null && row.pace !== null ? `${row.pace} seconds of the stream are read in a second` : ''; } },
  { id: 'age', title: 'Unmoved', name: 'How long the checkpoint has not moved', class: 'number', down: true, value: ({ row }) => (row.since === null || row.state === 'done' ? null : store.view.at - row.since), draw: (cell, { row }) => { setText(cell, age(row)); cell.title = row.checkpoint ? `at ${row.checkpoint}; it has not moved for this long` : ''; } },
  { id: 'why', title: 'Why', class: 'why', value: ({ row }) => sentence(row), draw: drawWhy },
];

function busyBar(percent) {
  if (percent === null) return el('span', { class: 'quiet' }, '–');
  const kind = percent >= 90 ? 'problem' : percent >= 75 ? 'notice' : '';
  return [svg('svg', { class: `busy ${kind}`, width: BAR_WIDTH, height: 6, 'aria-hidden': 'true' },
    svg('rect', { class: 'back', width: BAR_WIDTH, height: 6, rx: 3 }), svg('rect', { class: 'full', width: (BAR_WIDTH * Math.min(100, percent)) / 100, height: 6, rx: 3 })),
  el('span', { class: 'percent' }, `${Math.round(percent)}%`)];
}

function strip(shards) {
  const lags = shards.map((row) => (row.severity === 'problem' ? 'problem' : row.severity === 'notice' ? 'notice' : lagClass(row.lag)));
  if (lags.length > STRIP_MAX) {
    const classes = ['problem', 'notice', 'lag4', 'lag3', 'lag2', 'lag1', 'lag0', 'unknown'];
    return parts(classes.map((each) => lags.filter((lag) => lag === each).length), classes, { width: STRIP_WIDTH, height: 8, label: `${count(lags.length)} shards by lag` });
  }
  const size = lags.length > 20 ? 4 : lags.length > 10 ? 6 : 8;
  const perRow = Math.floor(STRIP_WIDTH / (size + 2));
  const picture = svg('svg', { class: 'strip', width: STRIP_WIDTH, height: Math.ceil(Math.max(1, lags.length) / perRow) * (size + 2), 'aria-hidden': 'true' });
  lags.forEach((lag, i) => picture.append(svg('rect', { x: (i % perRow) * (size + 2), y: Math.floor(i / perRow) * (size + 2), width: size, height: size, rx: 1, class: lag })));
  return picture;
}

export const WORKER_COLUMNS = [
  { id: 'worker', title: 'Worker', isHeader: true, value: ({ row }) => row.name, draw: (cell, { row }) => redraw(cell, JSON.stringify([row.name, row.leader, row.active]), () => el('div', { class: 'who', title: row.name }, el('span', { class: `dot ${row.active ? 'read' : 'silent'}` }), name(row.name), row.leader ? el('span', { class: 'star', role: 'img', title: 'leads the fleet', 'aria-label': 'leads the fleet' }, '★') : '')) },
  { id: 'busy', title: 'Busy', value: ({ row }) => row.busy, down: true, draw: (cell, { row }) => redraw(cell, `${row.busy} ${row.active}`, () => (row.active ? busyBar(row.busy) : el('span', { class: 'badge problem' }, 'silent'))) },
  { id: 'leases', title: 'Leases', class: 'number', down: true, value: ({ row }) => row.leases, draw: (cell, { row }) => { setText(cell, count(row.leases)); cell.title = row.handing_over || row.expecting ? `hands over ${row.handing_over}, expects ${row.expecting}` : ''; } },
  { id: 'holds', title: 'Holds', draw: (cell, { shards }) => redraw(cell, shards.map((row) => row.severity + lagClass(row.lag)).join(), () => strip(shards)) },
  { id: 'wlag', title: 'Lag', class: 'number', down: true, value: ({ row }) => row.lag, draw: (cell, { row }) => { setText(cell, duration(row.lag, true)); cell.className = `number ${lagClass(row.lag)}`; } },
];
