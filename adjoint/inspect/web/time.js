"use strict";
// The table of times, the time line, the windows.
const Times = (() => {
  let tab = "op";
  function table(D) {
    if (!D.rows || !D.rows.op || !D.rows.op.length) return;
    const section = $("#time");
    section.hidden = false;
    const tabs = $(".tabs", section);
    if (!tabs.children.length)
      for (const name of Object.keys(D.rows)) {
        const b = make("button", { type: "button", role: "tab" }, "by " + name);
        b.addEventListener("click", () => { tab = name; table(D); });
        b.dataset.tab = name;
        tabs.append(b);
      }
    for (const b of tabs.children) b.setAttribute("aria-selected", b.dataset.tab === tab);
    const rows = D.rows[tab], top = rows.reduce((m, r) => Math.max(m, r[2] + r[3]), 0) || 1, t = $("table", section);
    const head = make("tr", {}, ...[tab, "calls", "forward", "backward", "share", "", "made", "kept"].map((h) => make("th", {}, h)));
    t.replaceChildren(make("thead", {}, head), make("tbody", {}, ...rows.slice(0, 60).map(([name, calls, f, b, made, kept]) => {
      const bar = make("div", {}, make("b"), make("s"));
      bar.children[0].style.width = (f / top) * 100 + "%";
      bar.children[1].style.width = (b / top) * 100 + "%";
      const cells = [name, calls.toLocaleString(), micros(f), b ? micros(b) : "", (((f + b) / D.wall) * 100).toFixed(1) + " %", bar, made == null ? "" : bytes(made), kept == null ? "" : bytes(kept)];
      return make("tr", {}, ...cells.map((c, i) => make("td", i === 5 ? { class: "bar" } : i ? {} : { title: name }, i ? c : make("bdi", {}, c))));
    })));
  }
  // Boxes of the time line: ops in the last row, the modules around them above, each as long as its ops follow another.
  let boxes, rows, span;
  const ROW = 23;
  function stack(D) {
    const T = D.timeline;
    boxes = []; rows = 1;
    const depth = T.paths.reduce((m, p) => Math.max(m, p.length), 0);
    rows = Math.min(6, depth) + 1;
    const running = [];
    T.events.forEach(([name, phase, start, length, path]) => {
      const parts = T.paths[path].slice(0, rows - 1);
      for (let k = 0; k < rows - 1; k++) {
        const same = running[k] && k < parts.length && running[k].key === parts.slice(0, k + 1).join("\u0001") && running[k].phase === phase && start - running[k].end < T.gap;
        if (same) running[k].end = start + length;
        else {
          running.splice(k);
          for (let j = k; j < parts.length; j++) {
            const b = { row: j, name: parts[j], key: parts.slice(0, j + 1).join("\u0001"), phase, start, end: start + length, module: true };
            running.push(b); boxes.push(b);
          }
          break;
        }
      }
      boxes.push({ row: rows - 1, name: T.names[name], phase, start, end: start + length, path: T.paths[path].join(" › ") });
    });
    span = [0, T.end];
  }
  const shade = (phase) => css(["--a", "--b", "--good", "--warn"][phase]);
  function line(D) {
    if (!D.timeline || !D.timeline.events.length) return;
    const section = $("#line"), canvas = $("canvas", section), begun = !!boxes;
    section.hidden = false;
    if (!begun) stack(D);
    const height = rows * ROW + 34, [g, width] = sized(canvas, height), X = (u) => ((u - span[0]) / (span[1] - span[0])) * width;
    g.font = "11.5px system-ui, DejaVu Sans, sans-serif";
    g.textBaseline = "middle";
    for (const b of boxes) {
      const x = X(b.start), w = Math.max(0.7, X(b.end) - x - 0.6), y = 6 + b.row * ROW;
      if (x > width || x + w < 0) continue;
      g.globalAlpha = b.module ? 0.3 + 0.14 * Math.max(0, 2 - b.row) : 1;
      g.fillStyle = shade(b.phase);
      g.fillRect(x, y, w, ROW - 3);
      g.globalAlpha = 1;
      const from = Math.max(x, 0), room = Math.min(x + w, width) - from - 8;
      if (room > 14 && g.measureText(b.name).width <= room) { g.fillStyle = b.module ? css("--fg") : css("--bg"); g.fillText(b.name, from + 4, y + ROW / 2 - 1); }
    }
    g.fillStyle = css("--soft");
    const step = 10 ** Math.floor(Math.log10((span[1] - span[0]) / 4)), unit = [1, 2, 5, 10].map((k) => k * step).find((u) => (span[1] - span[0]) / u <= 9);
    for (let u = Math.ceil(span[0] / unit) * unit; u <= span[1]; u += unit) {
      const x = X(u);
      g.fillRect(x, rows * ROW + 6, 1, 5);
      const text = u ? micros(Number(u.toPrecision(6))) : "0";
      if (x + g.measureText(text).width < width - 4) g.fillText(text, x + 4, rows * ROW + 18);
    }
    if (!begun) listen(D, canvas);
  }
  function listen(D, canvas) {
    const at = (e) => { const b = canvas.getBoundingClientRect(); return [(e.clientX - b.left) / b.width, Math.floor((e.clientY - b.top - 6) / ROW)]; };
    const end = D.timeline.end;
    const set = (a, b) => { const w = Math.min(end, Math.max(end / 1e5, b - a)); a = Math.max(0, Math.min(end - w, a)); span = [a, a + w]; line(D); };
    const zoom = (f, q) => { const p = span[0] + q * (span[1] - span[0]); set(p - (p - span[0]) * f, p + (span[1] - p) * f); };
    canvas.addEventListener("wheel", (e) => { e.preventDefault(); zoom(Math.exp(e.deltaY * 0.002), at(e)[0]); }, { passive: false });
    let held = null;
    canvas.addEventListener("pointerdown", (e) => { held = [e.clientX, ...span]; canvas.setPointerCapture(e.pointerId); });
    canvas.addEventListener("pointerup", () => (held = null));
    canvas.addEventListener("dblclick", () => set(0, end));
    canvas.addEventListener("pointermove", (e) => {
      if (held && e.buttons) { const d = ((e.clientX - held[0]) / canvas.clientWidth) * (held[2] - held[1]); untip(); return set(held[1] - d, held[2] - d); }
      const [q, row] = at(e), u = span[0] + q * (span[1] - span[0]), slack = ((span[1] - span[0]) / canvas.clientWidth) * 1.5;
      const b = boxes.find((x) => x.row === row && x.start - slack <= u && u <= x.end + slack);
      tip(e, b ? `${b.name}, ${["forward", "backward", "update", "compiled"][b.phase]}\n${micros(b.end - b.start)}, from ${micros(b.start)}` + (b.path ? `\n${b.path}` : "") : "");
    });
    canvas.addEventListener("pointerleave", untip);
    canvas.addEventListener("keydown", (e) => {
      const w = span[1] - span[0];
      if (e.key === "ArrowLeft") set(span[0] - w / 8, span[1] - w / 8);
      else if (e.key === "ArrowRight") set(span[0] + w / 8, span[1] + w / 8);
      else if (e.key === "+" || e.key === "=") zoom(0.7, 0.5);
      else if (e.key === "-") zoom(1.4, 0.5);
      else return;
      e.preventDefault();
    });
  }
  function windows(D) {
    const W = D.windows;
    if (!W || !W.step.length) return;
    const section = $("#windows"), canvas = $("canvas", section), [g, width] = sized(canvas, 92);
    section.hidden = false;
    $("h2 small", section).textContent = W.note;
    const n = W.step.length, w = width / n, top = W.weight.reduce((m, v) => Math.max(m, v), 0) || 1, bar = Math.max(0.6, w - (w > 4 ? 1.5 : 0));
    W.step.forEach((_, i) => {
      const h = (W.weight[i] / top) * 62, pieces = Math.max(1, W.pieces[i]);
      g.fillStyle = css(W.skipped[i] ? "--bad" : W.clipped[i] ? "--warn" : "--a");
      g.fillRect(i * w, 76 - h, bar, h);
      if (w > 5 && h / pieces > 4) { g.fillStyle = css("--card"); for (let k = 1; k < pieces; k++) g.fillRect(i * w, 76 - (h * k) / pieces, bar, 1); }
    });
    g.fillStyle = css("--soft"); g.font = "11.5px system-ui, DejaVu Sans, sans-serif";
    g.fillText(`step ${W.step[0]}`, 4, 88);
    const last = String(W.step[n - 1]);
    g.fillText(last, width - g.measureText(last).width - 4, 88);
    canvas.onmousemove = (e) => {
      const b = canvas.getBoundingClientRect(), i = Math.min(n - 1, Math.max(0, Math.floor(((e.clientX - b.left) / b.width) * n)));
      tip(e, `step ${W.step[i]}\n${W.pieces[i]} micro-batches, weight ${short(W.weight[i])}` + (W.norm[i] == null ? "" : `\ngradient norm ${short(W.norm[i])}`) + (W.clipped[i] ? "\nclipped" : "") + (W.skipped[i] ? "\nskipped" : ""));
    };
    canvas.onmouseleave = untip;
  }
  return { table, line, windows };
})();
