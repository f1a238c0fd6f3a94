"use strict";
(async () => {
  const D = await unpacked();
  $("#title").textContent = D.title;
  $("#facts").textContent = D.facts;
  const say = ([level, text, code]) => make("li", { class: level }, text, ...(code ? [make("code", {}, code)] : []));
  const [mistakes, rest] = document.querySelectorAll("#says ul");
  mistakes.replaceChildren(...D.says.filter((s) => s[0] === "bad").map(say));
  rest.replaceChildren(...D.says.filter((s) => s[0] !== "bad").map(say));
  const draw = () => { Charts.all(D); Heat.draw(D); GraphView.show(D); Charts.resize(); Times.table(D); Times.line(D); Times.windows(D); };
  const dark = (on) => document.documentElement.classList.toggle("dark", on);
  dark(matchMedia("(prefers-color-scheme: dark)").matches);
  const turn = () => { dark(); draw(); };
  $("#theme").addEventListener("click", turn);
  addEventListener("keydown", (e) => {
    if (e.target.matches("input, select") || e.ctrlKey || e.metaKey || e.altKey) return;
    if (e.key === "/" && D.graph) { e.preventDefault(); GraphView.find(); }
    else if (e.key === "t") turn();
    else if (e.key === "f" && D.graph) GraphView.fit();
    else if (e.key === "x" && D.graph) GraphView.foldAll();
  });
  let waiting = 0;
  addEventListener("resize", () => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(() => { Heat.draw(D); Times.line(D); Times.windows(D); }); });
  draw();
  document.documentElement.dataset.ready = Math.round(performance.now());
})();
