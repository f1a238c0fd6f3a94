"use strict";
// Curves with uPlot: the loss, the gradient norm, the distributions.
const Charts = (() => {
  let plots = [];
  const tooltip = (names, label = "step", unit = String, value = short) => ({
    hooks: {
      setCursor: (u) => {
        const i = u.cursor.idx;
        if (i == null || u.cursor.left < 0 || !u.over.matches(":hover")) return;
        const box = u.over.getBoundingClientRect();
        const lines = names.map((n, k) => (n && u.data[k + 1][i] != null ? `${n}  ${value(u.data[k + 1][i])}` : null)).filter(Boolean);
        tip({ clientX: box.left + u.cursor.left, clientY: box.top + u.cursor.top }, `${label} ${unit(u.data[0][i])}\n` + lines.join("\n"));
      },
      ready: (u) => u.over.addEventListener("mouseleave", untip),
    },
  });
  function plot(where, height, data, series, { log, names, second, bands, label, unit, value } = {}) {
    const grid = { stroke: css("--faint"), width: 1 }, soft = css("--soft"), font = "12px system-ui, sans-serif";
    const axis = (space, more) => ({ stroke: soft, grid, ticks: { show: false }, gap: 6, font, incrs: Scales.any, splits: Scales.evenly(space), filter: (u, v) => v, ...more });
    const upright = (space, more) => axis(space, { size: Scales.width(font), values: value ? (u, v) => v.map(value) : Scales.exact, ...more });
    const scales = { x: { time: false, range: Scales.steps }, y: log ? { distr: 3, log: 10, range: Scales.logarithmic } : { range: value ? Scales.fromZero : Scales.linear } };
    if (second) scales.r = { range: Scales.fromZero };
    const axes = [axis(70, { size: 30, values: (u, v) => v.map((x) => (unit ? (x ? unit(x) : "0") : String(x))) }), upright(30, log ? { splits: Scales.powers(22), values: Scales.written } : {})];
    if (second) axes.push(upright(30, { scale: "r", side: 1, grid: { show: false } }));
    const u = new uPlot({
      width: where.clientWidth, height, scales, axes, bands, series: [{}, ...series],
      legend: { show: false }, cursor: { ...(unit ? {} : { sync: { key: "adjoint" } }), points: { size: 6 }, drag: { x: true, y: false } },
      plugins: [tooltip(names, label, unit, value)],
    }, data, where);
    plots.push([u, where, height]);
  }
  const logFits = (...rows) => { // every value is positive, and they differ by more than a factor of five
    let lo = Infinity, hi = 0;
    for (const row of rows) for (const v of row) if (v != null) { if (!(v > 0)) return false; lo = Math.min(lo, v); hi = Math.max(hi, v); }
    return hi > 5 * lo;
  };
  const smooth = (row, log) => { // the mean over a window around each step, from sums of all values up to a step
    const half = Math.max(2, Math.round(row.length / 60)), sums = [0], counts = [0];
    row.forEach((v, i) => { sums.push(sums[i] + (v == null ? 0 : log ? Math.log(v) : v)); counts.push(counts[i] + (v != null)); });
    return row.map((_, i) => {
      const from = Math.max(0, i - half), to = Math.min(row.length, i + half + 1), n = counts[to] - counts[from];
      const mean = (sums[to] - sums[from]) / n;
      return n && Number.isFinite(mean) ? (log ? Math.exp(mean) : mean) : null;
    });
  };
  const nearest = (steps, x) => { // the index of the step closest to x, in a sorted list
    let lo = 0, hi = steps.length - 1;
    while (hi - lo > 1) { const middle = (lo + hi) >> 1; if (steps[middle] > x) hi = middle; else lo = middle; }
    return x - steps[lo] <= steps[hi] - x ? lo : hi;
  };
  const legend = (where, items) => where.replaceChildren(...items.map(([name, colour, dash]) => {
    const i = make("i", dash ? { class: "dash" } : {});
    i.style.borderTopColor = colour;
    return make("span", {}, i, name);
  }));
  function loss(D) {
    const s = D.steps;
    if (!s || !s.step.length || !s.loss) return;
    const section = $("#loss");
    section.hidden = false;
    $("h2 small", section).textContent = D.thinned || "";
    const many = s.step.length > 60, a = css("--a"), b = css("--b");
    const data = [s.step, s.loss], names = ["training"], series = [];
    series.push({ stroke: a, width: many ? 0.8 : 1.6, alpha: many ? 0.45 : 1, points: { show: !many && s.step.length < 30, size: 5 } });
    const items = [["training", a]];
    if (many) { data.push(smooth(s.loss, logFits(s.loss))); names.push("smoothed"); series.push({ stroke: a, width: 2.2, points: { show: false } }); }
    if (D.validation && D.validation.step.length) {
      const row = s.step.map(() => null);
      D.validation.step.forEach((x, i) => { row[nearest(s.step, x)] = D.validation.loss[i]; });
      data.push(row); names.push("validation"); items.push(["validation", b]);
      series.push({ stroke: b, width: 2, spanGaps: true, points: { show: D.validation.step.length < 100, size: 6, fill: b } });
    }
    legend($(".legend", section), items);
    plot($(".chart", section), 250, data, series, { log: logFits(...data.slice(1)), names });
  }
  function norm(D) {
    const s = D.steps;
    if (!s || !s.step.length || !s.grad_norm) return;
    const section = $("#norm");
    section.hidden = false;
    const a = css("--a"), b = css("--b"), bad = css("--bad");
    const data = [s.step, s.grad_norm], names = ["gradient norm"], items = [["gradient norm", a]];
    const series = [{ stroke: a, width: 1.1, points: { show: s.step.length < 30, size: 5 } }];
    if (D.clip != null) {
      data.push(s.step.map(() => D.clip)); names.push("clipped at"); items.push([`clipped at ${short(D.clip)}`, bad, true]);
      series.push({ stroke: bad, width: 1.5, dash: [6, 5], points: { show: false } });
    }
    const rate = s.lr && s.lr.some((v) => v != null);
    if (rate) {
      data.push(s.lr); names.push("learning rate"); items.push(["learning rate, right", b]);
      series.push({ stroke: b, width: 1.8, scale: "r", points: { show: false } });
    }
    legend($(".legend", section), items);
    plot($(".chart", section), 250, data, series, { log: logFits(s.grad_norm), names, second: rate });
  }
  const tint = (colour, alpha) => colour + Math.round(alpha * 255).toString(16).padStart(2, "0");
  function fan(where, steps, rows, colour) { // the quantiles 5, 25, 50, 75 and 95 % over the steps
    where.replaceChildren();
    const data = [steps, ...[0, 1, 2, 3, 4].map((q) => rows.map((r) => (r ? r[q] : null)))];
    const all = data.slice(1).flat().filter((v) => v != null && v > 0);
    const log = all.length > 0 && logFits(all);
    const least = all.reduce((m, v) => Math.min(m, v), Infinity); // zeros are drawn at the lower border
    if (log) for (const row of data.slice(1)) row.forEach((v, i) => { if (v != null && !(v > 0)) row[i] = least; });
    const line = (width, alpha) => ({ stroke: colour, width, alpha, points: { show: steps.length < 3, size: 5 } });
    plot(where, 190, data, [line(0.5, 0.4), line(0.5, 0.6), line(2, 1), line(0.5, 0.6), line(0.5, 0.4)], {
      log, names: ["5 %", "25 %", "median", "75 %", "95 %"],
      bands: [{ series: [5, 1], fill: tint(colour, 0.14) }, { series: [4, 2], fill: tint(colour, 0.26) }],
    });
  }
  let chosen = -1;
  function spread(D, which = chosen) {
    const S = D.spread;
    if (!S || !S.step.length) return;
    const section = $("#spread"), select = $("select", section);
    section.hidden = false;
    chosen = which;
    if (!select.options.length) {
      select.append(new Option("all parameters", -1), ...D.parameters.map((p, i) => new Option(`${p}  ${D.shapes[i]}`, i)));
      select.addEventListener("change", () => choose(D, Number(select.value)));
    }
    select.value = which;
    const [w, g, u] = section.querySelectorAll(".chart");
    drop(w); drop(g); drop(u);
    const row = (table) => (which < 0 ? table.all : table.each[which]);
    fan(w, S.step, row(S.weights), css("--a"));
    fan(g, S.step, row(S.gradients), css("--b"));
    const R = D.ratios;
    if (R && R.step.length) {
      if (which < 0) fan(u, R.step, R.quantiles, css("--good"));
      else {
        u.replaceChildren();
        const values = R.rows[which].map((v) => (v > 0 ? v : null));
        plot(u, 190, [R.step, values], [{ stroke: css("--good"), width: 1.4, points: { show: R.step.length < 30, size: 5 } }], { log: logFits(values), names: ["update ÷ weight"] });
      }
    }
  }
  const drop = (where) => { plots = plots.filter(([u, at]) => { if (at === where) u.destroy(); return at !== where; }); where.replaceChildren(); };
  function choose(D, i) {
    spread(D, i);
    document.dispatchEvent(new CustomEvent("chosen", { detail: i }));
  }
  function memory(D) { // bytes of arrays over one step
    const M = D.memory;
    if (!M || M.time.length < 2) return;
    const section = $("#memory"), colour = css("--a");
    section.hidden = false;
    $("h2 small", section).textContent = `arrays of one step: ${bytes(M.peak)} at the peak, held by ${M.holders.map(([name, size]) => `${name} ${bytes(size)}`).join(", ")}`;
    plot($(".chart", section), 170, [M.time, M.bytes], [{ stroke: colour, width: 1.4, fill: tint(colour, 0.15), paths: uPlot.paths.stepped({ align: 1 }), points: { show: false } }], {
      names: ["arrays"], label: "at", unit: micros, value: bytes,
    });
  }
  function all(D) {
    plots.forEach(([u]) => u.destroy());
    plots = [];
    loss(D); norm(D); spread(D); memory(D);
  }
  const resize = () => plots.forEach(([u, where, height]) => { if (u.width !== where.clientWidth) u.setSize({ width: where.clientWidth, height }); });
  addEventListener("resize", resize);
  return { all, choose, resize };
})();

