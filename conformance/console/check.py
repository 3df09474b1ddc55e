"""What docs/console.md promises about the console, in a real Chromium. Started by `run`.

Each line of the output is a claim. A claim that fails is to be mended in the gateway or its page, not here.
"""

import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from browser import Page, chromium
from fleet import Engines, Gateway, Traffic, await_that, free_port

BINARY = sys.argv[1]
TOKEN = "t0ken-of-the-test"
SHADOWS = ["--shadow", "round_robin,cache_aware"]


@contextmanager
def running(*things):
    """Stops everything in the end, in reverse order."""
    started = []
    try:
        for make in things:
            started.append(make(*started))
        yield started
    finally:
        for thing in reversed(started):
            thing.stop()


def few(*options):
    """Four engines, a gateway and traffic."""
    return running(
        lambda: Engines(BINARY, count=4, speed=4),
        lambda engines: Gateway(BINARY, engines.urls, *options),
        lambda _, gateway: Traffic(gateway),
    )


def is_clean(page, lost=0):
    """No error beyond those of `lost` connections, which Chromium itself reports, and no request elsewhere."""
    errors = [text for text in page.errors if not (lost and "ERR_CONNECTION" in text or lost and "ERR_INCOMPLETE" in text)]
    assert not errors, f"console errors: {errors[:3]}"
    assert not page.outside, f"requests to others: {page.outside[:3]}"


def rises(page, expression, what):
    first = page.page.evaluate(expression)
    await_that(what, lambda: page.page.evaluate(expression) > first, 30)


def opens_and_updates(browser):
    with few(*SHADOWS) as (engines, gateway, _):
        page = Page(browser, gateway.ui).open()
        page.wait_live(4)
        policy = page.answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy, policy
        page.wait("document.querySelectorAll('#rows li').length > 10")
        rises(page, "Number(document.querySelector('#rows li .t') && [...document.querySelectorAll('#rows li')].length)", "rows arrive")
        page.wait("/^[1-9]/.test(document.getElementById('f-rate').textContent)")
        page.wait("document.getElementById('f-ttft').textContent.includes('ms')")
        page.wait("document.querySelectorAll('#prefixes .mono').length > 3")
        page.wait("document.querySelectorAll('#shadows .table > *').length >= 12")
        page.wait("document.querySelectorAll('#chart-ttft path').length >= 4")
        page.wait("[...document.querySelectorAll('#why span')].some(part => part.textContent.includes('%'))")
        assert "shares nothing" in page.text("#peers")
        hashes = page.page.locator("#prefixes .mono").all_inner_texts()
        assert all(len(text) == 12 and int(text, 16) >= 0 for text in hashes), hashes
        secret = "assistant number"
        assert secret not in page.page.content(), "the page shows a prompt"
        is_clean(page)
        page.close()


def request_shows_all_candidates(browser):
    with few() as (engines, gateway, _):
        page = Page(browser, gateway.ui).open()
        page.wait_live(4)
        page.page.locator("#pause").click()
        page.wait("document.querySelectorAll('#rows li').length > 3")
        page.page.locator("#rows li").first.click()
        page.wait("!document.getElementById('drawer').hidden")
        assert page.count(".cand:not(.h)") == 4, page.text("#drawer")
        assert page.count(".cand.chosen") == 1 and " ms" in page.text(".cand.chosen")
        page.page.keyboard.press("Escape")
        page.wait("document.getElementById('drawer').hidden")
        page.page.locator("#rows li").first.focus()
        page.page.keyboard.press("Enter")
        page.wait("!document.getElementById('drawer').hidden")
        is_clean(page)
        page.close()


def worker_filters_its_requests(browser):
    with few() as (engines, gateway, _):
        page = Page(browser, gateway.ui).open()
        page.wait_live(4)
        page.wait("document.querySelectorAll('#rows li').length > 10")
        name = page.page.locator(".card .name span:nth-child(2)").first.inner_text()
        page.page.locator(".card").first.click()
        page.wait(f"[...document.querySelectorAll('#rows .w')].every(cell => cell.textContent === '{name}')")
        assert page.page.locator("#filter").is_visible()
        page.page.locator("#filter").click()
        page.wait(f"[...document.querySelectorAll('#rows .w')].some(cell => cell.textContent !== '{name}')")
        is_clean(page)
        page.close()


def survives_a_restart(browser):
    with few() as (engines, gateway, _):
        page = Page(browser, gateway.ui).open()
        page.wait_live(4)
        page.wait("document.querySelectorAll('#rows li').length > 10")
        for kill in (True, False):
            gateway.stop(kill)
            page.wait("document.getElementById('link').classList.contains('lost')")
            gateway.start()
            page.wait_live(4)
            page.wait("document.querySelectorAll('#rows li').length > 10")
        is_clean(page, lost=2)
        page.close()


def a_page_does_not_delay_a_stop(browser):
    with few() as (engines, gateway, traffic):
        page = Page(browser, gateway.ui).open()
        page.wait_live(4)
        traffic.stop()
        began = time.monotonic()
        gateway.stop()
        took = time.monotonic() - began
        assert took < 15, f"the gateway took {took:.1f} s to stop"
        page.close()


