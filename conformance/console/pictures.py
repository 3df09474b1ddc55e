"""Pictures of the console: to look at (`--screenshots FOLDER`), or the one of the README (`--picture`)."""

import sys
import time
from pathlib import Path

from PIL import Image, ImageChops

from browser import Page, chromium
from fleet import Engines, Gateway, Traffic

BINARY, MODE = sys.argv[1], sys.argv[2]
PICTURE = Path(__file__).resolve().parent.parent.parent / "docs/img/console.png"
SHADOW = ["--shadow", "round_robin,least_loaded,cache_aware"]
# Long enough for charts with something in them.
WATCHED_S = 100
SMALL_KV_TOKENS = 24_000


def take(browser, gateway, workers, path, scheme, size, watched_s, request=False):
    page = Page(browser, gateway.ui, scheme, size).open()
    page.wait_live(workers)
    page.wait("document.querySelectorAll('#rows li').length > 20")
    time.sleep(watched_s)
    if request:
        page.page.locator("#pause").click()
        page.page.locator("#rows li").nth(3).click()
        page.wait("!document.getElementById('drawer').hidden")
    page.page.mouse.move(2, 2)
    page.page.screenshot(path=str(path))
    if page.errors or page.outside:
        sys.exit(f"{path}: {page.errors} {page.outside}")
    page.close()
    print(path)


def with_palette(taken):
    """The page has few colours: a palette makes the file a third as large. (Median cut would give up rare ones, such as
    the red of an unhealthy worker.)"""
    picture = taken.quantize(256, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    changed = max(high for _, high in ImageChops.difference(taken, picture.convert("RGB")).getextrema())
    if changed > 24:
        sys.exit(f"the palette changes a colour by {changed} of 255")
    return picture


def few(browser, shots):
    engines = Engines(BINARY, count=8, kv_tokens=SMALL_KV_TOKENS)
    gateway = Gateway(BINARY, engines.urls, *SHADOW)
    traffic = Traffic(gateway, clients=40, prompts=24, pause_s=0.1)
    try:
        for shot in shots:
            take(browser, gateway, 8, *shot)
    finally:
        for one in (traffic, gateway, engines):
            one.stop()


def many(browser, shots):
    engines = Engines(BINARY, ranks=200, speed=20, kv_tokens=SMALL_KV_TOKENS)
    gateway = Gateway(BINARY, engines.urls, "--dp-size", "200", "--load-interval-ms", "10000", workers=200)
    traffic = Traffic(gateway, clients=4, prompts=80, pause_s=0.05)
    try:
        for shot in shots:
            take(browser, gateway, 200, *shot)
    finally:
        for one in (traffic, gateway, engines):
            one.stop()


with chromium() as browser:
    if MODE == "--picture":
        few(browser, [(PICTURE, "dark", (1440, 900), WATCHED_S)])
        with_palette(Image.open(PICTURE).convert("RGB")).save(PICTURE, optimize=True)
    else:
        folder = Path(sys.argv[3])
        folder.mkdir(parents=True, exist_ok=True)
        wide, narrow = (1440, 1180), (390, 1400)
        few(browser, [
            (folder / "dark.png", "dark", wide, 25),
            (folder / "light.png", "light", wide, 5),
            (folder / "request.png", "dark", wide, 2, True),
            (folder / "narrow.png", "dark", narrow, 5),
        ])
        many(browser, [(folder / "many.png", "dark", wide, 10), (folder / "many-request.png", "light", wide, 2, True)])
