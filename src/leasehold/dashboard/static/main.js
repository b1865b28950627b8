// Connects the views to the page.

import { sparkline, parts } from './charts.js';
import { showDetail } from './detail.js';
import { byId, el, mark, redraw, setText } from './dom.js';
import { describe, drawFamily, shortId, STATE_NAMES } from './family.js';
import { clock, count, date, duration, kilobytes, plural, shortName } from './format.js';
import { startReplay } from './replay.js';
import { sentence, SHARD_COLUMNS, WORKER_COLUMNS } from './shard_columns.js';
import { applyChange, setView, store, wantSeries } from './store.js';
import { VirtualTable } from './table.js';
import { startTheme } from './theme.js';

const FILTERS = [
  ['active', 'Active', (row) => row.state !== 'done' && row.state !== 'trimmed'],
  ['problem', 'Problems', (row) => hasFinding(row, 'problem')],
  ['notice', 'Notices', (row) => hasFinding(row, 'notice')],
  ['handoff', 'Handoffs', (row) => row.next !== null],
  ['waiting', 'Waiting', (row) => row.state === 'waiting'],
  ['done', 'Done', (row) => row.state === 'done' || row.state === 'trimmed'],
  ['all', 'All', () => true],
];
const LAG_NAMES = ['up to 10 s', 'up to 1 min', 'up to 10 min', 'up to 1 h', 'more than 1 h', 'unknown'];
const LAG_CLASSES = ['lag0', 'lag1', 'lag2', 'lag3', 'lag4', 'unknown'];
const state = { filter: 'active', query: '', selected: null, stream: null, groups: new Map(), returnTo: null };

const shardTable = new VirtualTable(byId('shard-table'), {
  label: 'Shards', columns: SHARD_COLUMNS, rowHeight: 30, sort: { id: 'mark', down: false },
  onOpen: ({ key }) => select(key), onVisible: (items) => wantSeries(items.map(({ key }) => key), () => shardTable.render()),
});
const workerTable = new VirtualTable(byId('worker-table'), {
  label: 'Workers', columns: WORKER_COLUMNS, rowHeight: 30, sort: { id: 'worker', down: false },
  onOpen: ({ row }) => search(`owner:${row.name}`, 'all'),
});

// A shard may have several findings: one with a problem and a notice is listed under both.
function hasFinding(row, severity) {
  return row.findings.some((finding) => finding.severity === severity);
}

function matches(row) {
  const query = state.query;
  if (query === '') return true;
  if (query.startsWith('owner:')) return (row.owner ?? '').toLowerCase() === query.slice(6) || (row.next ?? '').toLowerCase() === query.slice(6);
  if (query.startsWith('code:')) return row.findings.some((finding) => finding.code === query.slice(5));
  return [row.shard, row.stream, row.owner, row.next, row.state, sentence(row)].some((each) => each && each.toLowerCase().includes(query));
}

export function search(query, filter) {
  byId('search').value = query;
  state.query = query.trim().toLowerCase();
  if (filter) state.filter = filter;
  draw();
}

export function select(number) {
  if (state.selected === null) state.returnTo = document.activeElement;
  state.selected = number;
  shardTable.select(number);
  drawFamilies();
  drawDetail();
  byId('detail').focus();
}

export function closeDetail() {
  state.selected = null;
  shardTable.select(null);
  drawFamilies();
  drawDetail();
  if (state.returnTo?.isConnected) state.returnTo.focus();
}

function drawDetail() {
  showDetail(byId('detail'), state.selected, { select, close: closeDetail, redraw: drawDetail });
}

function leadership(leader) {
  return leader === null ? 'no leader at the moment' : `led by ${leader}`;
}

