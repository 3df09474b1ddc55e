#!/usr/bin/env python3
"""Draws the figures of the studies from their committed results.

    docs/study/plot.py              every figure: gpu, claims, expected_ttft, many_routers, peers -> docs/img
    docs/study/plot.py --check      fails where a figure, or a results/tables.json, is not that of the committed results
    docs/study/plot.py --where traffic=mtrag --where rate=8 --out mtrag.svg docs/study/gpu/results/4x8b-mtrag.jsonl

Files are results of bench/sockets/run.py: mean and p99 time to first token of every policy, as bars. Every scenario (all that a row says
beside policy and seed) has a panel. A bar is the mean over a policy's runs; a line across its end reaches from the lowest to the highest
run. Where policies have other runs than each other, each name says its seeds and runs. Colours follow the reader's light or dark scheme. Python's standard library only; figures are read, never typed in here.
"""
import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from xml.sax.saxutils import escape

from drawing import FONT, text

HERE = Path(__file__).resolve().parent
IMG = HERE.parent / "img"
# The runs of four 8B servers with ours and the peers.
GPU = [HERE / "gpu" / "results" / f"4x8b-{name}.jsonl" for name in ["tenants-all", "tenants-seed5", "tenants-seed7", "tenants-seed8", "tenants-peers",
                                                              "tenants-seed6-peers", "closed-loop", "sharegpt", "sharegpt-seed8",
                                                              "sharegpt-all", "mtrag", "mtrag-all"]]
# What describes a scenario in a row, and how a panel's title says it.
SHAPE = {"fleet": "{}", "traffic": "{}", "system": "system prompts of {:,} words", "rate": "{:g} conversations/s",
         "concurrency": "{} conversations at a time", "history": "{}"}
HISTORY = {"reset": "after a cache reset", "fresh": "new engines"}
METRICS = [("mean_ms", "mean TTFT"), ("p99_ms", "p99 TTFT")]
WIDTH, VALUE, GAP, ROW, BAR = 820, 62, 18, 25, 15
# A wide font's letters at the size of labels.
LETTER = 7.5
STYLE = """
.card{fill:#ffffff;stroke:#d0d7de} .title{fill:#1f2328;font-weight:600} .name{fill:#1f2328} .note{fill:#59636e}
.ours{fill:#0969da} .other{fill:#9aa4af} .ours-text{fill:#0550ae;font-weight:600} .axis{stroke:#d0d7de} .range{stroke:#1f2328}
@media (prefers-color-scheme: dark) {
.card{fill:#0d1117;stroke:#3d444d} .title{fill:#f0f6fc} .name{fill:#f0f6fc} .note{fill:#9198a1}
.ours{fill:#4493f8} .other{fill:#59636e} .ours-text{fill:#79b8ff} .axis{stroke:#3d444d} .range{stroke:#f0f6fc}
}
"""


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="*", type=Path, help="JSON lines of the GPU study; without any, all figures are drawn")
    parser.add_argument("--check", action="store_true", help="draw nothing; fail where a figure is not that of the results")
    parser.add_argument("--where", action="append", default=[], metavar="KEY=VALUE", help="only rows with this value")
    parser.add_argument("--title", default="Time to first token of real vLLM servers, by policy")
    parser.add_argument("--subtitle", default="Four vLLM 0.26.0 servers (8B) that share one H200; less is better")
    parser.add_argument("--out", type=Path, default=IMG / "gpu.svg")
    return parser.parse_args()


def read(files, where):
    """Rows with figures. Those of an earlier script have no `policy`, and those of a router that did not start no `mean_ms`."""
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines() if line.strip()]
    wanted = [condition.split("=", 1) for condition in where]
    fits = lambda row: all(is_value(row.get(key), value) for key, value in wanted)
    return [row for row in rows if "policy" in row and "mean_ms" in row and fits(row)]


def is_value(have, word):
    """Whether a row's value is the one of a flag; 3 is 3.0, too."""
    return format(have, "g") == word if isinstance(have, float) else str(have) == word


def scenarios(rows):
    """Scenario -> policy -> rows, in the order of the files."""
    found = {}
    for row in rows:
        key = tuple((name, row[name]) for name in SHAPE if row.get(name) is not None)
        found.setdefault(key, {}).setdefault(row["policy"], []).append(row)
    return found


def panel_title(key, policies):
    """What the scenario is, and how much was measured."""
    words = [SHAPE[name].format(HISTORY.get(value, value)) for name, value in key]
    runs = [row for rows in policies.values() for row in rows]
    requests = sorted({row["requests"] for row in runs if "requests" in row})
    seeds = len({row.get("seed") for row in runs})
    counts = f"{requests[0]:,}" if len(requests) == 1 else f"{requests[0]:,} to {requests[-1]:,}" if requests else "?"
    return ", ".join([*words, f"{counts} requests a run", "1 seed" if seeds == 1 else f"{seeds} seeds"])


def label(policy, all_policies):
    """A policy's name, and how it knows the caches where it ran in more than one way."""
    program, _, peer = policy.rpartition(":")
    name, _, source = peer.partition("+")
    if program:
        return f"{program.replace('smg', 'SMG')} {name}"
    ways = {"events": "KV events"}
    if source:
        return f"{name}, {ways.get(source, source)}"
    return f"{name}, presumed" if any(other.startswith(f"{policy}+") for other in all_policies) else name


