// Draws the families of shards: hash keys from left to right, generations from top to bottom.
// A shard begins below its parents and ends where its children begin, so splits and merges show as divisions.

import { svg } from './dom.js';
import { plural } from './format.js';

const GAP = 5;
const SINGLE_MAX = 1500;
const ORDER = ['silent', 'free', 'unleased', 'waiting', 'read', 'done', 'trimmed'];
export const STATE_NAMES = {
  read: 'read', waiting: 'waiting', done: 'done', trimmed: 'trimmed', free: 'free', silent: 'silent', unleased: 'no lease',
};

export function colour(row) {
  return row.severity === 'ok' ? row.state : `${row.state} ${row.severity}`;
}

export function describe(rows) {
  const byNumber = new Map(rows);
  const children = new Map();
  let merges = 0;
  for (const [, row] of rows) {
    const known = row.parents.filter((each) => byNumber.has(each));
    if (known.length > 1) merges += 1;
    else if (known.length === 1) children.set(known[0], (children.get(known[0]) ?? 0) + 1);
  }
  const splits = [...children.values()].filter((number) => number > 1).length;
  const generations = rows.reduce((most, [, row]) => Math.max(most, row.place[0] + 1), 1);
  const reshards = [splits && plural(splits, 'split'), merges && plural(merges, 'merge')].filter(Boolean).join(', ');
  return { generations, text: `${plural(generations, 'generation')}${reshards ? ` · ${reshards}` : ''}` };
}

export function drawFamily(rows, { width, selected, onSelect, label }) {
  const columns = rows.reduce((most, [, row]) => Math.max(most, row.place[1]), 1);
  const rowHeight = Math.max(10, Math.min(columns === 1 ? 44 : 34, 190 / columns));
  const height = columns * rowHeight;
  const picture = svg('svg', { viewBox: `0 0 ${width} ${height}`, width, height, role: 'img', 'aria-label': label });
  const shapes = rows.length > SINGLE_MAX ? bins(rows, width, columns) : rows.map(([number, row]) => shape(number, row, width));
  for (const each of shapes) picture.append(block(each, rowHeight, columns, selected));
  picture.addEventListener('click', (event) => {
    const number = event.target.closest('[data-shard]')?.dataset.shard;
    if (number) onSelect(Number(number));
  });
  return picture;
}

function shape(number, row, width) {
  const [generation, until, low, high] = row.place;
  return { number, row, generation, until, x: low * width, width: (high - low) * width };
}

// Too many shards for one shape each: neighbours share a bin, which shows the worst of them.
function bins(rows, width, columns) {
  const size = 3;
  const found = new Map();
  for (const [number, row] of rows) {
    const [generation, until, low, high] = row.place;
    const first = Math.floor((low * width) / size);
    const last = Math.max(first, Math.ceil((high * width) / size) - 1);
    for (let bin = first; bin <= last; bin += 1) {
      for (let column = generation; column < Math.min(until, columns); column += 1) {
        const key = `${bin} ${column}`;
        const known = found.get(key);
        if (!known || rank(row) < rank(known.row)) found.set(key, { number, row, generation: column, until: column + 1, x: bin * size, width: size });
      }
    }
  }
  return [...found.values()];
}

function rank(row) {
  return ['problem', 'notice', 'ok'].indexOf(row.severity) * 10 + ORDER.indexOf(row.state);
}

function block({ number, row, generation, until, x, width }, rowHeight, columns, selected) {
  const inner = width > 6 ? width - 2 : width > 2 ? width - 0.6 : width;
  const y = generation * rowHeight;
  const gap = columns > 1 ? Math.min(GAP, rowHeight / 4) : 0;
  const height = (until - generation) * rowHeight - (until < columns ? gap : 0);
  const group = svg('g', { class: `block ${colour(row)}${number === selected ? ' selected' : ''}`, 'data-shard': number });
  group.append(svg('title', {}, `${row.shard}: ${STATE_NAMES[row.state] ?? row.state}${row.owner ? `, ${row.owner}` : ''}`));
  group.append(svg('rect', { x: x.toFixed(2), y: y.toFixed(2), width: Math.max(inner, 0.5).toFixed(2), height: height.toFixed(2), rx: inner > 8 ? 2 : 0 }));
  const text = shortId(row.shard);
  if (inner > text.length * 7 + 8 && height >= 12) {
    group.append(svg('text', { x: (x + inner / 2).toFixed(1), y: (y + height / 2 + 4).toFixed(1) }, text));
  }
  return group;
}

export function shortId(shard) {
  const found = /(?:^|:)shardId-0*(\d+)$/.exec(shard);
  return found ? `#${found[1]}` : shard.length > 12 ? `${shard.slice(0, 11)}…` : shard;
}
