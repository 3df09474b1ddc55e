#!/usr/bin/env python3
"""Draws load.svg: mean time to first token against load, from docs/study/results/load-conversation.md.

    docs/img/load.py                    # writes docs/img/load.svg
    docs/img/load.py --check            # fails where it is not of the committed report

Needs the standard library only. The figures are read from the committed report, never typed in here.
"""

import math
import re
import sys
from pathlib import Path
from xml.sax.saxutils import escape

HERE = Path(__file__).resolve().parent
REPORT = HERE.parent / "study" / "results" / "load-conversation.md"
COLORS = {"expected_ttft": "#0969da", "cache_aware": "#1a7f37", "weighted_score": "#9a6700",
          "prefix_affinity": "#8250df", "least_loaded": "#cf222e", "round_robin": "#57606a"}
WIDTH, HEIGHT = 760, 400
LEFT, RIGHT, TOP, BOTTOM = 74, 590, 62, 340
LOW_S, HIGH_S = 0.3, 200.0
FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"
UNITS = {"ms": 0.001, "s": 1.0, "min": 60.0}


def read():
    """policy -> [(rate factor, mean TTFT in seconds)]"""
    lines, rate = {}, None
    for line in REPORT.read_text().splitlines():
        if heading := re.match(r"### rate factor ([\d.]+)$", line):
            rate = float(heading[1])
        elif rate and (row := re.match(r"\| (\w+) \| ([\d.]+) (ms|s|min)\b", line)):
            lines.setdefault(row[1], []).append((rate, float(row[2]) * UNITS[row[3]]))
    return lines


def x_of(rate):
    return LEFT + (rate - 1) / 3 * (RIGHT - LEFT)


def y_of(seconds):
    return BOTTOM - (math.log(seconds) - math.log(LOW_S)) / (math.log(HIGH_S) - math.log(LOW_S)) * (BOTTOM - TOP)


def text(x, y, words, size=12, color="#57606a", anchor="middle", weight="normal"):
    return (f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" fill="{color}" text-anchor="{anchor}" '
            f'font-weight="{weight}">{escape(words)}</text>')


def labels(lines):
    """Where each policy's name stands: beside its last point, moved apart where two would overlap."""
    wanted = sorted(((y_of(points[-1][1]), policy) for policy, points in lines.items()))
    placed, last = {}, -math.inf
    for y, policy in wanted:
        last = placed[policy] = max(y, last + 15)
    return placed


def main():
    lines = read()
    shapes = [text(20, 30, "Mean time to first token as load grows", 15, "#1f2328", "start", "600"),
              text(20, 48, "Mooncake conversation trace, 8 simulated workers (8B on an H200), 3 seeds, no KV events",
                   11, anchor="start")]
    for seconds in (0.5, 1, 2, 5, 10, 20, 50, 100):
        y = y_of(seconds)
        shapes.append(f'<path d="M {LEFT} {y:.1f} H {RIGHT}" stroke="#d0d7de" stroke-width="1"/>')
        shapes.append(text(LEFT - 8, y + 4, f"{seconds:g} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms", 11, anchor="end"))
    for rate in sorted({rate for points in lines.values() for rate, _ in points}):
        shapes.append(text(x_of(rate), BOTTOM + 20, f"{rate:g}x", 11))
    shapes.append(text((LEFT + RIGHT) / 2, BOTTOM + 42, "request rate, as a multiple of the trace's own; seconds on a log scale"))
    places = labels(lines)
    for policy, points in lines.items():
        color, bold = COLORS[policy], policy == "expected_ttft"
        path = " L ".join(f"{x_of(rate):.1f} {y_of(seconds):.1f}" for rate, seconds in points)
        shapes.append(f'<path d="M {path}" fill="none" stroke="{color}" stroke-width="{3 if bold else 1.8}"/>')
        shapes += [f'<circle cx="{x_of(rate):.1f}" cy="{y_of(seconds):.1f}" r="{4 if bold else 3}" fill="{color}"/>'
                   for rate, seconds in points]
        last = points[-1][1]
        shapes.append(text(RIGHT + 14, places[policy] + 4, f"{policy}  {last:.1f} s", 12, color, "start",
                           "600" if bold else "normal"))
    body = "\n".join(shapes)
    drawing = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="{FONT}" role="img">\n'
        "<title>Mean time to first token as load grows, by policy</title>\n"
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="14" fill="#ffffff" stroke="#d0d7de"/>\n{body}\n</svg>\n')
    if sys.argv[1:] == ["--check"]:
        sys.exit(None if (HERE / "load.svg").read_text() == drawing else "load.svg: not of the committed results; run docs/img/load.py")
    (HERE / "load.svg").write_text(drawing)


if __name__ == "__main__":
    main()
