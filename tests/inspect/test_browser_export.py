"""The page of the gallery that trains a network in the browser."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.browser,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def path(tmp_path, monkeypatch):
    """Return the page, which the example writes."""
    pytest.importorskip("llvmlite")
    pytest.importorskip("ziglang")
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location("digits_in_browser", EXAMPLES / "digits_in_browser.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.main() < 300_000
    return tmp_path / "digits_in_browser.html"


def draw(page, points):
    """Draw lines between points in the square of the page."""
    page.click("#clear")
    box = page.locator("#drawing").bounding_box()
    for k, (x, y) in enumerate(points):
        page.mouse.move(box["x"] + x, box["y"] + y)
        if not k:
            page.mouse.down()
    page.mouse.up()


def test_the_page_trains_reads_and_learns_from_corrections(path, visit):
    page = visit(path)  # errors in the console and requests fail the test
    assert "on WebAssembly: this browser has no WebGPU" in page.inner_text("#where")
    assert page.locator("#switch").is_hidden()
    assert page.inner_text("#guess") == "–" and page.locator("#corrections button").first.is_disabled()
    page.click("#train")
    page.locator("#train:text-is('Train')").wait_for(timeout=120_000)
    assert float(page.inner_text("#accuracy").split()[0]) > 90
    assert float(page.inner_text("#loss")) < 0.2 and int(page.inner_text("#steps")) >= 4000
    two = [(80, 80), (100, 45), (140, 40), (175, 70), (165, 110), (80, 215), (185, 215)]
    one = [(100, 70), (130, 40), (130, 220)]
    assert [(draw(page, p), page.inner_text("#guess"))[1] for p in (two, one)] == ["2", "1"]
    page.click("#corrections button:text-is('7')")  # this one is to be read as a 7 from now on
    page.locator("#guess:text-is('7')").wait_for()
    page.click("#reset")
    page.locator("#steps:text-is('0')").wait_for()
    assert page.inner_text("#steps") == "0" and page.inner_text("#loss") == "–"
    page.click("#train")
    page.locator("#train:text-is('Pause')").wait_for()
    page.click("#train")
    assert 0 < int(page.inner_text("#steps")) < 4000
    assert page.inner_text("#error") == "" and page.locator("#curve canvas").is_visible()


def test_the_page_trains_on_webgpu_where_the_browser_has_it(path, browser):
    flags = ["--no-sandbox", "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"]
    other = browser.browser_type.launch(executable_path=CHROMIUM, args=flags)
    try:
        page, wrong = other.new_page(), []
        page.on("pageerror", lambda e: wrong.append(str(e)))
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready]", timeout=60_000)
        if "no WebGPU" in page.inner_text("#where"):
            pytest.skip("this Chromium has no WebGPU")
        assert "on the GPU (WebGPU)" in page.inner_text("#where")
        page.click("#train")
        page.locator("#steps:text-matches('^[1-9][0-9][0-9]')").wait_for(timeout=120_000)
        page.click("#train")
        page.click("#switch")  # the parameters and the state of the optimiser move to WebAssembly
        page.locator("#where:text-matches('on WebAssembly.$')").wait_for(timeout=60_000)
        right = float(page.inner_text("#accuracy").split()[0])
        page.click("#train")
        page.locator("#train:text-is('Train')").wait_for(timeout=120_000)
        assert float(page.inner_text("#accuracy").split()[0]) > max(90, right)
        assert page.inner_text("#error") == "" and not wrong
    finally:
        other.close()
