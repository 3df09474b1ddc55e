"""Every query of the Grafana dashboard, asked of a real Prometheus. Started by `run` after check.py.

Two routers share state, have shadows and API keys, and get traffic, so that no panel has a reason to be empty.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "console"))

import fleet  # noqa: E402
import load  # noqa: E402
from check import ANNOUNCED, DOCS, Unkept, api, await_that, families, get, holds, values  # noqa: E402

ROOT = HERE.parent.parent
FILE = ROOT / "deploy/helm/warmroute/dashboards/warmroute.json"
BINARY, CONFIG, PROMETHEUS_PID = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
KEYS = {"search": "sk-search-of-the-test", "chat": "sk-chat-of-the-test"}
RATE_RANGE = "1m"


def panels():
    return [panel for panel in json.loads(FILE.read_text())["panels"] if panel["type"] != "row"]


def is_as_generated():
    done = subprocess.run([ROOT / "deploy/grafana/generate", "--check"], capture_output=True, text=True)
    if done.returncode != 0:
        raise Unkept(done.stderr.strip())


def names_only_documented_metrics():
    if unknown := families(FILE.read_text()) - families((DOCS / "metrics.md").read_text()):
        raise Unkept(f"no such metrics: {sorted(unknown)}")


def routers(folder):
    """Two routers that share state, in front of the demo's engines."""
    keys, secret = Path(folder, "keys"), Path(folder, "secret")
    keys.write_text("".join(f"{key} name={name}\n" for name, key in KEYS.items()))
    secret.write_text("a secret that two routers of a test share\n")
    for file in (keys, secret):
        file.chmod(0o600)
    urls = [worker["url"] for worker in json.loads(get(f"{ANNOUNCED['admin']}/workers"))]
    mesh = [fleet.free_port(), fleet.free_port()]
    started = []
    for at in (0, 1):
        started.append(fleet.Gateway(
            BINARY, urls, "--api-keys-file", str(keys), "--shadow", "round_robin,cache_aware", "--share", "mesh",
            "--share-secret-file", str(secret), "--mesh-listen", f"127.0.0.1:{mesh[at]}",
            "--mesh-peers", f"127.0.0.1:{mesh[1 - at]}"))
    return started


def scrape(gateways):
    targets = json.dumps([f"127.0.0.1:{gateway.admin_port}" for gateway in gateways])
    CONFIG.write_text(re.sub(r"targets: \[[^\]]*\]", f"targets: {targets}", CONFIG.read_text()))
    os.kill(PROMETHEUS_PID, signal.SIGHUP)
    await_that("Prometheus scrapes both routers", lambda: values('sum(up{job="warmroute"})') == [2])
    await_that("each router hears the other", lambda: values("min(warmroute_peers)") == [1])


def send_until(is_over, gateways):
    number = 0
    while not is_over.is_set():
        number += 1
        gateway = gateways[number % len(gateways)]
        key = list(KEYS.values())[number // 3 % len(KEYS)]
        request = urllib.request.Request(
            f"http://127.0.0.1:{gateway.port}/v1/chat/completions", load.chat(fleet.MODEL, number),
            {"content-type": "application/json", "authorization": f"Bearer {key}"})
        with urllib.request.urlopen(request, timeout=20) as answer:
            answer.read()


def expanded(query):
    return query.replace("$router", ".*").replace("$__rate_interval", RATE_RANGE)


def has_an_answer(query):
    def is_answered():
        found = values(expanded(query))
        # A share of nothing, of a worker without traffic, is NaN and leaves a gap in the graph.
        return any(value == value for value in found)

    await_that(f"an answer to {expanded(query)}", is_answered)


def counts_tokens_by_key():
    for kind in ("prompt", "output"):
        query = f"sum by (tenant) (warmroute_tenant_{kind}_tokens_total) > 0"
        await_that(f"{kind} tokens of each key", lambda: len(values(query)) == len(KEYS))


def ratios_are_shares():
    query = "sum(warmroute_reachable_cached_tokens_total) / sum(warmroute_prompt_tokens_total)"
    # The first prompts find nothing, and those in flight are not counted yet.
    await_that("some tokens to reach", lambda: any(0 < share for share in values(query)))
    found = values(query)
    if not 0 < found[0] <= 1:
        raise Unkept(f"the reachable share of prompt tokens is {found}")
    if values("sum(warmroute_reachable_cached_tokens_total) >= sum(warmroute_predicted_cached_tokens_total)") == []:
        raise Unkept("fewer tokens were reachable than were expected on the chosen workers")


def saturation_is_per_model():
    models = [row["metric"]["model"] for row in api("query", query="warmroute_workers_ready")["result"]]
    if set(models) != {fleet.MODEL}:
        raise Unkept(f"models {models}")


def counts_each_worker_once():
    query = next(panel["targets"][0]["expr"] for panel in panels() if panel["title"] == "Workers by state")
    reported, shown = len(values("count by (worker) (warmroute_worker_state)")), sum(values(expanded(query)))
    if shown != reported:
        raise Unkept(f"{reported} workers, {shown} in the panel")


def claims(gateways):
    yield "the dashboard is what deploy/grafana/generate writes", is_as_generated
    yield "it names only metrics of docs/metrics.md", names_only_documented_metrics
    yield "Prometheus scrapes two routers that share", lambda: scrape(gateways)
    yield "tokens are counted for each API key", counts_tokens_by_key
    for panel in panels():
        for target in panel["targets"]:
            name = f"{panel['title']}: {target['legendFormat']}"
            yield name, lambda query=target["expr"]: has_an_answer(query)
    yield "a worker that two routers report counts once", counts_each_worker_once
    yield "reachable tokens are a share, and at least those expected", ratios_are_shares
    yield "saturation is counted for each model", saturation_is_per_model


def main():
    with tempfile.TemporaryDirectory() as folder:
        gateways = routers(folder)
        is_over = threading.Event()
        traffic = threading.Thread(target=send_until, args=(is_over, gateways), daemon=True)
        traffic.start()
        try:
            results = [holds(claim, check) for claim, check in claims(gateways)]
        finally:
            is_over.set()
            traffic.join(30)
            for gateway in gateways:
                gateway.stop(kill=True)
    print(f"{results.count(True)} passed, {results.count(False)} failed")
    return 1 if False in results else 0


if __name__ == "__main__":
    sys.exit(main())
