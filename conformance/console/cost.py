"""What an open page costs the gateway: CPU time per request with and without a page, in turns.

The load is `warmroute lab drive`. What is compared is CPU time a request, so that a machine that is busy with other
things, or does not reach 1,000 requests a second, gives the same figure. The publisher's own time is in each frame.
"""

import json
import os
import statistics
import subprocess
import sys
import time

from browser import Page, chromium
from fleet import Engines, Gateway, await_that, get

BINARY = sys.argv[1]
TURNS = int(os.environ.get("TURNS", "6"))
TURN_S = 8
CLIENTS = 48
REQUESTS_PER_S = 1_000
SPEED = 50


def cpu_s(pid):
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def decided(gateway):
    page = get(gateway.ui[:-3] + "/metrics")
    return sum(float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line.startswith("warmroute_decisions_total{"))


def turn(gateway):
    """CPU milliseconds for a request, and requests a second."""
    cpu, requests, began = cpu_s(gateway.pid), decided(gateway), time.monotonic()
    time.sleep(TURN_S)
    cpu, requests, took = cpu_s(gateway.pid) - cpu, decided(gateway) - requests, time.monotonic() - began
    return 1e3 * cpu / requests, requests / took


def publisher(page):
    """Share of a core that the publisher used: the time of the frames over the time between them."""
    return page.page.evaluate(
        """() => new Promise((resolve) => {
            let [used, from] = [0, 0];
            fetch('/ui/stream').then(async (answer) => {
                const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
                let text = '';
                const seen = [];
                while (seen.length < 12) {
                    text += (await reader.read()).value;
                    const parts = text.split('\\n\\n');
                    text = parts.pop();
                    for (const part of parts) if (part.startsWith('event: frame')) seen.push(JSON.parse(part.slice(part.indexOf('{'))));
                }
                reader.cancel();
                used = seen.slice(1).reduce((sum, frame) => sum + frame.built_us, 0);
                resolve(used / 1000 / (seen.at(-1).at - seen[0].at));
            });
        })""")


def main():
    engines = Engines(BINARY, count=8, speed=SPEED)
    gateway = Gateway(BINARY, engines.urls)
    load = subprocess.Popen(
        [BINARY, "lab", "drive", "--url", f"http://127.0.0.1:{gateway.port}", "--workload", "short", "--speed", str(SPEED),
         "--concurrency", str(CLIENTS), "--duration", str(600 * SPEED), "--requests", "900000", "--json", os.devnull],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    closed, opened, rates, shares = [], [], [], []
    try:
        await_that("requests come", lambda: decided(gateway) > 1_000)
        with chromium() as browser:
            for _ in range(TURNS):
                ms, rate = turn(gateway)
                closed.append(ms)
                rates.append(rate)
                page = Page(browser, gateway.ui).open()
                page.wait_live(8)
                ms, rate = turn(gateway)
                opened.append(ms)
                rates.append(rate)
                shares.append(publisher(page))
                page.close()
    finally:
        load.kill()
        load.wait()
        gateway.stop(kill=True)
        engines.stop()
    more = [with_page - without for with_page, without in zip(opened, closed)]
    print(json.dumps({
        "requests_per_s": round(statistics.mean(rates)),
        "cpu_ms_per_request_without_page": round(statistics.mean(closed), 4),
        "cpu_ms_per_request_with_page": round(statistics.mean(opened), 4),
        "difference_percent_of_a_core_at_1000_per_s": round(statistics.mean(more) * REQUESTS_PER_S / 10, 2),
        "its_standard_error": round(statistics.stdev(more) / len(more) ** 0.5 * REQUESTS_PER_S / 10, 2),
        "publisher_percent_of_a_core": round(100 * statistics.mean(shares), 3),
    }, indent=1))


main()
