// Everything about one shard.

import { sparkline } from './charts.js';
import { el, mark, redraw } from './dom.js';
import { STATE_NAMES } from './family.js';
import { clock, duration, kilobytes } from './format.js';
import { age, rate } from './shard_columns.js';
import { store, wantSeries } from './store.js';

export function showDetail(box, number, actions) {
  const row = number === null ? undefined : store.view.shards[number];
  box.hidden = row === undefined;
  box.parentElement.classList.toggle('has-detail', row !== undefined);
  if (row === undefined) return;
  if (!store.series.has(number)) wantSeries([number], actions.redraw); // by then another shard may be selected, or none
  const points = store.series.get(number) ?? [];
  redraw(box, JSON.stringify([number, row, store.view.at, points.length]), () => {
    const focused = box.contains(document.activeElement) && document.activeElement.id;
    if (focused) queueMicrotask(() => document.getElementById(focused)?.focus());
    return content(number, row, points, actions);
  });
}

function content(number, row, points, { select, close }) {
  const shards = store.view.shards;
  const children = Object.entries(shards).filter(([, each]) => each.parents.includes(number)).map(([key]) => Number(key));
  const link = (key) => el('button', { type: 'button', class: 'link mono', id: `go-${key}`, onclick: () => select(key) }, `${shards[key]?.shard ?? '?'} (${STATE_NAMES[shards[key]?.state] ?? '?'})`);
  const links = (keys) => (keys.length ? keys.map((key) => el('div', {}, link(key))) : ['–']);
  const fact = (name, ...value) => [el('dt', {}, name), el('dd', {}, ...value)];
  return [
    el('div', { class: 'head' }, el('h2', { id: 'detail-title', class: 'mono' }, row.shard), el('span', { class: 'space' }), el('button', { type: 'button', class: 'plain', id: 'detail-close', 'aria-label': 'Close', onclick: close }, '✕')),
    el('ul', { class: 'findings' }, row.findings.length ? row.findings.map((each) => el('li', { class: each.severity }, mark(each.severity), el('div', {}, el('p', {}, each.text), each.remedy ? el('p', { class: 'remedy' }, each.remedy) : null))) : el('li', { class: 'calm' }, store.view.judged ? 'Nothing to report.' : 'It is being watched.')),
    chart('Lag', duration(row.lag), points.map(([at, lag]) => [at, lag]), 60_000, duration),
    chart('Throughput', row.kbps === null ? rate(row) : kilobytes(row.kbps), points.map(([at, , kbps]) => [at, kbps]), 1, kilobytes),
    el('dl', {}, fact('State', row.next ? 'handing over' : STATE_NAMES[row.state] ?? row.state), row.stream ? fact('Stream', row.stream) : [],
      fact('Owner', row.owner ?? '–'), row.next ? fact('Next owner', row.next) : [],
      fact('Checkpoint', el('span', { class: 'mono' }, row.checkpoint ?? '–')), fact('It has not moved for', age(row)),
      row.batch ? fact('Batch in progress', `${row.batch.words}: pinned, not in the checkpoint yet.${row.batch.fixed ? ' If its reader dies before it is complete, exactly the same records are delivered again.' : ''}`) : [],
      fact('New lease sessions', typeof row.sessions === 'number' ? `${row.sessions} since ${clock(store.view.began)}` : '–'),
      fact('Forced changes of owner', row.moves === null ? '–' : `${row.moves} since the checkpoint`), fact('Hash keys', `${(row.place[2] * 100).toFixed(3)} % to ${(row.place[3] * 100).toFixed(3)} %`),
      fact('Parents', ...links(row.parents)), fact('Children', ...links(children))),
  ];
}

function chart(title, value, points, floor, format) {
  const known = points.filter(([, each]) => each !== null);
  const top = Math.max(0, ...known.map(([, each]) => each));
  const now = store.view.at / 1000;
  const from = known.length ? Math.min(known[0][0], now - 60) : now;
  return el('figure', {}, el('figcaption', {}, title, el('b', {}, value)),
    known.length ? [sparkline(points, { width: 420, height: 70, now, floor, label: `${title} over time, now ${value}`, seconds: 100_000 }), el('div', { class: 'axis' }, el('span', {}, clock(from * 1000)), el('span', {}, `highest ${format(top)}`), el('span', {}, clock(now * 1000)))] : el('p', { class: 'quiet' }, 'not known yet'));
}
