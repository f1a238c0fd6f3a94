"use strict";
// Shared by all parts of the page: elements, numbers, colours, the tip.
const $ = (selector, root = document) => root.querySelector(selector);
const make = (name, attributes = {}, ...children) => {
  const e = document.createElement(name);
  for (const k in attributes) e.setAttribute(k, attributes[k]);
  e.append(...children);
  return e;
};
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const VIRIDIS = [[68, 1, 84], [72, 40, 120], [62, 74, 137], [49, 104, 142], [38, 130, 142], [31, 158, 137], [53, 183, 121], [110, 206, 88], [181, 222, 43], [253, 231, 37]];
const ramp = (t) => {
  t = Math.max(0, Math.min(1, t)) * (VIRIDIS.length - 1);
  const i = Math.min(VIRIDIS.length - 2, Math.floor(t)), f = t - i;
  return VIRIDIS[i].map((v, k) => Math.round(v + (VIRIDIS[i + 1][k] - v) * f));
};
const RAMP = "linear-gradient(90deg," + VIRIDIS.map((c) => `rgb(${c})`).join() + ")";
const short = (v) => {
  if (v == null || Number.isNaN(v)) return "–";
  if (v === 0) return "0";
  const size = Math.abs(v);
  return size < 1e-3 || size >= 1e5 ? v.toExponential(1).replace("e+", "e").replace(".0e", "e") : String(Number(v.toPrecision(3)));
};
const bytes = (b) => (b >= 1e9 ? (b / 1e9).toPrecision(3) + " GB" : b >= 1e6 ? (b / 1e6).toPrecision(3) + " MB" : b >= 1e3 ? (b / 1e3).toPrecision(3) + " kB" : b ? b + " B" : "0");
const micros = (u) => (u >= 1e6 ? (u / 1e6).toPrecision(3) + " s" : u >= 1e3 ? (u / 1e3).toPrecision(3) + " ms" : u.toPrecision(3) + " µs");
function tip(event, text) {
  const t = $("#tip");
  t.hidden = !text;
  if (!text) return;
  t.textContent = text;
  const x = event.clientX + 15, y = event.clientY + 15;
  t.style.left = Math.max(6, x + t.offsetWidth > innerWidth - 8 ? event.clientX - t.offsetWidth - 12 : x) + "px";
  t.style.top = Math.max(6, y + t.offsetHeight > innerHeight - 8 ? event.clientY - t.offsetHeight - 12 : y) + "px";
}
const untip = () => tip(null, "");
function sized(canvas, height) { // a canvas with the pixels of the screen, fewer if browsers have no canvas of this height
  const r = devicePixelRatio || 1, w = canvas.clientWidth, tall = Math.min(r, 32000 / height);
  canvas.width = Math.max(1, Math.round(w * r));
  canvas.height = Math.round(height * tall);
  canvas.style.height = height + "px";
  const g = canvas.getContext("2d");
  g.scale(r, tall);
  return [g, w];
}
function range(values) { // the logarithms of the smallest and largest positive number
  let lo = Infinity, hi = -Infinity;
  for (const v of values) if (v > 0 && Number.isFinite(v)) { const l = Math.log10(v); if (l < lo) lo = l; if (l > hi) hi = l; }
  if (!(hi >= lo)) return [-1, 0];
  return hi - lo < 1 ? [hi - 1, hi] : [lo, hi];
}
async function unpacked() {
  const raw = Uint8Array.from(atob($("#data").textContent.trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}
