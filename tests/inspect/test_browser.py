"""The pages in a real Chromium: ready in time, no errors, no requests, and everything can be used."""

from __future__ import annotations

import io

import numpy as np
import pytest

import adjoint as ad
from adjoint import nn, optim, train

pytestmark = [
    pytest.mark.browser,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
F = nn.functional


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    sklearn = pytest.importorskip("sklearn.datasets")
    digits = sklearn.load_digits()
    x, y = (digits.data / 16).astype(np.float32), digits.target
    blocks = [nn.Sequential(nn.Linear(64, 64, rng=k), nn.ReLU()) for k in range(5)]
    model = nn.Sequential(*blocks, nn.Linear(64, 10, rng=9))
    optimizer = optim.AdamW(model.parameters(), lr=3e-3)
    trainer = train.Trainer(
        model,
        F.cross_entropy,
        optimizer,
        clip=1.0,
        accumulate=2,
        callbacks=ad.inspect.Recorder(),
        progress=False,
    )
    trainer.fit(
        train.DataLoader((x[:1200], y[:1200]), 64), 4, validate=train.DataLoader((x[1200:], y[1200:]), 256)
    )
    path = ad.inspect.report(trainer, tmp_path_factory.mktemp("report") / "report.html", title="digits")
    assert path.stat().st_size < 500_000
    return path


def colours(page, selector):
    """The number of distinct colours in the picture of an element, and the share of the most common."""
    image = pytest.importorskip("matplotlib.image")
    pixels = image.imread(io.BytesIO(page.locator(selector).first.screenshot()), format="png")
    flat = (pixels[..., :3] * 255).astype(np.uint32) @ np.array([65536, 256, 1], np.uint32)
    counts = np.unique(flat, return_counts=True)[1]
    return len(counts), counts.max() / counts.sum()


def status(page):
    return page.inner_text("#graph [role=status]")


def boxes(page):
    return page.locator("#graph .box").count()


def test_the_report_is_ready_and_nothing_is_empty(visit, report):
    page = visit(report)
    assert float(page.evaluate("document.documentElement.dataset.ready")) < 2000
    assert page.inner_text("h1") == "digits"
    assert "The loss fell" in page.inner_text("#says")
    for selector in (
        "#loss .chart", "#norm .chart", "#heat canvas", "#spread .chart", "#graph .view", "#time table", "#line canvas",
        "#windows canvas",
    ):  # fmt: skip
        assert page.locator(selector).first.is_visible(), selector
        number, most = colours(page, selector)
        assert number > 6 and most < 0.99, selector


def test_the_graph_folds_and_unfolds(visit, report):
    page = visit(report)
    folded = boxes(page)
    page.locator("#graph .opens", has_text="0 … 4").click()
    assert boxes(page) > folded
    page.locator("#graph .opens").first.click()
    opened = boxes(page)
    assert "Linear" in page.locator("#graph svg").inner_html()
    overlaps = page.evaluate(
        """() => { const r = [...document.querySelectorAll('#graph .box > .body')].map(b => b.getBoundingClientRect());
        let n = 0; r.forEach((a, i) => r.slice(0, i).forEach(b => { if (a.left < b.right - 1 && b.left < a.right - 1 &&
        a.top < b.bottom - 1 && b.top < a.bottom - 1) n++; })); return n; }"""
    )
    assert overlaps == 0
    size = page.evaluate("document.querySelector('#graph .name').getBoundingClientRect().height")
    assert size > 9  # pixels: legible
    page.locator("#graph .head").nth(1).click()
    assert boxes(page) < opened
    page.click("#graph [data-do=fold]")
    assert boxes(page) == folded


def test_the_graph_is_searched(visit, report):
    page = visit(report)
    page.keyboard.press("/")
    page.keyboard.type("relu")
    page.keyboard.press("Enter")
    assert "match 1 of 5" in status(page)
    assert page.locator("#graph .found").count() == 1
    page.keyboard.press("Enter")
    assert "match 2 of 5" in status(page)
    page.fill("#graph input", "3.0.weight")
    page.keyboard.press("Enter")
    assert "match 1 of 1" in status(page)
    page.fill("#graph input", "nowhere")
    page.keyboard.press("Enter")
    assert "nothing is called" in status(page)


def test_the_keyboard_moves_and_opens(visit, report):
    page = visit(report)
    page.focus("#graph .view")
    before = boxes(page)
    for _ in range(12):
        page.keyboard.press("ArrowDown")
        if page.locator("#graph .chosen.opens").count():
            break
    page.keyboard.press("Enter")
    assert boxes(page) > before
    page.keyboard.press("f")
    box = page.evaluate("document.querySelector('#graph svg').getAttribute('viewBox')")
    page.keyboard.press("+")
    assert page.evaluate("document.querySelector('#graph svg').getAttribute('viewBox')") != box
    page.keyboard.press("x")
    assert boxes(page) == before
    page.focus("#heat canvas")
    page.keyboard.press("ArrowLeft")
    assert "gradient" in page.inner_text("#tip")


def test_hovering_shows_tips(visit, report):
    page = visit(report)
    page.locator("#graph .box").first.hover()
    assert "ops" in page.inner_text("#tip") or "gradient norm" in page.inner_text("#tip")
    page.hover("#heat canvas")
    assert "update ÷ weight" in page.inner_text("#tip")
    page.hover("#loss .u-over")
    assert "training" in page.inner_text("#tip")
    page.hover("#windows canvas")
    assert "2 micro-batches" in page.inner_text("#tip")
    page.locator("#line canvas").hover(position={"x": 4, "y": 36})
    assert "forward" in page.inner_text("#tip")
    page.mouse.move(0, 0)
    assert page.locator("#tip").is_hidden()


def test_both_themes_parameters_and_tables(visit, report):
    page = visit(report, color_scheme="dark")
    back = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(back) == "rgb(15, 19, 24)"
    page.click("#theme")
    assert page.evaluate(back) == "rgb(255, 255, 255)"
    page.keyboard.press("t")
    assert page.evaluate(back) == "rgb(15, 19, 24)"
    assert colours(page, "#loss .chart")[0] > 6
    page.locator("#heat .names div").nth(2).click()
    assert page.locator("#spread select").input_value() == "2"
    page.select_option("#spread select", "-1")
    page.get_by_role("tab", name="by module").click()
    assert "Sequential" in page.inner_text("#time table")


def test_no_screen_scrolls_sideways(visit, report):
    page = visit(report)
    for width in (1360, 1000, 420, 1600):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(50)
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_graph_of_100000_nodes_is_ready(visit, tmp_path):
    w = ad.tensor(np.ones(2), requires_grad=True)
    y = w
    for _ in range(25_000):
        y = ad.tanh(y * 1.01) + w
        y = y - 0.1
    path = tmp_path / "large.html"
    assert len(ad.inspect.draw(y, path=path).graph.boxes) > 100_000
    page = visit(path)
    assert float(page.evaluate("document.documentElement.dataset.ready")) < 5000
    assert "of 100,000 ops" in status(page)
    while page.locator("#graph .opens").count():
        page.locator("#graph .opens").first.click()
        if page.locator("#graph .head").count() > 4:
            break
    assert boxes(page) <= 400
    page.fill("#graph input", "subtract")
    page.keyboard.press("Enter")
    assert "of 25,000" in status(page)


def test_text_of_users_is_never_markup(visit, tmp_path):
    evil = "</script><img src=x onerror=\"document.title='broken'\">"
    w = ad.tensor([1.0, 2.0], requires_grad=True)
    recorder = ad.inspect.Recorder()
    with recorder.capture({evil: w}):
        loss = (w * w).sum()
        loss.backward()
    recorder.record(loss, {evil: w})
    page = visit(ad.inspect.report(recorder, tmp_path / "evil.html", title=evil))
    assert page.inner_text("h1") == evil and page.title() == evil
    assert page.locator("img").count() == 0