def lost_worker_is_seen(browser):
    with few() as (engines, gateway, _):
        page = Page(browser, gateway.ui).open()
        page.wait_live(4)
        engines.processes[0].stop(kill=True)
        page.wait("document.querySelectorAll('.card .dot.s-unhealthy').length === 1")
        page.wait("document.getElementById('f-ready').textContent.startsWith('3')")
        is_clean(page)
        page.close()


def candidates_of_newest(page):
    page.page.evaluate("document.querySelector('#rows li').click()")
    page.wait("!document.getElementById('drawer').hidden")
    return page.count(".cand:not(.h)")


def two_hundred_workers(browser):
    with running(
        lambda: Engines(BINARY, ranks=200, speed=20),
        # One process is all engines: it is asked rarely.
        lambda engines: Gateway(BINARY, engines.urls, "--dp-size", "200", "--load-interval-ms", "10000", workers=200),
        lambda _, gateway: Traffic(gateway, clients=8, prompts=60),
    ) as (engines, gateway, _):
        page = Page(browser, gateway.ui).open()
        page.wait_live(200)
        page.wait("document.querySelectorAll('#rows li').length > 3")
        # Those that take requests are the candidates; on a busy machine a few may not.
        await_that("a request shows its candidates", lambda: candidates_of_newest(page) > 150)
        is_clean(page)
        page.close()


def narrow_window(browser):
    with few() as (engines, gateway, _):
        page = Page(browser, gateway.ui, size=(360, 740)).open()
        page.wait_live(4)
        page.wait("document.querySelectorAll('#rows li').length > 3")
        wide = page.page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 360, f"the page is {wide} pixels wide in a window of 360"
        page.page.locator("#pause").click()
        page.page.locator("#rows li").first.click()
        page.wait("document.querySelectorAll('#drawer .cand .w').length === 4")
        # Addresses of this machine fit; longer ones are cut at their start, because their ends differ.
        cut = page.page.evaluate("[...document.querySelectorAll('#drawer .cand .w')].filter((w) => w.scrollWidth > w.clientWidth).length")
        assert cut == 0, f"{cut} addresses of candidates are cut"
        assert page.page.evaluate("getComputedStyle(document.querySelector('#drawer .cand .w')).direction") == "rtl"
        is_clean(page)
        page.close()


def token_is_asked_for(browser):
    with few("--admin-token", TOKEN) as (engines, gateway, _):
        page = Page(browser, gateway.ui).open()
        page.wait("document.getElementById('ask').open")
        page.page.fill("#token", "wrong")
        page.page.keyboard.press("Enter")
        page.wait("document.getElementById('ask-error').textContent.includes('not accepted')")
        page.page.fill("#token", TOKEN)
        page.page.keyboard.press("Enter")
        page.wait_live(4)
        page.wait("document.querySelectorAll('#rows li').length > 3")
        page.page.locator("#rows li").first.click()
        page.wait("document.querySelectorAll('.cand.chosen').length === 1")
        page.page.reload()
        page.wait_live(4)
        assert TOKEN not in page.page.content() and TOKEN not in page.page.url
        # Chromium reports each 401 as an error of its own.
        page.errors = [text for text in page.errors if "401" not in text]
        is_clean(page)
        page.close()


def routers_that_share(browser):
    with tempfile.TemporaryDirectory() as folder:
        secret = Path(folder, "secret")
        secret.write_text("a secret that two routers of a test share\n")
        secret.chmod(0o600)
        mesh = [free_port(), free_port()]

        def router(at):
            peers = ["--mesh-listen", f"127.0.0.1:{mesh[at]}", "--mesh-peers", f"127.0.0.1:{mesh[1 - at]}"]
            share = ["--share", "mesh", "--share-secret-file", str(secret), *peers]
            return lambda engines, *_: Gateway(BINARY, engines.urls, *share)

        with running(
            lambda: Engines(BINARY, count=2, speed=4), router(0), router(1), lambda _, first, __: Traffic(first)
        ) as (engines, first, second, _):
            page = Page(browser, second.ui).open()
            page.wait_live(2)
            page.wait("document.querySelectorAll('#peers .table .mono').length === 1")
            is_clean(page)
            page.close()


CLAIMS = [
    opens_and_updates,
    request_shows_all_candidates,
    worker_filters_its_requests,
    lost_worker_is_seen,
    survives_a_restart,
    a_page_does_not_delay_a_stop,
    token_is_asked_for,
    narrow_window,
    two_hundred_workers,
    routers_that_share,
]


def main():
    wanted = sys.argv[2:]
    failed = 0
    with chromium() as browser:
        for claim in CLAIMS:
            if wanted and claim.__name__ not in wanted:
                continue
            name = claim.__name__.replace("_", " ")
            try:
                claim(browser)
                print(f"ok      {name}", flush=True)
            except Exception as error:  # noqa: BLE001 - each claim is reported
                failed += 1
                print(f"FAILED  {name}: {error}", flush=True)
    passed = len([c for c in CLAIMS if not wanted or c.__name__ in wanted]) - failed
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0)


main()
