"use strict";
// The graph: a tree of groups, of which the open ones are laid out, each on its own, with dagre.
const GraphView = (() => {
  const HEAD = 30, PAD = 12, SVG = "http://www.w3.org/2000/svg", MOST = 400;
  const svg = (name, attributes = {}, ...children) => {
    const e = document.createElementNS(SVG, name);
    for (const k in attributes) e.setAttribute(k, attributes[k]);
    e.append(...children);
    return e;
  };
  let N, G, kids, count, kept, first, edges, open, lo, hi, root, view, chosen = null, found = null, matches = [], match = -1, frame, host;
  const isGroup = (v) => v < 0, groupOf = (v) => -1 - v, asChild = (g) => -1 - g;

  function load(D) {
    const R = D.graph, T = R.texts;
    N = { name: R.name.map((i) => T[i]), shape: R.shape.map((i) => T[i]), dtype: R.dtype.map((i) => T[i]), line: R.line.map((i) => T[i]), leaf: R.leaf, saved: R.saved, norm: R.norm, group: R.group, parents: [] };
    let at = 0;
    for (const n of R.count) { N.parents.push(R.parents.slice(at, at + n)); at += n; }
    G = R.groups.map(([name, kind, parent, times, norm, strip]) => ({ name, kind, parent, times, norm, strip }));
    kids = G.map(() => []); count = new Float64Array(G.length); kept = new Float64Array(G.length); first = new Float64Array(G.length).fill(Infinity);
    for (let i = 0; i < N.name.length; i++) {
      if (N.leaf[i]) continue;
      kids[N.group[i]].push(i);
      for (let g = N.group[i]; g >= 0; g = G[g].parent) { count[g]++; kept[g] += N.saved[i]; if (i < first[g]) first[g] = i; }
    }
    G.forEach((g, i) => { if (g.parent >= 0 && count[i]) kids[g.parent].push(asChild(i)); });
    const start = (v) => (isGroup(v) ? first[groupOf(v)] : v);
    kids.forEach((k) => k.sort((a, b) => start(a) - start(b)));
    [lo, hi] = range(N.norm);
    wire();
    open = new Set([0]);
    grow();
  }
  // The edges of each group: between its children, and from its border to them.
  function wire() {
    edges = G.map(() => ({ inner: new Map(), entry: new Set(), exit: new Set() }));
    const depth = new Int32Array(G.length);
    const depthOf = (g) => { let d = 0; for (; g > 0; g = G[g].parent) d++; return d; };
    G.forEach((_, g) => { depth[g] = depthOf(g); });
    for (let i = 0; i < N.name.length; i++) {
      if (N.leaf[i]) continue;
      for (const p of N.parents[i]) {
        if (N.leaf[p]) continue;
        let a = p, ga = N.group[p], b = i, gb = N.group[i];
        while (ga !== gb) {
          if (depth[ga] >= depth[gb]) { edges[ga].exit.add(a); a = asChild(ga); ga = G[ga].parent; }
          else { edges[gb].entry.add(b); b = asChild(gb); gb = G[gb].parent; }
        }
        if (a !== b) { const m = edges[ga].inner; if (!m.has(a)) m.set(a, new Set()); m.get(a).add(b); }
      }
    }
  }
  // A group of one op is shown as that op, under the name of the group.
  const single = (g) => (kids[g].length === 1 && !isGroup(kids[g][0]) ? kids[g][0] : null);
  function grow() { // open what fits at the start
    const queue = [0];
    let shown = kids[0].length;
    while (queue.length) {
      for (const v of kids[queue.shift()]) {
        if (!isGroup(v)) continue;
        const g = groupOf(v);
        if (G[g].times || single(g) != null || shown - 1 + kids[g].length > 30) continue;
        open.add(g); queue.push(g); shown += kids[g].length - 1;
      }
    }
  }
  const title = (g) => [G[g].name, G[g].kind].filter(Boolean).join(" ") || "graph";
  const path = (g) => { const s = []; for (; g > 0; g = G[g].parent) s.unshift(title(g)); return s.join(" › "); };
  const leavesOf = (i) => N.parents[i].filter((p) => N.leaf[p]);
  function texts(v) { // lines of a box: left, kind, right
    if (!isGroup(v)) return opTexts(v, "", "");
    const g = groupOf(v), one = single(g);
    if (one != null) return opTexts(one, G[g].name, G[g].kind);
    const many = G[g].times ? `×${G[g].times}, ${count[g].toLocaleString()} ops` : `${count[g].toLocaleString()} ops`;
    return [["▸ " + (G[g].name || G[g].kind), G[g].name ? G[g].kind : "", many]];
  }
  function opTexts(i, name, kind) {
    const rest = name || kind ? (kind.toLowerCase() === N.name[i].replace(/_/g, "") ? kind : `${kind} ${N.name[i]}`.trim()) : "";
    const rows = [[name || kind ? name || kind : N.name[i], name ? rest : kind && rest !== kind ? N.name[i] : "", N.shape[i]]];
    const own = leavesOf(i);
    for (const p of own.slice(0, 4)) rows.push(["", "", `${N.name[p].split(".").pop()} ${N.shape[p]}`]);
    if (own.length > 4) rows.push(["", "", `and ${own.length - 4} more leaves`]);
    return rows;
  }
  const measure = document.createElement("canvas").getContext("2d");
  const wide = (text, font) => { measure.font = font; return measure.measureText(text).width; };
  function size(v) {
    const strip = isGroup(v) && G[groupOf(v)].strip.length;
    const w = Math.max(...texts(v).map(([a, k, b]) => wide(a, "600 13px system-ui, DejaVu Sans, sans-serif") + (k ? wide(k, "13px system-ui, DejaVu Sans, sans-serif") + 6 : 0) + (b ? wide(b, "11px DejaVu Sans Mono, monospace") + 16 : 0)));
    return { width: Math.max(80, w + 30), height: 12 + 17 * texts(v).length + (strip ? 15 : 0) };
  }
  // Lay out an open group; groups inside that are open are laid out first.  Returns its size and what is in it.
  function layout(g) {
    const d = new dagre.graphlib.Graph();
    d.setGraph({ rankdir: "TB", nodesep: 18, ranksep: 26, marginx: 0, marginy: 0 });
    d.setDefaultEdgeLabel(() => ({}));
    const parts = new Map();
    for (const v of kids[g]) {
      const inside = isGroup(v) && open.has(groupOf(v)) && single(groupOf(v)) == null ? layout(groupOf(v)) : null;
      const s = inside ? { width: inside.width, height: inside.height } : size(v);
      parts.set(v, inside);
      d.setNode(String(v), s);
    }
    const { inner, entry, exit } = edges[g];
    for (const [a, to] of inner) for (const b of to) d.setEdge(String(a), String(b));
    if (g && entry.size) { d.setNode("in", { width: 1, height: 1 }); for (const b of entry) d.setEdge("in", String(b)); }
    if (g && exit.size) { d.setNode("out", { width: 1, height: 1 }); for (const a of exit) d.setEdge(String(a), "out"); }
    dagre.layout(d);
    const tall = new Map(); // the height of each rank by its middle: an edge passes a rank upright
    let left = Infinity, right = -Infinity; // of boxes and edges
    const reach = (x0, x1) => { left = Math.min(left, x0); right = Math.max(right, x1); };
    for (const id of d.nodes()) {
      const p = d.node(id), y = Math.round(p.y);
      tall.set(y, Math.max(tall.get(y) || 0, p.height));
      reach(p.x - p.width / 2, p.x + p.width / 2);
    }
    const upright = ([x, y]) => { const h = (tall.get(Math.round(y)) || 0) / 2; return h > 24 ? [[x, y - h], [x, y], [x, y + h]] : [[x, y]]; };
    const within = (x, p) => Math.max(p.x - p.width / 2 + 14, Math.min(p.x + p.width / 2 - 14, x));
    const lines = d.edges().map((e) => {
      const points = d.edge(e).points.map((p) => [p.x, p.y]), from = d.node(e.v), to = d.node(e.w), last = points.length - 1;
      if (e.v !== "in") points[0] = [within(points[0][0], from), from.y + from.height / 2]; // from the lower border to the upper one
      if (e.w !== "out") points[last] = [within(points[last][0], to), to.y - to.height / 2];
      for (const [x] of points) reach(x - 6, x + 6);
      return { points: [points[0], ...points.slice(1, last).flatMap(upright), points[last]], out: e.w === "out", in: e.v === "in" };
    });
    const box = d.graph(), label = wide("▾ " + title(g), "600 13px system-ui, DejaVu Sans, sans-serif") + 40;
    const content = right - left, width = Math.max(content, g ? label : 0);
    const ox = (g ? PAD : 0) + (width - content) / 2 - left, oy = g ? HEAD : 0;
    for (const l of lines) l.points = l.points.map(([x, y]) => [x + ox, y + oy]);
    const nodes = kids[g].map((v) => { const p = d.node(String(v)); return { v, inside: parts.get(v), x: p.x - p.width / 2 + ox, y: p.y - p.height / 2 + oy, width: p.width, height: p.height }; });
    const height = (box.height || 0) + (g ? HEAD + PAD : 0);
    for (const l of lines) { // stubs begin and end at the border
      if (l.in) l.points.unshift([l.points[0][0], g ? HEAD - 6 : 0]);
      if (l.out) l.points.push([l.points[l.points.length - 1][0], height]);
    }
    return { g, nodes, lines, width: width + (g ? 2 * PAD : 0), height };
  }
  const colour = (norm) => (norm == null ? css("--line") : norm === -Infinity ? css("--bg") : `rgb(${ramp((norm - lo) / (hi - lo))})`);
  const normOf = (v) => { // the logarithm of the gradient of a box
    if (isGroup(v)) { const one = single(groupOf(v)); return one != null ? normOf(one) : G[groupOf(v)].norm; }
    return N.norm[v] == null ? null : N.norm[v] > 0 ? Math.log10(N.norm[v]) : -Infinity;
  };
  function curve(points) {
    let s = `M${points[0][0]},${points[0][1]}`;
    if (points.length === 2) return s + `L${points[1][0]},${points[1][1]}`;
    for (let i = 1; i < points.length - 1; i++) {
      const [x, y] = points[i], end = i === points.length - 2 ? points[i + 1] : [(x + points[i + 1][0]) / 2, (y + points[i + 1][1]) / 2];
      s += ` Q${x},${y} ${end[0]},${end[1]}`;
    }
    return s;
  }
  function about(v) {
    if (isGroup(v) && single(groupOf(v)) == null) {
      const g = groupOf(v);
      return `${path(g)}\n${count[g].toLocaleString()} ops, ${bytes(kept[g])} kept for backward` + (G[g].norm == null ? "" : `\ntypical gradient norm ${short(10 ** G[g].norm)}`);
    }
    const i = isGroup(v) ? single(groupOf(v)) : v, where = path(N.group[i]);
    const own = leavesOf(i).map((p) => `\n${N.name[p]}  ${N.shape[p]} ${N.dtype[p]}` + (N.norm[p] == null ? "" : `  gradient ${short(N.norm[p])}`));
    return (where ? where + "\n" : "") + `${N.name[i]}  ${N.shape[i]} ${N.dtype[i]}` + (N.line[i] ? `\n${N.line[i]}` : "") + (N.norm[i] == null ? "" : `\ngradient norm ${short(N.norm[i])}`) + (N.saved[i] ? `\n${bytes(N.saved[i])} kept for backward` : "") + own.join("");
  }
  let shown;
  function paint(plan, x, y, under, over) {
    const g = plan.g;
    if (g) {
      const area = svg("g", { class: "area" }, svg("rect", { class: "body", x, y, width: plan.width, height: plan.height, rx: 9 }));
      under.append(area);
      const head = svg("g", { class: "head", "data-v": asChild(g) }, svg("rect", { class: "body", x, y, width: plan.width, height: HEAD - 4, rx: 9 }), svg("text", { class: "name", x: x + 10, y: y + 18 }, "▾ " + (G[g].name || G[g].kind), svg("tspan", { class: "kind", dx: 6 }, G[g].name ? G[g].kind : "")));
      over.append(head);
      shown.set(asChild(g), { x, y, width: plan.width, height: HEAD, element: head, open: true });
    }
    for (const l of plan.lines) {
      const points = l.points.map(([a, b]) => [a + x, b + y]);
      under.append(svg("path", { class: "edge", d: curve(points) }));
      const [a, b] = points[points.length - 1];
      if (!l.out) under.append(svg("path", { class: "tipp", d: `M${a - 4},${b - 7}L${a + 4},${b - 7}L${a},${b}z` }));
    }
    for (const n of plan.nodes) {
      if (n.inside) paint(n.inside, x + n.x, y + n.y, under, over);
      else box(n.v, x + n.x, y + n.y, n.width, n.height, over);
    }
  }
  function box(v, x, y, width, height, over) {
    const opens = isGroup(v) && single(groupOf(v)) == null, strip = opens ? G[groupOf(v)].strip : [];
    const e = svg("g", { class: "box" + (opens ? " opens" : ""), "data-v": v });
    if (opens) e.append(svg("path", { class: "pile", d: `M${x + 5},${y + height + 3}h${width - 10}` }));
    e.append(svg("rect", { class: "body", x, y, width, height, rx: 6 }));
    const log = normOf(v);
    e.append(svg("rect", { x: x + 1.5, y: y + 1.5, width: 6, height: height - 3, rx: 3, fill: colour(log), stroke: log === -Infinity ? css("--soft") : "none" }));
    texts(v).forEach(([name, kind, right], k) => {
      const line = y + 19 + 17 * k;
      if (name) e.append(svg("text", { class: "name", x: x + 15, y: line }, name, svg("tspan", { class: "kind", dx: 6 }, kind)));
      if (right) e.append(svg("text", { class: "mono", x: x + width - 9, y: line, "text-anchor": "end" }, right));
    });
    const w = (width - 24) / Math.max(1, strip.length);
    strip.forEach((q, k) => e.append(svg("rect", { x: x + 15 + k * w, y: y + height - 17, width: w + 0.4, height: 9, fill: colour(q) })));
    over.append(e);
    shown.set(v, { x, y, width, height, element: e, open: false });
  }
  function draw(focus) {
    const began = performance.now(), plan = layout(0);
    shown = new Map();
    const under = svg("g"), over = svg("g");
    paint(plan, 20, 20, under, over);
    root = svg("svg", { role: "img", "aria-label": "computation graph" }, under, over);
    frame = [plan.width + 40, plan.height + 40];
    host.replaceChildren(root);
    const boxes = [...shown.values()].filter((b) => !b.open).length;
    $("#graph [role=status]").textContent = `${boxes.toLocaleString()} boxes of ${count[0].toLocaleString()} ops, laid out in ${Math.round(performance.now() - began)} ms` + (match >= 0 ? ` · match ${match + 1} of ${matches.length.toLocaleString()}` : "");
    if (!view) start(); else apply();
    if (chosen != null && !shown.has(chosen)) chosen = null;
    mark();
    if (focus != null && shown.has(focus)) reveal(focus);
  }
  const pixels = () => [host.clientWidth || 1, host.clientHeight || 1];
  function start() { // the whole graph if it stays legible, else its beginning
    const [w, h] = pixels(), scale = Math.min(1.15, Math.max(0.8, Math.min(w / frame[0], h / frame[1])));
    view = { scale, x: frame[0] / 2 - w / scale / 2, y: frame[1] * scale < h ? frame[1] / 2 - h / scale / 2 : 0 };
    apply();
  }
  function fit() {
    const [w, h] = pixels(), scale = Math.min(1.6, Math.min(w / frame[0], h / frame[1]));
    view = { scale, x: frame[0] / 2 - w / scale / 2, y: frame[1] / 2 - h / scale / 2 };
    apply();
  }
  function apply() {
    const [w, h] = pixels();
    root.setAttribute("viewBox", `${view.x} ${view.y} ${w / view.scale} ${h / view.scale}`);
  }
  function zoom(factor, px, py) {
    const [w, h] = pixels();
    px ??= w / 2; py ??= h / 2;
    const x = view.x + px / view.scale, y = view.y + py / view.scale;
    view.scale = Math.max(0.02, Math.min(4, view.scale * factor));
    view.x = x - px / view.scale; view.y = y - py / view.scale;
    apply();
  }
  function reveal(v) { // move a box into view, at a legible scale
    const b = shown.get(v), [w, h] = pixels();
    if (view.scale < 0.7) view.scale = 1;
    const W = w / view.scale, H = h / view.scale;
    if (b.x < view.x + 10 || b.x + b.width > view.x + W - 10) view.x = b.x + b.width / 2 - W / 2;
    if (b.y < view.y + 10 || b.y + b.height > view.y + H - 10) view.y = b.open ? b.y - 20 : b.y + b.height / 2 - H / 2;
    apply();
  }
  function mark() {
    for (const [v, b] of shown) { b.element.classList.toggle("chosen", v === chosen); b.element.classList.toggle("found", v === found); }
  }
  function toggle(v) {
    if (!isGroup(v) || single(groupOf(v)) != null) return;
    const g = groupOf(v), before = shown.get(v), opened = open.has(g);
    if (opened) open.delete(g);
    else {
      let inner = g;
      open.add(g);
      while (kids[inner].length === 1 && isGroup(kids[inner][0]) && single(groupOf(kids[inner][0])) == null) { inner = groupOf(kids[inner][0]); open.add(inner); }
      retire(g);
    }
    untip();
    chosen = v;
    draw();
    const after = shown.get(v);
    if (before && after && view) { // the box that was clicked stays where it is
      view.x += after.x + after.width / 2 - before.x - before.width / 2;
      view.y += after.y - before.y;
      apply();
    }
    reveal(v);
  }
  function retire(keep) { // fold what was opened longest ago if too much is open
    const above = new Set();
    for (let g = keep; g >= 0; g = G[g].parent) above.add(g);
    const total = () => [...open].reduce((n, g) => n + (visible(g) ? kids[g].length : 0), 0);
    for (const g of [...open]) { if (total() <= MOST) return; if (!above.has(g)) open.delete(g); }
  }
  const visible = (g) => { for (g = G[g].parent; g > 0; g = G[g].parent) if (!open.has(g)) return false; return true; };
  function foldAll() { open = new Set([0]); found = chosen = null; match = -1; matches = []; grow(); view = null; draw(); }
  function search(text, step) {
    const q = text.trim().toLowerCase();
    if (!q) { matches = []; match = -1; found = null; mark(); return; }
    if (search.last !== q) {
      search.last = q; match = -1; matches = [];
      const names = G.map((g, i) => (i ? `${g.name} ${g.kind}` : "").toLowerCase().includes(q));
      for (let i = 0; i < N.name.length; i++) {
        if (N.leaf[i]) continue;
        const own = leavesOf(i).some((p) => N.name[p].toLowerCase().includes(q));
        if (own || N.name[i].toLowerCase().includes(q) || N.line[i].toLowerCase().includes(q) || (names[N.group[i]] && first[N.group[i]] === i)) matches.push(i);
      }
    }
    if (!matches.length) { found = null; mark(); $("#graph [role=status]").textContent = `nothing is called “${text}”`; return; }
    match = (match + step + matches.length) % matches.length;
    const i = matches[match];
    let v = i;
    for (let g = N.group[i]; g >= 0; g = G[g].parent) { if (g && single(g) === i) v = asChild(g); else { open.delete(g); open.add(g); } }
    retire(N.group[i]);
    found = chosen = v;
    draw(v);
  }
  function move(key) { // the nearest box in a direction
    const at = shown.get(chosen);
    if (!at) { chosen = shown.keys().next().value; mark(); reveal(chosen); return; }
    const [dx, dy] = { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] }[key];
    let best = null, least = Infinity;
    for (const [v, b] of shown) {
      if (v === chosen) continue;
      const x = b.x + b.width / 2 - at.x - at.width / 2, y = b.y + Math.min(b.height, HEAD) / 2 - at.y - Math.min(at.height, HEAD) / 2;
      const along = x * dx + y * dy, across = Math.abs(x * dy) + Math.abs(y * dx);
      if (along > 4 && along + 2.5 * across < least) { least = along + 2.5 * across; best = v; }
    }
    if (best != null) { chosen = best; mark(); reveal(best); const b = shown.get(best).element.getBoundingClientRect(); tip({ clientX: b.right, clientY: b.top }, about(best)); }
  }
  function listen() {
    const hit = (e) => { const t = e.target.closest("[data-v]"); return t ? Number(t.dataset.v) : null; };
    let held = null, moved = false;
    host.addEventListener("pointerdown", (e) => { held = [e.clientX, e.clientY, view.x, view.y]; moved = false; });
    host.addEventListener("pointermove", (e) => {
      if (held && e.buttons) {
        if (Math.hypot(e.clientX - held[0], e.clientY - held[1]) > 4) moved = true;
        if (moved) { view.x = held[2] - (e.clientX - held[0]) / view.scale; view.y = held[3] - (e.clientY - held[1]) / view.scale; apply(); root.classList.add("held"); untip(); return; }
      }
      const v = hit(e);
      tip(e, v == null ? "" : about(v) + (isGroup(v) && single(groupOf(v)) == null ? (open.has(groupOf(v)) ? "\nclick to fold" : "\nclick to open") : ""));
    });
    addEventListener("pointerup", () => { held = null; root.classList.remove("held"); });
    host.addEventListener("pointerleave", untip);
    host.addEventListener("click", (e) => { const v = hit(e); if (v == null || moved) return; chosen = v; mark(); toggle(v); });
    host.addEventListener("wheel", (e) => {
      e.preventDefault();
      const b = host.getBoundingClientRect();
      if (e.ctrlKey || e.metaKey || e.altKey || !e.shiftKey) zoom(Math.exp(-e.deltaY * 0.0016), e.clientX - b.left, e.clientY - b.top);
      else { view.x += e.deltaY / view.scale; apply(); }
    }, { passive: false });
    host.addEventListener("blur", untip);
    host.addEventListener("keydown", (e) => {
      if (e.key.startsWith("Arrow")) { e.preventDefault(); move(e.key); }
      else if ((e.key === "Enter" || e.key === " ") && chosen != null) { e.preventDefault(); toggle(chosen); }
      else if (e.key === "+" || e.key === "=") zoom(1.25);
      else if (e.key === "-") zoom(0.8);
      else if (e.key === "Escape") untip();
    });
    const input = $("#graph input");
    input.addEventListener("keydown", (e) => {
      if (e.key === "Enter") search(input.value, e.shiftKey ? -1 : 1);
      else if (e.key === "Escape") { input.value = ""; search("", 0); host.focus(); }
    });
    const actions = { fit, in: () => zoom(1.25), out: () => zoom(0.8), fold: foldAll };
    document.querySelectorAll("#graph [data-do]").forEach((b) => b.addEventListener("click", () => actions[b.dataset.do]()));
    new ResizeObserver(() => root && view && apply()).observe(host);
  }
  function show(D) {
    if (!D.graph || !D.graph.name.length) return;
    const begun = !!root;
    $("#graph").hidden = false;
    if (!begun) {
      host = $("#graph .view");
      load(D);
      $("#graph h2 small").textContent = D.graph.note;
      const [a, bar, b] = $("#graph .ramp").children;
      const known = N.norm.some((v) => v > 0);
      $("#graph .ramp").hidden = !known;
      a.textContent = "gradient norm " + short(10 ** lo); b.textContent = short(10 ** hi); bar.style.background = RAMP;
    }
    draw();
    if (!begun) {
      $("#pair").classList.toggle("beside", !!(D.rows && D.rows.op.length) && frame[0] < 560); // a narrow graph
      host.style.height = Math.max(300, Math.min(660, frame[1] * view.scale + 12)) + "px";
      view = null; start();
      listen();
    }
  }
  return { show, fit, foldAll, find: () => $("#graph input").focus() };
})();
