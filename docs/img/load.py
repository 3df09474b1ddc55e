#!/usr/bin/env python3
"""Draws load.svg: mean time to first token against load, from docs/study/results/load-conversation.md.

    docs/img/load.py                    # writes docs/img/load.svg
    docs/img/load.py --check            # fails where it is not of the committed report

Needs the standard library only. The figures are read from the committed report, never typed in here. Colours follow the reader's light or
dark scheme.
"""

import math
import re
import sys
from pathlib import Path
from xml.sax.saxutils import escape

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "study"))
from drawing import FONT, STYLE, text  # noqa: E402  (one look for all figures)

REPORT = HERE.parent / "study" / "results" / "load-conversation.md"
COLOURS = {"expected_ttft": 4, "cache_aware": 3, "weighted_score": 5, "prefix_affinity": 2, "least_loaded": 1, "round_robin": 0}
WIDTH, HEIGHT = 760, 400
LEFT, RIGHT, TOP, BOTTOM = 74, 575, 70, 340
LOW_S, HIGH_S = 0.3, 200.0
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


def labels(lines):
    """Where each policy's name stands: beside its last point, moved apart where two would overlap."""
    wanted = sorted(((y_of(points[-1][1]), policy) for policy, points in lines.items()))
    placed, last = {}, -math.inf
    for y, policy in wanted:
        last = placed[policy] = max(y, last + 16)
    return placed


def drawing():
    lines, title = read(), "Mean time to first token as load grows"
    shapes = [text(20, 32, title, "title", 15),
              text(20, 51, "Mooncake conversation trace, 8 simulated workers (8B on an H200), 3 seeds, no KV events; less is better", "note")]
    for seconds in (0.5, 1, 2, 5, 10, 20, 50, 100):
        y = y_of(seconds)
        shapes += [f'<path d="M {LEFT} {y:.1f} H {RIGHT}" class="axis"/>',
                   text(LEFT - 8, y + 4, f"{seconds:g} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms", "note", 11, "end")]
    for rate in sorted({rate for points in lines.values() for rate, _ in points}):
        shapes.append(text(x_of(rate), BOTTOM + 20, f"{rate:g}×", "note", 11, "middle"))
    shapes.append(text((LEFT + RIGHT) / 2, BOTTOM + 42, "request rate, as a multiple of the trace's own; seconds on a log scale", "note", anchor="middle"))
    places = labels(lines)
    for policy, points in lines.items():
        colour = f"c{COLOURS[policy]}"
        path = " L ".join(f"{x_of(rate):.1f} {y_of(seconds):.1f}" for rate, seconds in points)
        shapes.append(f'<path d="M {path}" class="line {colour}"/>')
        shapes += [f'<circle cx="{x_of(rate):.1f}" cy="{y_of(seconds):.1f}" r="3" class="dot {colour}"/>' for rate, seconds in points]
        shapes.append(text(RIGHT + 14, places[policy] + 4, f"{policy}  {points[-1][1]:.1f} s", f"dot {colour}"))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="{escape(FONT)}" role="img">\n'
            f"<title>{title}, by policy</title>\n<style>{STYLE}</style>\n"
            f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="14" class="card"/>\n' + "\n".join(shapes) + "\n</svg>\n")


def main():
    file = HERE / "load.svg"
    if sys.argv[1:] == ["--check"]:
        sys.exit(None if file.read_text() == drawing() else "load.svg: not of the committed results; run docs/img/load.py")
    file.write_text(drawing())


if __name__ == "__main__":
    main()
