// Small charts as SVG: a line over time, a bar of parts.

import { svg } from './dom.js';

// `points` are [seconds, value or null], oldest first. The last one lasts until `now`. Where a value is null, the line has a gap.
export function sparkline(points, { width, height, now, floor, label, area = true, seconds = 600 }) {
  const known = points.filter(([, value]) => value !== null);
  const picture = svg('svg', { class: 'spark', viewBox: `0 0 ${width} ${height}`, width, height, role: 'img', 'aria-label': label, preserveAspectRatio: 'none' });
  if (known.length === 0) return picture;
  const from = Math.max(known[0][0], now - seconds);
  const start = now - Math.max(60, now - from);
  const top = Math.max(floor, ...known.map(([, value]) => value)) || 1;
  const x = (at) => ((Math.max(at, start) - start) / (now - start)) * (width - 2) + 1;
  const y = (value) => height - 2 - (value / top) * (height - 4);
  const runs = withoutGaps([...points, [now, points[points.length - 1][1]]]).map((run) => run.map(([at, value]) => [x(at), y(value)]));
  const lines = runs.map((spots) => spots.map(([a, b], i) => `${i ? 'L' : 'M'}${a.toFixed(1)} ${b.toFixed(1)}`).join(''));
  const areas = runs.map((spots, i) => `${lines[i]}L${spots[spots.length - 1][0].toFixed(1)} ${height}L${spots[0][0].toFixed(1)} ${height}Z`);
  if (area) picture.append(svg('path', { class: 'area', d: areas.join('') }));
  picture.append(svg('path', { class: 'line', d: lines.join('') }));
  return picture;
}

// The runs of points with values. A value lasts until the next point, also if that has none.
function withoutGaps(points) {
  const runs = [];
  let run = null;
  for (const [at, value] of points) {
    if (value !== null) {
      if (run === null) runs.push(run = []);
      run.push([at, value]);
    } else if (run !== null) {
      run.push([at, run[run.length - 1][1]]);
      run = null;
    }
  }
  return runs;
}

export function parts(counts, classes, { width, height, label }) {
  const total = counts.reduce((a, b) => a + b, 0);
  const picture = svg('svg', { class: 'parts', viewBox: `0 0 ${width} ${height}`, width: '100%', height, role: 'img', 'aria-label': label, preserveAspectRatio: 'none' });
  let x = 0;
  counts.forEach((number, i) => {
    if (number === 0 || total === 0) return;
    const share = (number / total) * width;
    picture.append(svg('rect', { x: x.toFixed(2), y: 0, width: Math.max(share - 1, 0.7).toFixed(2), height, class: classes[i] }));
    x += share;
  });
  return picture;
}
