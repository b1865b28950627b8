// Plays a recording back: each position of the slider is one recorded view.

import { byId, setText } from './dom.js';
import { date } from './format.js';
import { setView, store } from './store.js';

export function startReplay(times, draw) {
  const slider = byId('slider');
  const play = byId('play');
  let timer = null;
  let wanted = 0;
  byId('replay').hidden = false;
  slider.max = String(times.length - 1);

  async function show(frame) {
    wanted = frame;
    slider.value = String(frame);
    slider.setAttribute('aria-valuetext', date(times[frame]));
    setText(byId('moment'), `${date(times[frame])} · ${frame + 1} of ${times.length}`);
    const response = await fetch(`/api/view?frame=${frame}`);
    if (!response.ok) return;
    const view = await response.json();
    if (frame !== wanted) return;
    store.frame = frame;
    setView(view);
    draw();
  }

  function stop() {
    clearTimeout(timer);
    timer = null;
    setText(play, 'Play');
  }

  function next() {
    const frame = Number(slider.value);
    if (frame >= times.length - 1) {
      stop();
      return;
    }
    const pause = Math.max(80, (times[frame + 1] - times[frame]) / Number(byId('speed').value));
    timer = setTimeout(async () => { await show(frame + 1); if (timer !== null) next(); }, pause);
  }

  slider.addEventListener('input', () => show(Number(slider.value)));
  play.addEventListener('click', () => {
    if (timer !== null) stop();
    else {
      setText(play, 'Pause');
      if (Number(slider.value) >= times.length - 1) slider.value = '0';
      next();
    }
  });
  show(0);
}
