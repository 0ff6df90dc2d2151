"""A real browser, driven by Playwright; without one these tests are skipped, and `make test-browser` sets one up."""

import shutil

import pytest

from coterie.runs.comparison import compare
from coterie.runs.settings import Settings

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
METHODS = ("local", "fedavg", "autocfl", "slfed")
TINY = {"clients": 6, "net": "logistic", "limit": 400, "rounds": 4, "split": "autocfl-label"}


@pytest.fixture(scope="session")
def browser():
    """Chromium from the system's packages, without a window."""
    driver = pytest.importorskip("playwright.sync_api", reason="needs Playwright: run make test-browser")
    if CHROMIUM is None:
        pytest.skip("no chromium or google-chrome on this machine: run make test-browser")
    with driver.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """A comparison of several methods, with its page and its runs."""
    folder = tmp_path_factory.mktemp("runs")
    given = {**TINY, "insights": True, "gan_steps": 3, "synthetic": 20}
    compare([Settings.of(given, name, others=METHODS)[0] for name in METHODS], out=folder)
    return folder


class Shown:
    """A page as a browser shows it, and what went wrong in it."""

    def __init__(self, browser, width, height=900, **more):
        self.page = browser.new_page(viewport={"width": width, "height": height}, **more)
        self.errors, self.asked = [], []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda said: self.errors.append(said.text) if said.type == "error" else None)
        self.page.on("request", lambda request: self.asked.append(request.url))


@pytest.fixture
def show(browser):
    """Opens a page in a window of a width."""
    opened = []

    def opens(address, width=1200, **more):
        shown = Shown(browser, width, **more)
        opened.append(shown)
        shown.page.goto(address if "://" in str(address) else address.as_uri())
        return shown

    yield opens
    for shown in opened:
        shown.page.close()
