"use strict";
// The limits of the charts and the numbers on their axes.  Limits are finite and every loop is bounded, whatever the data are.
// uPlot's own axes add up increments: a logarithmic axis that begins at 9.92e-9 never ends, nor does one that begins at 0.
const Scales = (() => {
  const LEAST = 1e-300, MOST = 1e300, SPLITS = 60;
  const between = (v, lo, hi) => Math.max(lo, Math.min(hi, v));
  const linear = (u, lo, hi) => {
    if (lo == null || hi == null) return [0, 1];
    lo = between(lo, -MOST, MOST); hi = between(hi, -MOST, MOST);
    const least = Math.max(Math.abs(lo), Math.abs(hi)) * 1e-9 || 1, pad = Math.max((hi - lo) * 0.08, hi - lo < least ? least * 1e8 : 0);
    return [lo >= 0 && lo < (hi - lo) * 0.12 ? 0 : lo - pad, hi + pad];
  };
  const fromZero = (u, lo, hi) => [0, between(hi * 1.08, 0, MOST) || 1];
  const logarithmic = (u, lo, hi) => (lo > 0 && hi >= lo ? [between(lo, LEAST, MOST) * 0.8, between(hi, LEAST, MOST) * 1.25] : [0.1, 1]);
  const steps = (u, lo, hi) => { // of the horizontal axis: without a margin
    if (lo == null || hi == null) return [0, 1];
    lo = between(lo, -MOST, MOST); hi = between(hi, -MOST, MOST);
    const least = Math.max(Math.abs(lo), Math.abs(hi)) * 1e-9;
    return hi - lo > least ? [lo, hi] : [lo - Math.max(0.5, least), hi + Math.max(0.5, least)];
  };
  const room = (u, axis, space) => Math.max(2, Math.floor((u.axes[axis].side % 2 ? u.bbox.height : u.bbox.width) / devicePixelRatio / space));
  const evenly = (space) => (u, axis, lo, hi) => { // multiples of 1, 2 or 5 times a power of ten
    const rough = (hi - lo) / room(u, axis, space), ten = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((k) => Number((k * ten).toPrecision(1))).find((s) => s >= rough * 0.999);
    const first = Math.ceil(lo / step), count = Math.floor(hi / step) - first;
    if (!(count >= 0)) return [lo, hi];
    return Array.from({ length: Math.min(SPLITS, count + 1) }, (_, k) => Number(((first + k) * step).toPrecision(15)) || 0);
  };
  const powers = (space) => (u, axis, lo, hi) => { // powers of ten, and their multiples where there is room
    const first = Math.floor(Math.log10(lo)), last = Math.ceil(Math.log10(hi)), every = Math.ceil((last - first) / room(u, axis, space));
    const found = [];
    for (let e = Math.ceil(first / every) * every; e <= last; e += every)
      for (let m = 1; m < (every > 1 ? 2 : 10); m++) found.push(Number(`${m}e${e}`));
    const inside = found.filter((v) => v >= lo && v <= hi);
    return inside.length > 1 ? inside : evenly(space)(u, axis, lo, hi);
  };
  const written = (u, splits) => { // values of a logarithmic axis that are written: powers of ten; 2 and 5 or all if these are few
    const lead = splits.map((v) => Number(v.toExponential(9).slice(0, 11)));
    const few = (allowed) => lead.filter((m) => allowed.includes(m)).length < 3;
    const shown = !few([1]) ? [1] : !few([1, 2, 5]) || splits.length > 12 ? [1, 2, 5] : null;
    const found = exact(u, splits);
    return splits.map((v, i) => (!shown || shown.includes(lead[i]) ? found[i] : ""));
  };
  const text = (v, digits) => {
    if (v === 0) return "0";
    const plain = Math.abs(v) >= 1e-3 && Math.abs(v) < 1e5;
    return plain ? String(Number(v.toPrecision(digits))) : v.toExponential(digits - 1).replace(/\.?0+e/, "e").replace("e+", "e");
  };
  const exact = (u, splits) => { // with as many digits as the values have
    for (let digits = 3; ; digits++) {
      const found = splits.map((v) => text(v, digits));
      if (digits > 14 || found.every((t, i) => Math.abs(t - splits[i]) <= 1e-9 * Math.abs(splits[i]))) return found;
    }
  };
  const any = (u, axis, lo, hi) => [Math.max(5, hi - lo)]; // an increment that uPlot accepts; it draws no axis if it finds none
  const pen = document.createElement("canvas").getContext("2d");
  const width = (font) => (u, values) => { // of the labels of a vertical axis
    pen.font = font;
    return Math.max(40, 16 + Math.ceil(Math.max(0, ...(values || []).map((v) => pen.measureText(v).width))));
  };
  return { any, exact, linear, fromZero, logarithmic, steps, evenly, powers, written, width };
})();