// The heat strip: one row per parameter, one column per recorded step.
const Heat = (() => {
  const ROW = 19;
  let on = -1;
  function draw(D) {
    const G = D.gradients;
    if (!G || !G.step.length || !D.parameters.length) return;
    const section = $("#heat"), canvas = $("canvas", section), names = $(".names", section);
    section.hidden = false;
    const w = G.step.length, h = D.parameters.length;
    if (!names.children.length) {
      D.parameters.forEach((p, i) => {
        const d = make("div", { title: `${p}  ${D.shapes[i]}` }, "\u200e" + p);
        d.addEventListener("click", () => Charts.choose(D, i));
        names.append(d);
      });
      document.addEventListener("chosen", (e) => { on = e.detail; [...names.children].forEach((d, i) => d.classList.toggle("on", i === on)); });
      listen(D, canvas, w, h);
    }
    const [lo, hi] = range(G.rows.flat());
    const image = new ImageData(w, h), empty = css("--faint").match(/\w\w/g).map((x) => parseInt(x, 16)), wrong = css("--bad").match(/\w\w/g).map((x) => parseInt(x, 16));
    G.rows.forEach((row, y) => row.forEach((v, x) => {
      const c = v == null ? wrong : v > 0 ? ramp((Math.log10(v) - lo) / (hi - lo)) : empty;
      image.data.set([c[0], c[1], c[2], 255], 4 * (y * w + x));
    }));
    const plain = make("canvas", { width: w, height: h });
    plain.getContext("2d").putImageData(image, 0, 0);
    const [g, width] = sized(canvas, h * ROW);
    g.imageSmoothingEnabled = false;
    g.drawImage(plain, 0, 0, width, h * ROW);
    g.fillStyle = css("--bg");
    for (let y = 1; y < h; y++) g.fillRect(0, y * ROW - 1, width, 1);
    const [from, bar, to, note] = $(".scale", section).children;
    from.textContent = short(10 ** lo); to.textContent = short(10 ** hi); bar.style.background = RAMP;
    const zero = G.rows.some((r) => r.some((v) => v === 0)), bad = G.rows.some((r) => r.some((v) => v == null));
    note.textContent = [zero ? "grey: zero or none" : "", bad ? "red: not finite" : ""].filter(Boolean).join(" · ");
  }
  function listen(D, canvas, w, h) {
    const G = D.gradients;
    const say = (e, x, y) => tip(e, `${D.parameters[y]}  ${D.shapes[y]}\nstep ${G.step[x]}\ngradient ${short(G.rows[y][x])}` + (D.ratios && D.ratios.rows[y] && D.ratios.rows[y][x] != null ? `\nupdate ÷ weight ${short(D.ratios.rows[y][x])}` : ""));
    const at = (e) => { const b = canvas.getBoundingClientRect(); return [Math.min(w - 1, Math.max(0, Math.floor(((e.clientX - b.left) / b.width) * w))), Math.min(h - 1, Math.max(0, Math.floor((e.clientY - b.top) / ROW)))]; };
    canvas.addEventListener("mousemove", (e) => say(e, ...at(e)));
    canvas.addEventListener("mouseleave", untip);
    canvas.addEventListener("click", (e) => Charts.choose(D, at(e)[1]));
    let x = w - 1, y = 0;
    canvas.addEventListener("keydown", (e) => {
      const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[e.key];
      if (e.key === "Enter") return Charts.choose(D, y);
      if (!move) return;
      e.preventDefault();
      x = Math.min(w - 1, Math.max(0, x + move[0] * (e.shiftKey ? 10 : 1))); y = Math.min(h - 1, Math.max(0, y + move[1]));
      const b = canvas.getBoundingClientRect();
      say({ clientX: b.left + ((x + 0.5) / w) * b.width, clientY: b.top + (y + 0.5) * ROW }, x, y);
    });
    canvas.addEventListener("blur", untip);
  }
  return { draw };
})();