function drawHead() {
  const view = store.view;
  setText(byId('application'), view.application);
  const mode = view.mode === null ? '' : view.mode === 'peers' ? 'peers, without a leader' : view.mode === 'unknown' ? 'no worker owns a lease' : leadership(view.leader);
  const stream = view.streams.length === 1 ? ` · stream ${view.streams[0].name}${view.streams[0].retention ? `, kept for ${duration(view.streams[0].retention)}` : ''}` : view.streams.length ? ` · ${plural(view.streams.length, 'stream')}` : '';
  setText(byId('mode'), mode + stream);
  document.title = `${view.totals?.problems ? `(${view.totals.problems}) ` : ''}${view.application} – Leasehold`;
  const banner = byId('banner');
  let words = view.unread.join(' ');
  if (!words && view.mode === null) words = 'The fleet is being read for the first time.';
  else if (!words && !view.judged) words = `The fleet is being watched for ${duration(view.watch)} before it is judged.`;
  else if (!words && view.streams.length === 0 && Object.keys(view.shards).length) words = 'The leases do not name their stream: start the dashboard with --stream NAME to see lags, trimmed records and missing leases.';
  setText(banner, words);
  banner.hidden = !words;
  banner.classList.toggle('problem', view.unread.length > 0);
}

function drawStatus() {
  const view = store.view;
  if (!view) return;
  const status = byId('status');
  if (!store.live) {
    setText(status, `recorded ${date(view.at)}`);
    return;
  }
  const old = Date.now() - view.at;
  const isLate = !store.connected || old > 3 * view.every + 20_000;
  status.className = `status ${isLate ? 'late' : 'live'}`;
  setText(status, store.connected ? (isLate ? `last read ${duration(old)} ago` : `live · ${clock(view.at)}`) : `connection lost · last read ${clock(view.at)}`);
}

function tile(title, value, more, { kind = '', picture = null } = {}) {
  return el('div', { class: `tile ${kind}` }, el('div', { class: 'words' }, el('h2', {}, title), el('p', { class: 'value' }, value), el('p', { class: 'more', title: more }, more)), picture);
}

// Workers count their calls; the page learns it from those whose status address it was given.
function kinesisTile(operations) {
  if (operations === null) return tile('Kinesis calls', '–', 'start the dashboard with --status of each worker');
  const rate = (number) => `${number >= 10 ? count(Math.round(number)) : Math.round(number * 100) / 100}/s`;
  const sum = (name) => operations.reduce((total, each) => total + each[name], 0);
  const throttled = sum('throttled_per_s');
  const words = [throttled ? `${rate(throttled)} throttled` : 'none throttled', ...operations.map((each) => `${each.operation} ${rate(each.per_s)}`)];
  return tile('Kinesis calls', rate(sum('per_s')), words.join(' · '), { kind: throttled ? 'notice' : '' });
}

function drawTiles() {
  const { totals, trend, calls, at, mode, leader } = store.view;
  redraw(byId('tiles'), `${at} ${totals === null}`, () => {
    if (totals === null) return [];
    const line = (index, label, floor) => sparkline(trend.map((point) => [point[0], point[index]]), { width: 80, height: 34, now: at / 1000, floor, label });
    const states = ['waiting', 'free', 'silent', 'unleased', 'done', 'trimmed'].filter((name) => totals[name]).map((name) => `${count(totals[name])} ${STATE_NAMES[name]}`);
    const lags = LAG_NAMES.map((name, i) => [name, totals.lags[i]]).filter(([, number]) => number);
    return [
      tile('Needs attention', totals.problems ? plural(totals.problems, 'problem') : totals.notices ? plural(totals.notices, 'notice') : store.view.judged ? 'nothing' : '…', totals.problems ? (totals.notices ? plural(totals.notices, 'notice') : 'no notices') : 'no problems', { kind: totals.problems ? 'problem' : totals.notices ? 'notice' : 'ok' }),
      tile('Shards', `${count(totals.read)} read`, states.join(' · ') || 'all are being read'),
      tile('Workers', `${count(totals.active)} active`, [totals.active < totals.workers ? `${count(totals.workers - totals.active)} silent` : '', totals.handoffs ? plural(totals.handoffs, 'handoff') : '', mode === 'peers' ? 'peers' : mode === 'unknown' ? '' : leadership(leader === null ? null : shortName(leader))].filter(Boolean).join(' · ')),
      tile('Largest lag', duration(totals.lag), 'of all shards', { picture: line(1, 'Largest lag over time', 60_000) }),
      tile('Throughput', totals.measures_load && totals.active ? kilobytes(totals.kbps) : '–', !totals.measures_load ? 'this fleet does not write it' : totals.active ? 'of all shards' : 'no worker is active', { picture: totals.measures_load ? line(2, 'Throughput over time', 1) : null }),
      el('div', { class: 'tile' }, el('div', { class: 'words fill' }, el('h2', {}, 'Lags'), parts(totals.lags, LAG_CLASSES, { width: 200, height: 10, label: lags.map(([name, number]) => `${name}: ${number}`).join(', ') }),
        el('p', { class: 'more lags' }, lags.map(([name, number]) => el('span', {}, el('i', { class: `swatch ${LAG_CLASSES[LAG_NAMES.indexOf(name)]}` }), `${count(number)} ${name}`))))),
      kinesisTile(calls.workers ?? null),
      tile('Lease writes', calls.heartbeats === null ? '–' : `${calls.heartbeats >= 10 ? count(Math.round(calls.heartbeats)) : calls.heartbeats}/s`, `by the fleet; this page reads ${calls.table_reads}/s, Kinesis ${calls.kinesis}/s`),
    ];
  });
}

