'use strict';
const cup = document.getElementById('cup');
if (cup) {
  const points = JSON.parse(cup.dataset.points), style = getComputedStyle(document.documentElement);
  const colour = name => style.getPropertyValue(name).trim();
  const finite = points.filter(p => p.epsilon !== null), open = points.filter(p => p.epsilon === null);
  const share = ['accuracy', 'class_accuracy', 'miou', 'auroc'];
  const trace = (list, name, marker) => ({
    type: 'scatter', mode: 'markers+text', name, x: list.map(p => p.bytes), y: list.map(p => p.value),
    text: list.map(p => p.name), textposition: 'top center', cliponaxis: false, marker: {size: 15, line: {width: 1, color: colour('--ink')}, ...marker},
    hovertemplate: list.map(p => `${p.name.replace(/[<>&]/g, '')}<br>${p.metric} %{y:.4g}<br>%{x:.3s}B sent<br>` + (p.epsilon === null ? (p.private ? 'epsilon: only sites know it' : 'not private') : 'epsilon ' + p.epsilon.toPrecision(3)) + '<extra></extra>'),
  });
  const traces = [];
  if (finite.length) traces.push(trace(finite, 'private', {color: finite.map(p => p.epsilon), colorscale: [[0, '#d6e6f5'], [1, '#0b5fa5']], colorbar: {title: {text: 'epsilon'}}, showscale: true}));
  if (open.length) traces.push(trace(open, open.some(p => p.private) ? 'epsilon not known here' : 'not private', {color: colour('--c1'), symbol: 'diamond'}));
  for (const t of traces) t.text = t.text.map(s => s.replace(/[<>&]/g, ''));
  const logs = points.map(p => Math.log10(Math.max(p.bytes, 1)));
  const span = [Math.min(...logs) - .35, Math.max(...logs) + .35];
  const metric = points.length ? points[0].metric : '';
  Plotly.newPlot(cup, traces, {
    margin: {l: 60, r: 20, t: 30, b: 50}, paper_bgcolor: 'rgba(0,0,0,0)', plot_bgcolor: 'rgba(0,0,0,0)',
    font: {color: colour('--ink'), size: 13}, showlegend: traces.length > 1, legend: {orientation: 'h', y: 1.12},
    xaxis: {type: 'log', range: span, title: {text: 'bytes sent, all sites'}, gridcolor: colour('--rule'), tickformat: '.2s', ticksuffix: 'B'},
    yaxis: {title: {text: metric}, gridcolor: colour('--rule'), tickformat: share.includes(metric) ? '.0%' : ''},
  }, {responsive: true, displaylogo: false, modeBarButtonsToRemove: ['sendDataToCloud']});
}
