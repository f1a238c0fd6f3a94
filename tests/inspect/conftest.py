"""Fixtures that open pages in Chromium; without it, or without playwright, tests that use them are skipped."""

from __future__ import annotations

import shutil

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
LONG_TASKS = """
window.longest = 0;
new PerformanceObserver((list) => list.getEntries().forEach((e) => (window.longest = Math.max(window.longest, e.duration))))
  .observe({ type: "longtask" });
"""


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def visit(browser):
    """Open a page; errors in the console and requests fail the test at its end."""
    wrong, pages = [], []

    def go(path, **options):
        page = browser.new_page(viewport={"width": 1360, "height": 900}, **options)
        pages.append(page)
        # Chromium writes the first text itself when a page asks for WebGPU that it does not have
        usual = ("No available adapters.",)
        page.on(
            "console",
            lambda m: (
                wrong.append(m.text) if m.type in ("error", "warning") and m.text not in usual else None
            ),
        )
        page.on("pageerror", lambda e: wrong.append(str(e)))
        page.on(
            "request",
            lambda r: wrong.append(r.url) if not r.url.startswith(("file:", "blob:", "data:")) else None,
        )
        page.add_init_script(LONG_TASKS)
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready]", timeout=60_000)
        return page

    yield go
    for page in pages:
        page.close()
    assert not wrong