function findingItem(severity, words, remedy, onOpen) {
  return el('li', { class: severity }, mark(severity), el('div', {}, onOpen ? el('button', { type: 'button', class: 'link', onclick: onOpen }, words) : el('p', {}, words), remedy ? el('p', { class: 'remedy' }, remedy) : null));
}

function drawAttention() {
  const { findings, groups, judged } = store.view;
  redraw(byId('attention'), JSON.stringify([findings, groups, judged]), () => {
    const items = findings.map((each) => findingItem(each.severity, each.text, each.remedy, null));
    for (const group of groups) {
      const words = group.count === 1 ? `${group.example}: ${group.text}` : `${plural(group.count, 'shard')}, such as ${group.example}: ${group.text}`;
      items.push([group.severity, findingItem(group.severity, words, group.remedy, () => search(`code:${group.code}`, 'all'))]);
    }
    const problems = items.map((each) => (Array.isArray(each) ? each[1] : each));
    problems.sort((a, b) => Number(b.className === 'problem') - Number(a.className === 'problem'));
    return problems.length ? problems : [el('li', { class: 'calm' }, judged ? 'Nothing. Every shard moves, or has nothing to do.' : 'The fleet is being watched.')];
  });
  announce(findings, groups);
}

function announce(findings, groups) {
  const now = new Map([...findings.map((each) => [each.text, [1, each]]), ...groups.map((each) => [`${each.code} ${each.severity}`, [each.count, each]])]);
  const fresh = [...now].filter(([key, [number, each]]) => each.severity === 'problem' && number > (state.groups.get(key) ?? 0));
  const isFirst = state.groups.size === 0 && !state.wasJudged;
  state.groups = new Map([...now].map(([key, [number]]) => [key, number]));
  if (!store.view.judged) return;
  state.wasJudged = true;
  if (fresh.length === 0) return;
  const words = fresh.slice(0, 3).map(([, [number, each]]) => (each.example ? `${plural(number, 'shard')}: ${each.text}` : each.text));
  setText(byId('announce'), `${isFirst ? 'Problems' : 'New problem'}: ${words.join('. ')}`);
}

function drawWorkers() {
  const { workers, shards } = store.view;
  const held = new Map();
  for (const row of Object.values(shards)) if (row.owner !== null && row.state !== 'done') {
    if (!held.has(row.owner)) held.set(row.owner, []);
    held.get(row.owner).push(row);
  }
  const items = Object.entries(workers).map(([key, row]) => ({ key: Number(key), row, shards: held.get(row.name) ?? [], severity: row.active ? '' : 'problem' }));
  setText(byId('workers-note'), count(items.length));
  workerTable.set(items);
}

function drawShards() {
  const rows = Object.entries(store.view.shards);
  const filter = FILTERS.find(([id]) => id === state.filter);
  const items = rows.filter(([, row]) => filter[2](row) && matches(row)).map(([key, row]) => ({ key: Number(key), row, severity: row.severity }));
  setText(byId('shards-note'), items.length === rows.length ? count(rows.length) : `${count(items.length)} of ${count(rows.length)}`);
  const numbers = FILTERS.map(([id, , test]) => [id, rows.filter(([, row]) => test(row)).length]);
  redraw(byId('filters'), JSON.stringify([numbers, state.filter]), () => FILTERS.map(([id, name], i) => el('button', {
    type: 'button', id: `filter-${id}`, 'aria-pressed': id === state.filter ? 'true' : 'false', disabled: numbers[i][1] === 0 && id !== state.filter && id !== 'all' && id !== 'active',
    onclick: () => { state.filter = id; draw(); byId(`filter-${id}`).focus(); },
  }, name, el('span', { class: 'n' }, count(numbers[i][1])))));
  shardTable.set(items);
}

