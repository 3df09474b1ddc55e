#!/usr/bin/env python3
"""Draws the figures of README.md from the committed results: docs/study/claims/figures.py [--results FOLDER] [--out FOLDER]

Writes claims-*.svg into docs/img. Colours follow the reader's light or dark scheme. Python's standard library only."""
import argparse
import sys
from pathlib import Path

from runs import Results, duration, percent

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from drawing import COLOURS, WIDTH, legend, lines, text, write  # noqa: E402  (one look for all figures)


def throughput(folder, out):
    policies = ["least_loaded", "prefix_affinity", "cache_aware", "expected_ttft"]
    b2b = Results(folder, "throughput-b2b")
    groups = [(f"b2b, {clients:g} in flight", b2b, (clients,)) for clients in b2b.values()]
    groups += [(name, Results(folder, f"throughput-{name}"), ()) for name in ["tenants", "codegen", "documents", "sharegpt", "unique"]]
    gain = lambda results, policy, at: (results.mean(policy, "output_tokens_per_s", *at) / results.mean("round_robin", "output_tokens_per_s", *at))
    most = max(gain(results, policy, at) for _, results, at in groups for policy in policies)
    left, width, shapes, y = 150, WIDTH - 150 - 90, legend(policies, 78), 100
    for name, results, at in groups:
        shapes.append(text(left - 10, y + 30, name, "name", 12, "end"))
        for place, policy in enumerate(policies):
            share = gain(results, policy, at)
            shapes += [f'<rect x="{left}" y="{y + 13 * place}" width="{width * share / most:.1f}" height="11" rx="2" class="bar c{COLOURS[policy]}"/>',
                       text(left + width * share / most + 6, y + 13 * place + 10, f"{100 * (share - 1):+.0f} %".replace("-", "−"), "note", 11)]
        y += 13 * len(policies) + 12
    shapes.append(f'<path d="M {left + width / most:.1f} 92 V {y - 6}" class="axis dash"/>')
    write(out / "claims-throughput.svg", "Output tokens per second at saturation, against round robin",
          "Closed loop, precise views; the dashed line is round robin; more is better", shapes, y + 8)


def one_over_n(folder, out):
    follow_up, chats = Results(folder, "one-over-n"), Results(folder, "one-over-n-chats")
    names, ns = ["1/N", "random", "round_robin", "session_affinity", "expected_ttft"], follow_up.values()
    hits = lambda policy: [2 * follow_up.mean(policy, "request_hit_ratio", n) for n in ns]
    tokens = lambda policy: [chats.mean(policy, "token_hit_ratio", n) for n in ns]
    say, of_n = (lambda share: f"{100 * share:.0f} %"), (lambda n: f"{n:g}")
    law = ([1 / n for n in ns], 0, True)
    shapes = legend(names, 78, dashed=("1/N",))
    shapes += lines((60, 130, 420, 330), "Follow-up questions that hit", ns, [law] + [(hits(name), COLOURS[name], False) for name in names[1:]], say, of_n)
    shapes += lines((480, 130, 840, 330), "Chats of 3.5 turns: token hit", ns, [(tokens(name), COLOURS[name], False) for name in names[1:]], say, of_n)
    write(out / "claims-one-over-n.svg", "The 1/N law: hits against the number of engines", "Caches that hold everything; 3 seeds", shapes, 370)


def callbacks(folder, out):
    shapes, policy = [], "sticky_least_loaded:literal"
    files = [("ShareGPT turns", "callbacks-sharegpt"), ("MTRAG", "callbacks-mtrag"), ("MTRAG-UN", "callbacks-mtragun")]
    for place, (title, name) in enumerate(files):
        results = Results(folder, name)
        sizes, intervals = results.values(0), results.values(1)
        if place == 0:
            shapes += legend([f"{size:,.0f} KV tokens an engine" for size in sizes], 78)
        ratios = lambda figure, size: [results.mean(policy, figure, size, ms) for ms in intervals]
        series = [(ratios(figure, size), colour, figure == "stale_at_choice_ratio")
                  for colour, size in enumerate(sizes) for figure in ("stale_request_ratio", "stale_at_choice_ratio")]
        left = 65 + 270 * place
        shapes += lines((left, 130, left + 205, 300), title, intervals, series, percent, lambda ms: f"{ms:g} ms")
    write(out / "claims-callbacks.svg", "Stale requests against the interval of eviction callbacks",
          "Predicted and not found; dashed: not in the cache already when the engine was chosen. sticky_least_loaded:literal, 4 engines", shapes, 340)


def surface(folder, out):
    shapes, top = [], 92
    figures = [("queue_ms.mean", "Wait in the engine's queue, mean"), ("ttft_ms.p99", "Time to first token, p99")]
    for traffic in ["assistants", "tenants", "conversation-3x"]:
        results = Results(folder, f"surface-{traffic}")
        affinities, queues = results.values(0), results.values(1)
        for column, (figure, words) in enumerate(figures):
            left = 80 + 410 * column
            values = {(a, q): results.mean("weighted_score", figure, a, q) for a in affinities for q in queues}
            low, high = min(values.values()), max(values.values())
            shapes.append(text(left, top, f"{traffic}: {words}", "title"))
            for row, queue in enumerate(queues):
                shapes.append(text(left - 8, top + 29 + 26 * row, f"queue {queue:g}", "note", 11, "end"))
                for place, affinity in enumerate(affinities):
                    value = values[affinity, queue]
                    dark = 0.08 + 0.87 * (1 - (value - low) / (high - low) if high > low else 1)
                    x, y = left + 54 * place, top + 12 + 26 * row
                    shapes += [f'<rect x="{x}" y="{y}" width="52" height="24" rx="3" class="cell" fill-opacity="{dark:.2f}"/>',
                               text(x + 26, y + 16, duration(value), "on" if dark > 0.55 else "off", 11, "middle")]
            for place, affinity in enumerate(affinities):
                shapes.append(text(left + 54 * place + 26, top + 26 + 26 * len(queues), f"{affinity:g}", "note", 11, "middle"))
        top += 26 * len(queues) + 64
    write(out / "claims-surface.svg", "Affinity against queueing: weights of weighted_score", "Columns: affinity weight. Strong blue is better", shapes, top - 20)


def staleness(folder, out):
    shapes = []
    for place, traffic in enumerate(["assistants", "tenants"]):
        results = Results(folder, f"staleness-{traffic}")
        names, ages = results.policies(), results.values()
        if place == 0:
            shapes += legend(names, 78)
        for row, (figure, title, words) in enumerate([("ttft_ms.mean", "mean TTFT", duration), ("stale_request_ratio", "stale requests", percent)]):
            series = [([results.mean(name, figure, age) for age in ages], COLOURS[name], False) for name in names]
            left, top = 75 + 415 * place, 130 + 240 * row
            shapes += lines((left, top, left + 340, top + 165), f"{traffic}: {title}", ages, series, words, lambda age: f"{age:g} s")
    write(out / "claims-staleness.svg", "How old may the directory be, where caches evict?", "Seconds between refreshes of an exact directory; assistants with 10 seeds, tenants with 3", shapes, 580)


def draw(results, out):
    """Draws all figures of the page."""
    for figure in (throughput, one_over_n, callbacks, surface, staleness):
        figure(results, out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--out", type=Path, default=HERE.parent.parent / "img")
    o = parser.parse_args()
    draw(o.results, o.out)


if __name__ == "__main__":
    main()
