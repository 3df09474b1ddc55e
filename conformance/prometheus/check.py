"""What the documents promise about metrics, asked of a real Prometheus. Started by `run`.

Each line of the output is a claim. A claim that fails is to be mended in the gateway or in the document, not here.
"""

import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import load

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent.parent / "docs"
DEADLINE_S = 15
TIMEOUT_S = 10

ANNOUNCED = json.loads(os.environ["CONFORMANCE_ANNOUNCED"])
PROMETHEUS = os.environ["PROMETHEUS_URL"]


class Unkept(Exception):
    """A claim does not hold; the text says why."""


def get(url):
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
        return answer.read().decode()


def api(path, **parameters):
    try:
        answer = get(f"{PROMETHEUS}/api/v1/{path}?{urllib.parse.urlencode(parameters)}")
    except urllib.error.HTTPError as error:
        raise Unkept(json.load(error).get("error", error)) from error
    return json.loads(answer)["data"]


def values(query):
    """What an instant query gives, as numbers."""
    data = api("query", query=query)
    samples = [data["result"]] if data["resultType"] == "scalar" else [row["value"] for row in data["result"]]
    return [float(value) for _, value in samples]


def await_that(what, is_so):
    deadline = time.monotonic() + DEADLINE_S
    while not is_so():
        if time.monotonic() > deadline:
            raise Unkept(f"not within {DEADLINE_S} s: {what}")
        time.sleep(0.1)


def promtool(*arguments, stdin=None, cwd=None):
    done = subprocess.run(
        ["promtool", *arguments], input=stdin, cwd=cwd, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    if done.returncode != 0:
        raise Unkept((done.stdout + done.stderr).strip())


def blocks(language, text):
    return [block.strip() for block in re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)]


def families(text):
    """The metrics that a text names; a histogram's parts are the histogram."""
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in re.findall(r"\bwarmroute_[a-z_]+\b", text)}


def scrape_begins():
    # Counters that begin before the load are seen to rise.
    await_that("Prometheus scrapes the gateway", lambda: values('up{job="warmroute"}') == [1])
    await_that("eight workers are ready", lambda: values('sum(warmroute_worker_state{state="ready"})') == [8])


def traffic_is_answered():
    worker = json.loads(get(f"{ANNOUNCED['admin']}/workers"))["workers"][0]
    if load.break_a_worker(worker["url"]) != 200:
        raise Unkept("the worker took no fault")
    good, broken = load.send(ANNOUNCED["listening"], worker["model"])
    if set(good) != {200} or set(broken) != {400}:
        raise Unkept(f"statuses {sorted(set(good))} for good requests and {sorted(set(broken))} for broken ones")
    sent = len(good)
    await_that(
        f"Prometheus counts {sent} requests",
        lambda: values('sum(warmroute_requests_total{outcome="ok"})') == [sent],
    )


def retries_are_counted():
    if values("sum(warmroute_retries_total)") != [2]:
        raise Unkept(f"two answers were cut, and retries are {values('sum(warmroute_retries_total)')}")


def page_is_clean():
    # promtool's linter reads Prometheus' older text format, in which a counter's family has `_total` in its name. Only
    # the comments differ; Prometheus itself reads the page as it is.
    page = get(f"{ANNOUNCED['admin']}/metrics")
    counters = set(re.findall(r"^# TYPE (\S+) counter$", page, re.MULTILINE))
    if not counters:
        raise Unkept("the page has no counters")

    def renamed(match):
        return f"# {match[1]} {match[2]}_total " if match[2] in counters else match[0]

    promtool("check", "metrics", stdin=re.sub(r"^# (HELP|TYPE) (\S+) ", renamed, page, flags=re.MULTILINE))


def snippet_is_a_configuration():
    snippet = blocks("yaml", (DOCS / "monitoring.md").read_text())[0]
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(DOCS / "alerts.yml", folder)
        Path(folder, "prometheus.yml").write_text(snippet)
        promtool("check", "config", "prometheus.yml", cwd=folder)