function drawFamilies() {
  const view = store.view;
  const all = Object.entries(view.shards).map(([key, row]) => [Number(key), row]);
  const streams = [...new Set(all.map(([, row]) => row.stream))];
  if (!streams.includes(state.stream)) state.stream = streams[0] ?? null;
  const choice = byId('family-stream');
  choice.hidden = streams.length < 2;
  redraw(choice, JSON.stringify(streams), () => streams.map((name) => el('option', { value: name ?? '' }, name ?? '')));
  const rows = all.filter(([, row]) => row.stream === state.stream);
  const box = byId('family');
  const width = Math.max(200, box.clientWidth - 24);
  const { text } = describe(rows);
  setText(byId('family-note'), rows.length ? text : '');
  const signature = `${width} ${state.selected} ${rows.map(([key, row]) => `${key}${row.state}${row.severity}${row.place}`).join()}`;
  redraw(box, signature, () => (rows.length ? [drawFamily(rows, { width, selected: state.selected, onSelect: select, label: `Families of ${plural(rows.length, 'shard')}: ${text}. The table below lists them.` })] : []));
  const shown = ['read', 'waiting', 'done', 'trimmed', 'free', 'silent', 'unleased'].filter((name) => rows.some(([, row]) => row.state === name));
  for (const severity of ['notice', 'problem']) if (rows.some(([, row]) => row.state === 'read' && row.severity === severity)) shown.push(severity);
  redraw(byId('legend'), shown.join(), () => shown.map((name) => el('span', {}, el('i', { class: `swatch ${name}` }), STATE_NAMES[name] ?? name)));
}

function drawChanges() {
  const { changes } = store.view;
  redraw(byId('changes'), JSON.stringify(changes), () => (changes.length ? changes.map((change) => el('li', {}, el('time', {}, clock(change.at)), el('span', { title: change.shard ?? '' }, change.shard ? `${shortId(change.shard)}: ${change.text}` : change.text))) : [el('li', { class: 'calm' }, 'None since this page was opened.')]));
}

let isPlanned = false;
export function draw() {
  if (isPlanned) return;
  isPlanned = true;
  requestAnimationFrame(() => {
    isPlanned = false;
    if (!store.view) return;
    drawHead();
    drawStatus();
    drawTiles();
    drawAttention();
    drawShards();
    drawWorkers();
    drawChanges();
    drawFamilies();
    drawDetail();
    document.body.dataset.drawn = String(store.view.at);
  });
}

function listen() {
  const source = new EventSource('/api/events');
  source.addEventListener('view', (event) => { store.connected = true; setView(JSON.parse(event.data)); draw(); });
  source.addEventListener('change', (event) => { store.connected = true; applyChange(JSON.parse(event.data)); draw(); });
  source.onopen = () => { store.connected = true; drawStatus(); };
  source.onerror = () => {
    store.connected = false;
    drawStatus();
    // A browser does not repeat a request that was refused, for example while too many pages are open.
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, 5000);
  };
}

byId('search').addEventListener('input', (event) => search(event.target.value));
byId('family-stream').addEventListener('change', (event) => { state.stream = event.target.value || null; draw(); });
document.addEventListener('keydown', (event) => {
  const isTyping = ['INPUT', 'SELECT', 'TEXTAREA'].includes(document.activeElement?.tagName);
  if (event.key === 'Escape' && state.selected !== null) closeDetail();
  else if (event.key === 'Escape' && document.activeElement === byId('search')) search('');
  else if (event.key === '/' && !isTyping) { event.preventDefault(); byId('search').focus(); }
});
new ResizeObserver(() => draw()).observe(byId('family'));
setInterval(drawStatus, 1000);
startTheme(byId('theme'));
fetch('/api/source').then((response) => response.json()).then((source) => {
  store.live = source.live;
  if (source.live) listen();
  else startReplay(source.times, draw);
});