def labels(policies):
    """The policies' names, with seeds and number of runs where these differ: their bars cannot be compared as well."""
    runs = {policy: sorted(str(row.get("seed", "?")) for row in rows) for policy, rows in policies.items()}
    if len({tuple(seeds) for seeds in runs.values()}) == 1:
        return {policy: label(policy, policies) for policy in policies}
    def told(seeds):
        many = f", {len(seeds)} runs" if len(seeds) > len(set(seeds)) else ""
        return f"seed{'s' if len(set(seeds)) > 1 else ''} {', '.join(sorted(set(seeds)))}{many}"
    return {policy: f"{label(policy, policies)} ({told(seeds)})" for policy, seeds in runs.items()}


def time(ms):
    return f"{ms / 1000:.2f} s" if ms >= 1000 else f"{ms:.0f} ms"


def bar(x, y, width, longest, values, kind):
    """One bar with its range and its figure. The scale begins at zero."""
    mean, scale = statistics.mean(values), width / longest
    shapes = [f'<rect x="{x}" y="{y}" width="{max(1, mean * scale):.1f}" height="{BAR}" rx="2" class="{kind}"/>']
    end = mean * scale
    if max(values) > min(values):
        low, high, middle = x + min(values) * scale, x + max(values) * scale, y + BAR / 2
        shapes.append(f'<path d="M {low:.1f} {middle} H {high:.1f} M {low:.1f} {middle - 3} v 6 M {high:.1f} {middle - 3} v 6" class="range"/>')
        end = max(values) * scale
    shapes.append(text(x + end + 6, y + BAR - 3, time(mean), "ours-text" if kind == "ours" else "name"))
    return shapes


def panel(top, key, policies, left):
    """A panel's shapes, and its height. Bars begin at `left`."""
    shapes, names = [text(20, top + 14, panel_title(key, policies), "note")], labels(policies)
    order = sorted(policies, key=lambda policy: statistics.mean(row["mean_ms"] for row in policies[policy]))
    width = (WIDTH - left - 20 - GAP) / 2 - VALUE
    first = top + 44
    for column, (metric, heading) in enumerate(METRICS):
        x = left + column * (width + VALUE + GAP)
        longest = max(row[metric] for rows in policies.values() for row in rows)
        shapes.append(text(x, top + 36, heading, "title"))
        for index, policy in enumerate(order):
            kind = "ours" if policy.startswith("expected_ttft") else "other"
            shapes += bar(x, first + index * ROW, width, longest, [row[metric] for row in policies[policy]], kind)
        shapes.append(f'<path d="M {x} {first - 4} V {first + len(order) * ROW - 4}" class="axis"/>')
    for index, policy in enumerate(order):
        kind = "ours-text" if policy.startswith("expected_ttft") else "name"
        shapes.append(text(left - 10, first + index * ROW + BAR - 3, names[policy], kind, anchor="end"))
    return shapes, 44 + len(order) * ROW + 16


def bars(o, files, out):
    """Draws results of bench/sockets/run.py."""
    rows = read(files, o.where)
    if not rows:
        sys.exit("no result fits")
    shapes, top = [text(20, 32, o.title, "title", 15), text(20, 51, o.subtitle, "note")], 66
    found = scenarios(rows)
    left = 30 + LETTER * max(len(name) for policies in found.values() for name in labels(policies).values())
    for key, policies in found.items():
        drawn, height = panel(top, key, policies, left)
        shapes += drawn
        top += height
    out.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top + 4}" font-family="{escape(FONT)}" role="img">\n'
                   f"<title>{escape(o.title)}</title>\n<style>{STYLE}</style>\n"
                   f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{top + 3}" rx="14" class="card"/>\n' + "\n".join(shapes) + "\n</svg>\n")


def everything(o, out):
    """Draws every figure of the studies into a folder."""
    sys.path.insert(0, str(HERE / "claims"))
    import figures
    import pages
    bars(o, GPU, out / "gpu.svg")
    figures.draw(HERE / "claims" / "results", out)
    tables = dict(map(pages.as_json, pages.PAGES))
    pages.draw(out, {file.parent.parent.name: json.loads(words) for file, words in tables.items()})
    return tables


def check(o):
    """Draws everything elsewhere and compares."""
    with tempfile.TemporaryDirectory() as folder:
        made = everything(o, Path(folder))
        made |= {IMG / file.name: file.read_text() for file in Path(folder).iterdir()}
    wrong = [file.name for file, words in made.items() if not file.exists() or file.read_text() != words]
    sys.exit(f"not of the committed results: {', '.join(wrong)}; run docs/study/plot.py" if wrong else 0)


def main():
    o = arguments()
    if o.results or o.where:
        return bars(o, o.results or GPU, o.out)
    if o.check:
        return check(o)
    for file, words in everything(o, IMG).items():
        file.parent.mkdir(exist_ok=True)
        file.write_text(words)


if __name__ == "__main__":
    main()
