"""Every control of the report page, on data that are hard to draw: no error, no freeze, and bounded work."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import adjoint as ad
from adjoint import nn, optim
from adjoint.inspect.reporting import COLUMNS, POINTS, report_data

pytestmark = [
    pytest.mark.browser,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
NAN, INF = float("nan"), float("inf")
SERIES = {
    "one point": [2.0],
    "one zero": [0.0],
    "constant": [0.37] * 300,
    "zeros": [0.0] * 300,
    "nothing finite": [NAN, INF, -INF] * 40,
    "before a power of ten": [9.92e-9 * 1.25 * 1.03**k for k in range(400)],
    "zeros between": [0.0, 3.0, 1e-12, 0.0, 40.0] * 30,
    "gaps": [NAN, 2.0, INF, 5e-4, NAN, -INF, 70.0] * 20,
    "all sizes": [10.0 ** (k % 600 - 300) for k in range(0, 1200, 7)],
    "smallest and largest": [5e-324, 1.7e308, 1e-310] * 30,
    "largest of both signs": [-1.7e308, 1.7e308] * 50,
    "negative": [-5.0 + 0.01 * k for k in range(200)],
    "almost constant": [1.0 + 2e-16 * (k % 2) for k in range(100)],
    "large and almost constant": [1e15 + (k % 3) * 0.25 for k in range(100)],
}
SERIES["a million"] = list(np.exp(-3e-6 * np.arange(1_000_000)) * (1.5 + np.sin(np.arange(1_000_000.0))))
SERIES["a million"][777_777] = 1e9


@functools.cache
def captured():
    model = nn.Sequential(nn.Linear(3, 4, rng=0), nn.Tanh(), nn.Linear(4, 1, rng=1))
    optimizer, recorder = optim.SGD(model.parameters(), lr=0.1), ad.inspect.Recorder()
    with recorder.capture(model, optimizer):
        (model(ad.ones((2, 3), dtype=np.float32)) ** 2).mean().backward()
    with ad.inspect.profile() as p:
        (model(ad.ones((2, 3), dtype=np.float32)) ** 2).mean().backward()
    recorder.captured.take_times(p.watch)
    return recorder.captured


def recorded(values):
    """A recorder in which everything has the same values."""
    recorder, count = ad.inspect.Recorder(limit=2_000_000), len(values)
    recorder.steps = list(range(1, count + 1))
    recorder.numbers = {"loss": values, "grad_norm": values, "lr": values}
    recorder.names, recorder.shapes, recorder.clip = ["first.weight", "first.bias"], [(3, 4), (4,)], 1.0
    recorder.parameters = 16
    recorder.gradients = [[v, v] for v in values]
    recorder.ratios = [[v, None] for v in values]
    spread = [[v, v, v, v, v] if np.isfinite(v) else None for v in values[:40]]
    recorder.spread = [(i + 1, [q, q], [q, None], q, q) for i, q in enumerate(spread)]
    each = max(1, count // 20_000)
    recorder.epochs = [(i + 1, {"loss": v, "val_loss": v}) for i, v in enumerate(values)][::each]
    recorder.windows = [(i + 1, 2, abs(v), v, i % 5 == 0, i % 7 == 0) for i, v in enumerate(values)]
    recorder.captured = captured()
    return recorder


def use_charts(page):
    for chart in page.locator(".u-over").all():
        chart.scroll_into_view_if_needed()
        box = chart.bounding_box()
        for start, end in ((0.2, 0.8), (0.5, 0.502)):  # zoom, also between two points
            y = box["y"] + box["height"] / 2
            page.mouse.move(box["x"] + start * box["width"], y)
            page.mouse.down()
            page.mouse.move(box["x"] + end * box["width"], y)
            page.mouse.up()
        chart.dblclick()


def use_parameters(page):
    for name in page.locator("#heat .names div").all():
        name.click()
    page.locator("#heat canvas").click(position={"x": 5, "y": 5})
    for key in ("ArrowLeft", "ArrowUp", "Shift+ArrowRight", "ArrowDown", "Enter"):
        page.locator("#heat canvas").press(key)
    for value in ("-1", "1", "0"):
        page.select_option("#spread select", value)
    use_charts(page)


def use_graph(page):
    for action in ("fit", "in", "out", "fold"):
        page.click(f"#graph [data-do={action}]")
    page.fill("#graph input", "tanh")
    page.press("#graph input", "Enter")
    page.focus("#graph .view")
    for key in ("ArrowDown", "Enter", "+", "-", "f", "x"):
        page.keyboard.press(key)
    for tab in ("line", "module", "op"):
        page.get_by_role("tab", name=f"by {tab}").click()


def use_times(page):
    line = page.locator("#line canvas")
    line.hover()
    for _ in range(10):
        page.mouse.wheel(0, -1200)
    for key in ("ArrowLeft", "ArrowRight", "+", "-"):
        line.press(key)
    line.dblclick()
    page.hover("#windows canvas")


def use_page(page):
    page.click("#theme")
    page.keyboard.press("t")
    for width in (700, 1360):
        page.set_viewport_size({"width": width, "height": 900})
        page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


@pytest.mark.parametrize("name", SERIES)
def test_no_control_freezes_the_page(visit, tmp_path, name):
    page = visit(ad.inspect.report(recorded(SERIES[name]), tmp_path / "report.html", title=name))
    for control in (use_charts, use_parameters, use_graph, use_times, use_page):
        page.evaluate("window.longest = 0")
        control(page)
        page.evaluate("new Promise((done) => setTimeout(done))")  # the observer has been called
        assert page.evaluate("window.longest") < 1000, control.__name__


def test_long_paths_are_cut_at_their_front_and_no_column_is_cut(visit, tmp_path):
    recorder = recorded([2.0, 1.0])
    place = ("/home/somebody" + "/a_directory_of_a_project" * 5 + "/the_program_of_somebody.py", 12345, "run")
    for event in recorder.captured.events:
        event.place = place
    page = visit(ad.inspect.report(recorder, tmp_path / "report.html"))
    assert "…/a_directory_of_a_project/the_program_of_somebody.py:12345" in page.inner_text("#memory h2")
    page.get_by_role("tab", name="by line").click()
    for width in (1360, 1250, 1100, 900):
        page.set_viewport_size({"width": width, "height": 900})
        cell, text, scroll, table = page.evaluate(
            """() => ['#time td', '#time td bdi', '#time .scroll', '#time table'].map((s) => {
            const b = document.querySelector(s).getBoundingClientRect(); return [b.left, b.right]; })"""
        )
        assert text[0] < cell[0] and text[1] <= cell[1] + 0.5  # the end is visible, the front is not
        assert table[1] <= scroll[1] + 0.5


def test_numbers_on_axes_are_there_and_not_clipped(visit, tmp_path):
    for values in (
        [-123456.0, -123457.0, -123458.5],
        [1.5e-10, 3e-10, 1e-7],
        [-1.7e308, 1.7e308],
        [1e-300, 1e297],
    ):
        page = visit(ad.inspect.report(recorded(values), tmp_path / "report.html"))
        left = page.evaluate(
            """() => Math.min(...[...document.querySelectorAll('#loss canvas, #norm canvas')].map((c) => {
            const [w, h] = [c.width, c.height], data = c.getContext('2d').getImageData(0, 0, w, h).data;
            for (let x = 0; x < w; x++) for (let y = 0; y < h; y++) if (data[4 * (y * w + x) + 3]) return x;
            return w; }))"""
        )
        assert 0 < left < 30, values
    assert page.evaluate("Scales.exact(null, [-1.05e15, -1.1e15, 0, 2.30124, 2.30125, 7e-8])") == [
        "-1.05e15", "-1.1e15", "0", "2.30124", "2.30125", "7e-8",
    ]  # fmt: skip


def test_the_gradients_of_many_parameters_are_drawn(visit, tmp_path):
    recorder = recorded([2.0, 1.0])
    recorder.names, recorder.shapes = [f"p{i}" for i in range(4000)], [(2,)] * 4000
    recorder.gradients, recorder.ratios = [[0.5] * 4000] * 2, [[0.1] * 4000] * 2
    recorder.spread = []
    page = visit(ad.inspect.report(recorder, tmp_path / "report.html"), device_scale_factor=2)
    names = page.locator("#heat .names div")
    names.nth(3999).click()
    last = page.evaluate(
        """() => { const c = document.querySelector('#heat canvas'), g = c.getContext('2d');
        return [...g.getImageData(c.width >> 1, Math.round(3999.4 / 4000 * c.height), 1, 1).data]; }"""
    )
    assert last[3] == 255  # a canvas that is too tall is empty


def test_a_million_points_are_bounded_and_keep_their_extremes():
    recorder = recorded(SERIES["a million"])
    data = report_data(recorder, "many")
    assert len(data["steps"]["step"]) <= POINTS + 2 and len(data["validation"]["step"]) <= POINTS + 2
    assert len(data["windows"]["step"]) <= COLUMNS >= len(data["gradients"]["step"])
    assert max(data["steps"]["loss"]) == 1e9 and data["steps"]["step"][-1] == 1_000_000
    assert data["thinned"] == "the extremes of 1,000,000 recorded steps"
    assert report_data(recorded(SERIES["constant"]), "few")["thinned"] == ""


def test_limits_are_finite_and_axes_are_bounded(visit, tmp_path):
    page = visit(ad.inspect.report(recorded([1.0, 2.0]), tmp_path / "report.html"))
    wrong = page.evaluate(
        """() => {
      const u = { axes: [{ side: 2 }, { side: 3 }], bbox: { width: 900, height: 200 } }, wrong = [], sizes = [null, NaN, -1e308, -7, -1e-9, 0];
      for (let e = -324; e <= 308; e += 4) for (const m of [1, 1.23456789, 9.92]) sizes.push(Number(`${m}e${e}`));
      for (const lo of sizes) for (const hi of sizes) {
        if ((lo == null) !== (hi == null) || Number.isNaN(lo) !== Number.isNaN(hi) || lo > hi) continue;
        for (const [limits, splits, axis] of [[Scales.linear, Scales.evenly(30), 1], [Scales.fromZero, Scales.evenly(30), 1], [Scales.steps, Scales.evenly(70), 0], [Scales.logarithmic, Scales.powers(22), 1]]) {
          const [a, b] = limits(u, Number.isNaN(lo) ? null : lo, Number.isNaN(hi) ? null : hi), found = Number.isFinite(a) && Number.isFinite(b) && a < b ? splits(u, axis, a, b) : null;
          const sorted = found && found.every((v, i) => Number.isFinite(v) && v >= a - (b - a) * 1e-6 && v <= b + (b - a) * 1e-6 && (!i || v >= found[i - 1]));
          if (!found || !found.length || found.length > 100 || !sorted) wrong.push([lo, hi, a, b, found]);
        }
      }
      return wrong.slice(0, 5);
    }"""
    )
    assert wrong == []
