// A table that has elements only for its visible rows. Rows can be sorted, and are reached by the arrow keys.

import { el } from './dom.js';

const MARGIN = 6;

export class VirtualTable {
  constructor(container, { label, columns, rowHeight, onOpen, onVisible, sort }) {
    Object.assign(this, { container, columns, rowHeight, onOpen, onVisible, sort });
    this.items = [];
    this.rows = [];
    this.activeKey = null;
    this.selectedKey = null;
    this.top = el('tr', { 'aria-hidden': 'true', class: 'spacer' }, el('td', { colspan: columns.length }));
    this.bottom = this.top.cloneNode(true);
    this.body = el('tbody', { onkeydown: (event) => this.onKey(event) }, this.top, this.bottom);
    this.headers = columns.map((column) => this.header(column));
    this.table = el('table', { role: 'grid', 'aria-label': label },
      el('colgroup', {}, columns.map((column) => el('col', { class: `c-${column.id}` }))),
      el('thead', {}, el('tr', { 'aria-rowindex': 1 }, this.headers)), this.body);
    container.append(this.table);
    container.addEventListener('scroll', () => this.render(), { passive: true });
    new ResizeObserver(() => this.render()).observe(container);
  }

  header(column) {
    const cell = el('th', { scope: 'col', class: column.class });
    const name = column.title ? el('span', { title: column.name ?? null }, column.title) : el('span', { class: 'sr' }, column.name);
    cell.append(column.value ? el('button', { type: 'button', class: 'sort', title: column.name ?? null, onclick: () => this.sortBy(column.id) }, name) : name);
    return cell;
  }

  sortBy(id) {
    const column = this.columns.find((each) => each.id === id);
    const down = this.sort.id === id ? !this.sort.down : Boolean(column.down);
    this.sort = { id, down };
    this.set(this.items);
  }

  set(items) {
    const column = this.columns.find((each) => each.id === this.sort.id);
    const sign = this.sort.down ? -1 : 1;
    const decorated = items.map((item) => [column.value(item), item]);
    decorated.sort(([a, x], [b, y]) => {
      if (a !== b) {
        if (a === null) return 1;
        if (b === null) return -1;
        if (Array.isArray(a)) { const order = compareLists(a, b); if (order) return sign * order; } else return sign * (a < b ? -1 : 1);
      }
      return x.key - y.key;
    });
    this.items = decorated.map(([, item]) => item);
    this.columns.forEach((each, i) => {
      if (each.value) this.headers[i].setAttribute('aria-sort', each.id === this.sort.id ? (this.sort.down ? 'descending' : 'ascending') : 'none');
    });
    this.table.setAttribute('aria-rowcount', this.items.length + 1);
    this.container.style.flexBasis = `${this.items.length * this.rowHeight + 32}px`;
    this.render();
  }

  range() {
    const number = Math.ceil((this.container.clientHeight || 400) / this.rowHeight) + 2 * MARGIN;
    // A filter may have removed the rows to which the table was scrolled.
    const first = Math.max(0, Math.min(Math.floor(this.container.scrollTop / this.rowHeight) - MARGIN, this.items.length - number));
    return [first, Math.min(this.items.length, first + number)];
  }

  render() {
    const [first, last] = this.range();
    const hadFocus = this.body.contains(document.activeElement);
    while (this.rows.length < last - first) this.addRow();
    while (this.rows.length > last - first) this.rows.pop().row.remove();
    if (!this.items.some((item) => item.key === this.activeKey)) this.activeKey = this.items[0]?.key ?? null;
    const isActiveShown = this.items.slice(first, last).some((item) => item.key === this.activeKey);
    for (let i = first; i < last; i += 1) this.fill(this.rows[i - first], this.items[i], i, isActiveShown ? this.activeKey : this.items[first].key);
    this.top.firstChild.style.height = `${first * this.rowHeight}px`;
    this.bottom.firstChild.style.height = `${(this.items.length - last) * this.rowHeight}px`;
    if (hadFocus) this.focusActive();
    if (this.onVisible) this.onVisible(this.items.slice(first, last));
  }

  addRow() {
    const entry = { row: el('tr', { class: 'row' }), cells: this.columns.map((column, i) => el(i === this.columns.findIndex((each) => each.isHeader) ? 'th' : 'td', { class: column.class, scope: column.isHeader ? 'row' : null })) };
    entry.row.append(...entry.cells);
    entry.row.addEventListener('click', () => { this.activeKey = entry.key; this.open(); });
    this.rows.push(entry);
    this.body.insertBefore(entry.row, this.bottom);
  }

  fill(entry, item, index, tabKey) {
    entry.key = item.key;
    const row = entry.row;
    row.className = `row ${item.severity ?? ''}${item.key === this.selectedKey ? ' selected' : ''}`;
    row.tabIndex = item.key === tabKey ? 0 : -1;
    row.setAttribute('aria-rowindex', index + 2);
    row.setAttribute('aria-selected', item.key === this.selectedKey);
    this.columns.forEach((column, i) => column.draw(entry.cells[i], item));
  }

  onKey(event) {
    const page = Math.max(1, Math.floor(this.container.clientHeight / this.rowHeight) - 2);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.key in steps) {
      event.preventDefault();
      this.move(steps[event.key]);
    } else if (event.key === 'Enter' || event.key === ' ') {
      event.preventDefault();
      this.open();
    }
  }

  move(step) {
    const now = Math.max(0, this.items.findIndex((item) => item.key === this.activeKey));
    const next = Math.max(0, Math.min(this.items.length - 1, now + step));
    if (this.items.length === 0) return;
    this.activeKey = this.items[next].key;
    this.scrollTo(next);
    this.render();
    this.focusActive();
  }

  scrollTo(index) {
    const head = this.headers[0].offsetHeight;
    const y = index * this.rowHeight;
    const { scrollTop, clientHeight } = this.container;
    if (y < scrollTop) this.container.scrollTop = y;
    else if (y + this.rowHeight > scrollTop + clientHeight - head) this.container.scrollTop = y + this.rowHeight - clientHeight + head;
  }

  focusActive() {
    const entry = this.rows.find((each) => each.key === this.activeKey);
    if (entry && document.activeElement !== entry.row) entry.row.focus({ preventScroll: true });
  }

  open() {
    const item = this.items.find((each) => each.key === this.activeKey);
    if (item && this.onOpen) this.onOpen(item);
  }

  select(key) {
    this.selectedKey = key;
    if (key !== null) this.activeKey = key;
    this.render();
  }
}

function compareLists(a, b) {
  for (let i = 0; i < a.length; i += 1) {
    if (a[i] !== b[i]) return a[i] < b[i] ? -1 : 1;
  }
  return 0;
}
