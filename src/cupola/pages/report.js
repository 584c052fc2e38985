for (const box of document.querySelectorAll('.tabbed')) {
  const panels = [...box.querySelectorAll('.panel')], bar = document.createElement('div');
  bar.className = 'tabs'; bar.setAttribute('role', 'tablist');
  const show = k => { panels.forEach((p, i) => p.hidden = i !== k);
    [...bar.children].forEach((b, i) => b.setAttribute('aria-selected', i === k)); };
  panels.forEach((p, i) => { const b = document.createElement('button');
    b.type = 'button'; b.setAttribute('role', 'tab'); b.textContent = p.dataset.tab;
    b.onclick = () => show(i); bar.append(b); });
  box.prepend(bar); show(0);
}
const NS = document.createElementNS ? document.querySelector('svg').namespaceURI : '';
for (const svg of document.querySelectorAll('svg[data-lines]')) {
  const data = JSON.parse(svg.dataset.lines), box = svg.parentNode, g = svg.querySelector('.hover');
  const off = new Set(), tip = document.createElement('div');
  tip.className = 'tip'; tip.hidden = true; box.append(tip);
  const lines = svg.querySelectorAll('.line'), bands = svg.querySelectorAll('.band');
  let keys = box.nextElementSibling;
  if (keys && keys.classList.contains('chart')) keys = keys.nextElementSibling;
  if (keys && keys.className === 'legend') keys.addEventListener('click', e => {
    const key = e.target.closest('button'); if (!key) return;
    const i = +key.dataset.key, hide = !off.has(i); hide ? off.add(i) : off.delete(i);
    key.setAttribute('aria-pressed', !hide);
    lines[i].style.display = hide ? 'none' : '';
    if (bands.length === lines.length) bands[i].style.display = hide ? 'none' : ''; });
  const el = (name, set) => { const e = document.createElementNS(NS, name);
    for (const k in set) e.setAttribute(k, set[k]); g.append(e); };
  const row = (colour, words) => { const d = document.createElement('div');
    const i = document.createElement('i'); i.className = 'b' + colour;
    d.append(i, words); return d; };
  svg.addEventListener('pointermove', e => {
    const at = svg.getBoundingClientRect(), w = svg.viewBox.baseVal.width;
    const px = (e.clientX - at.left) * w / at.width;
    const far = p => Math.abs(p[0] - px);
    g.textContent = ''; tip.textContent = '';
    let near = null; const hits = [];
    data.s.forEach((s, i) => { if (off.has(i) || !s.p.length) return;
      let best = s.p[0]; for (const p of s.p) if (far(p) < far(best)) best = p;
      if (!near || far(best) < far(near)) near = best;
      if (px > s.p[0][0] - 12 && px < s.p[s.p.length - 1][0] + 12) hits.push([s, best]); });
    if (!near) { tip.hidden = true; return; }
    el('path', {d: `M${near[0]} 12V${svg.viewBox.baseVal.height - 40}`});
    const head = document.createElement('b');
    head.textContent = `${data.x} ${near[2]} ${data.xu}`; tip.append(head);
    hits.sort((a, b) => a[1][1] - b[1][1]).slice(0, 9).forEach(([s, p]) => {
      el('circle', {cx: p[0], cy: p[1], r: 4, class: 'f' + s.c});
      tip.append(row(s.c, `${s.n}: ${p[3]} ${data.yu}`)); });
    tip.hidden = false;
    const x = near[0] * at.width / w, left = x + 14 + tip.offsetWidth > at.width;
    tip.style.left = (left ? Math.max(0, x - 14 - tip.offsetWidth) : x + 14) + 'px';
    tip.style.top = '8px'; });
  svg.addEventListener('pointerleave', () => { tip.hidden = true; g.textContent = ''; });
}
