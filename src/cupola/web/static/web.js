'use strict';
// The form: show what applies. A hidden field is not sent.
for (const form of document.querySelectorAll('[data-plan]')) {
  const fields = [...form.querySelectorAll('.field')];
  const brings = JSON.parse(form.dataset.brings);
  const typed = box => (!box.hidden && box.querySelector('input,select').value) || '';
  // What comes with another field's value, such as a recipe's own mechanism: its settings apply, too.
  const brought = key => Object.entries(brings).map(([by, values]) => (values[said(by)] || {})[key]).find(v => v);
  const said = key => {
    const box = fields.find(f => f.dataset.key === key);
    return box ? typed(box) || (!(key in brings) && brought(key)) || box.dataset.default : '';
  };
  const show = () => fields.forEach(box => {
    const when = JSON.parse(box.dataset.when);
    const applies = Object.entries(when).every(([rule, listed]) =>
      listed.includes(said(rule.replace('!', ''))) !== rule.startsWith('!'));
    const input = box.querySelector('input,select');
    box.hidden = !applies && !box.classList.contains('wrong');
    input.disabled = box.hidden;
    const group = box.closest('section');
    group.hidden = ![...group.querySelectorAll('.field')].some(f => !f.hidden);
  });
  form.addEventListener('input', show);
  show();
}
for (const a of document.querySelectorAll('[data-back]'))
  if (history.length > 1) a.addEventListener('click', e => { e.preventDefault(); history.back(); });

// What a plan will send and spend: look until it is known.
for (const p of document.querySelectorAll('[data-foreseen]')) {
  const look = () => fetch(p.dataset.foreseen).then(r => r.json()).then(
    a => a.known ? location.reload() : setTimeout(look, 1500), () => setTimeout(look, 5000));
  setTimeout(look, 1500);
}

// A site's own page: follow what happens beside it, and load anew when something is to be done.
for (const box of document.querySelectorAll('[data-state]')) {
  const look = () => fetch(box.dataset.state).then(r => r.json()).then(now => {
    // Not reload: a page that answers a form would send it again.
    if (now.stage !== box.dataset.stage) return location.assign(box.dataset.here);
    document.getElementById('phase').textContent = now.text;
    if (now.of) document.getElementById('bar').value = now.done / now.of;
    setTimeout(look, 1000);
  }, () => setTimeout(look, 3000));
  setTimeout(look, 500);
}

// The live page.
const live = document.getElementById('live');
if (live) {
  const NS = 'http://www.w3.org/2000/svg', rounds = [], at = id => document.getElementById(id);
  const course = JSON.parse(live.dataset.course || '[]'), planned = +live.dataset.rounds;
  const el = (name, set, text) => {
    const e = document.createElementNS(NS, name);
    for (const k in set) e.setAttribute(k, set[k]);
    if (text !== undefined) e.textContent = text;
    return e;
  };
  const short = v => Math.abs(v) >= 1e9 ? (v / 1e9).toPrecision(3) + ' G' : Math.abs(v) >= 1e6
    ? (v / 1e6).toPrecision(3) + ' M' : Math.abs(v) >= 1e4 ? (v / 1e3).toPrecision(3) + ' k' : +v.toPrecision(3);
  const draw = (title, points, colour) => {
    const box = document.createElement('div'), h = document.createElement('h3');
    h.textContent = title + (points.length ? ': ' + short(points[points.length - 1][1]) : '');
    box.append(h);
    if (points.length < 2) return box;
    const svg = el('svg', {viewBox: '0 0 460 200', role: 'img', 'aria-label': title + ' by round'});
    const xs = points.map(p => p[0]), ys = points.map(p => p[1]);
    const x0 = 0, x1 = Math.max(planned, ...xs), lo = Math.min(...ys), hi = Math.max(...ys);
    const X = x => 58 + (x - x0) / (x1 - x0 || 1) * 390, Y = y => 165 - (y - lo) / (hi - lo || 1) * 145;
    for (const v of [lo, (lo + hi) / 2, hi]) {
      svg.append(el('path', {class: 'grid', d: `M58 ${Y(v)}H448`}),
        el('text', {class: 'tick end', x: 52, y: Y(v) + 4}, short(v)));
    }
    for (const v of [x0, x1]) svg.append(el('text', {class: 'tick mid', x: X(v), y: 184}, short(v)));
    svg.append(el('text', {class: 'axis mid', x: 250, y: 198}, 'round'));
    svg.append(el('path', {class: 'line s' + colour, d: 'M' + points.map(p => X(p[0]).toFixed(1) + ' ' + Y(p[1]).toFixed(1)).join('L')}));
    const chart = document.createElement('div'); chart.className = 'chart'; chart.append(svg); box.append(chart);
    return box;
  };
  const redraw = () => {
    const names = [...new Set(rounds.flatMap(r => Object.keys(r.curves)))];
    const take = name => rounds.filter(r => name in r.curves).map(r => [r.round, r.curves[name]]);
    const last = rounds.length ? rounds[rounds.length - 1].round : 0;
    const spent = (course.length ? [[0, 0], ...course] : []).map(([share, eps]) => [share * planned, eps]).filter(p => p[0] <= last + .5 && p[1] !== null);
    const all = [...names.map((name, i) => [name, take(name), i % 8]), ['Epsilon (foreseen)', spent, 3]];
    at('drawn').hidden = !rounds.length;
    at('curves').replaceChildren(...all.filter(c => c[1].length).map(c => draw(...c)));
  };
  const time = s => s < 90 ? Math.round(s) + ' s' : s < 5400 ? Math.round(s / 60) + ' min' : (s / 3600).toFixed(1) + ' h';
  const source = new EventSource(live.dataset.stream);
  source.onmessage = message => {
    const news = JSON.parse(message.data);
    at('status').textContent = news.status;
    for (const r of news.rounds) {
      while (rounds.length && rounds[rounds.length - 1].round >= r.round) rounds.pop();
      rounds.push(r);
    }
    if (news.rounds.length) redraw();
    for (const e of news.events) {
      const many = n => n.toLocaleString('en');
      at('phase').textContent = e.of ? `${e.phase}: ${many(e.done)} of ${many(e.of)}` : e.phase;
      at('bar').value = e.of ? e.done / e.of : 0;
      at('left').textContent = e.left !== null && e.done < e.of
        ? 'about ' + time(e.left) + ' left' + (e.last === false ? ' in this step' : '') : '';
      const log = at('log'), end = log.scrollTop + log.clientHeight >= log.scrollHeight - 4;
      log.textContent += new Date(e.time * 1000).toISOString().slice(11, 19) + ' ' + at('phase').textContent + '\n';
      if (end) log.scrollTop = log.scrollHeight;
    }
    at('sites').replaceChildren(...news.sites.map(s => {
      const row = document.createElement('tr');
      ['site', 'state', 'last'].forEach((k, i) => {
        const cell = document.createElement(i ? 'td' : 'th');
        cell.textContent = s[k];
        if (k === 'state') cell.className = 'state-' + s[k];
        row.append(cell);
      });
      return row;
    }));
    if (news.over) { source.close(); if (live.dataset.live === 'yes') location.reload(); }
  };
}
