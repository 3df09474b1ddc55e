"""A page in Chromium that notes what must not happen: console errors, and requests to anywhere else."""

import shutil
import time
from contextlib import contextmanager

from playwright.sync_api import sync_playwright

WAIT_S = 30


@contextmanager
def chromium():
    with sync_playwright() as playwright:
        # Chromium's own background requests would be noise; root cannot have its sandbox.
        options = ["--no-sandbox", "--disable-background-networking", "--disable-component-update"]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=options)
        try:
            yield browser
        finally:
            browser.close()


class Page:
    """A console page at `url`."""

    def __init__(self, browser, url, scheme="dark", size=(1440, 900), scale=1):
        viewport = {"width": size[0], "height": size[1]}
        self.context = browser.new_context(color_scheme=scheme, viewport=viewport, device_scale_factor=scale)
        self.page = self.context.new_page()
        self.page.set_default_timeout(WAIT_S * 1_000)
        self.errors, self.outside, self.url = [], [], url
        home = url.rsplit("/", 1)[0]
        self.page.on("console", lambda m: self.errors.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda r: None if r.url.startswith(home + "/") else self.outside.append(r.url))

    def open(self):
        self.answer = self.page.goto(self.url)
        return self

    def wait(self, condition):
        """Waits until a JavaScript expression is true. The page's policy forbids `eval`, with which playwright would wait."""
        deadline = time.monotonic() + WAIT_S
        while not self.page.evaluate(condition):
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {WAIT_S} s: {condition}")
            time.sleep(0.1)

    def wait_live(self, workers):
        self.wait("document.getElementById('link').textContent === 'live'")
        self.wait(f"document.getElementById('fleet').children.length === {workers}")

    def text(self, selector):
        return self.page.locator(selector).inner_text()

    def count(self, selector):
        return self.page.locator(selector).count()

    def close(self):
        self.context.close()
