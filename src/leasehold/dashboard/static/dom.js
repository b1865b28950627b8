// Builds elements. Text from rows is only ever set as text: nothing here parses markup.

const SVG = 'http://www.w3.org/2000/svg';

export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? '' : String(value));
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined && child !== '') element.append(child);
  }
  return element;
}

export function byId(id) {
  return document.getElementById(id);
}

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Replaces the content only if the signature has changed, so that an unchanged part keeps focus and selection.
export function redraw(element, signature, make) {
  if (element.signature === signature) return;
  element.signature = signature;
  element.replaceChildren(...[make()].flat());
}

const MARKS = { problem: '!', notice: '?', ok: '' };
const NAMES = { problem: 'Problem', notice: 'Notice', ok: 'No problem' };

export function mark(severity) {
  const text = MARKS[severity] ?? '';
  return el('span', { class: `mark ${severity}`, role: 'img', 'aria-label': NAMES[severity] ?? severity, title: NAMES[severity] }, text);
}