def alerts_are_evaluated():
    def rules():
        return [rule for group in api("rules", type="alert")["groups"] for rule in group["rules"]]

    await_that("Prometheus evaluates the rules", lambda: rules() and all(r["health"] != "unknown" for r in rules()))
    wrong = [f"{rule['name']}: {rule.get('lastError', rule['state'])}" for rule in rules()
             if rule["health"] != "ok" or rule["state"] != "inactive"]
    if wrong:
        raise Unkept("; ".join(wrong))


def alerts_are_explained():
    names = set(re.findall(r"alert: (\w+)", (DOCS / "alerts.yml").read_text()))
    explained = set(re.findall(r"^\| `(\w+)`", (DOCS / "monitoring.md").read_text(), re.MULTILINE))
    if names != explained:
        raise Unkept(f"only in one of alerts.yml and monitoring.md: {sorted(names ^ explained)}")


# The demo's engines publish no KV events, nothing is recorded or logged, its policy has no shadows, its clients have no keys and
# it has no peers, so these have no series here; `cargo test` compares the page's own list, and dashboard.py has the others.
WITHOUT_SERIES = ("warmroute_feed_", "warmroute_record_", "warmroute_access_log_", "warmroute_trace_spans", "warmroute_worker_trust", "warmroute_shadow_",
                  "warmroute_tenant_", "warmroute_peer", "warmroute_sharing_")


def metrics_are_documented():
    scraped = families(" ".join(api("label/__name__/values")))
    documented = families((DOCS / "metrics.md").read_text())
    absent = {name for name in documented if name.startswith(WITHOUT_SERIES)}
    if scraped - documented or documented - scraped - absent:
        raise Unkept(f"scraped, not documented: {sorted(scraped - documented)}; "
                     f"documented, not scraped: {sorted(documented - scraped - absent)}")


def used_metrics_exist():
    # A query such as `a or b` has an answer although `a` is misspelled.
    used = families((DOCS / "monitoring.md").read_text() + (DOCS / "alerts.yml").read_text())
    used = {name for name in used if not name.startswith("warmroute_tenant_")}
    if unknown := used - families(" ".join(api("label/__name__/values"))):
        raise Unkept(f"no such metrics: {sorted(unknown)}")


def query_has_an_answer(query):
    found = values(query)
    if not found:
        raise Unkept("the result is empty")
    if not all(math.isfinite(value) for value in found):
        raise Unkept(f"the result is {found}")
    return f"= {', '.join(f'{value:.4g}' for value in sorted(found)[:8])}"


def claims():
    yield "Prometheus scrapes the gateway", scrape_begins
    yield "it counts every request of the load", traffic_is_answered
    yield "it counts the retries", retries_are_counted
    yield "the page passes promtool's linter", page_is_clean
    yield "docs/metrics.md has exactly the metrics that are scraped", metrics_are_documented
    yield "docs/monitoring.md and docs/alerts.yml use no other", used_metrics_exist
    yield "the scrape configuration is valid", snippet_is_a_configuration
    yield "docs/alerts.yml is valid", lambda: promtool("check", "rules", str(DOCS / "alerts.yml"))
    yield "each alert fires when it should, and only then", lambda: promtool("test", "rules", str(HERE / "alerts_test.yml"))
    yield "each alert can be evaluated, and none is raised by a healthy fleet", alerts_are_evaluated
    yield "each alert is explained", alerts_are_explained
    queries = blocks("promql", (DOCS / "monitoring.md").read_text())
    if not queries:
        raise SystemExit("docs/monitoring.md has no queries")
    for query in queries:
        yield query, lambda query=query: query_has_an_answer(query)


def holds(claim, check):
    try:
        print(f"ok      {claim} {check() or ''}".rstrip(), flush=True)
        return True
    except (Unkept, OSError, subprocess.TimeoutExpired) as error:
        print(f"FAILED  {claim}\n        {error}", flush=True)
        return False


def main():
    results = [holds(claim, check) for claim, check in claims()]
    print(f"{results.count(True)} passed, {results.count(False)} failed")
    return 1 if False in results else 0


if __name__ == "__main__":
    sys.exit(main())
