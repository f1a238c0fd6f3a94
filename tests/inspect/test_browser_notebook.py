"""The HTML of a notebook in a real Chromium: the bar, the tables and the page are there, in the right fonts."""

from __future__ import annotations

import pytest
from notebooks import executed

pytestmark = [
    pytest.mark.browser,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def test_the_html_of_a_notebook_has_bar_table_and_page(browser, monkeypatch, tmp_path):
    nbconvert = pytest.importorskip("nbconvert")
    html = nbconvert.HTMLExporter(template_name="basic").from_notebook_node(executed(monkeypatch))[0]
    path = tmp_path / "notebook.html"
    path.write_text(html, encoding="utf-8")
    page = browser.new_page(viewport={"width": 1000, "height": 900})
    wrong = []
    page.on("pageerror", lambda e: wrong.append(str(e)))
    page.goto(path.as_uri())
    bar = page.locator("pre.adjoint-progress")
    assert bar.count() == 1 and bar.is_visible() and "█" * 24 + "  4/4" in bar.inner_text()
    assert "epoch 2/2" in page.inner_text("body")
    table = page.locator("table", has_text="forward")
    assert "multiply" in table.inner_text()
    fonts = "e => getComputedStyle(e).fontFamily"
    assert table.locator("td").nth(1).evaluate(fonts) == bar.evaluate(fonts) == "monospace"
    inside = page.frame_locator("iframe")
    inside.locator("html[data-ready]").wait_for(timeout=60_000)
    assert inside.locator("h1").inner_text() == "in a notebook"
    assert inside.locator("#loss .uplot").is_visible() and inside.locator("#says li").count() > 2
    inside.locator("#heat .names div").first.click()
    assert inside.locator("#spread select").input_value() == "0"
    assert not wrong
    page.close()
