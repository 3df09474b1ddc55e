#!/usr/bin/env python3
"""Draws architecture.svg: a request's path through Warmroute, and how cache and load state comes back.

    docs/img/architecture.py            # writes docs/img/architecture.svg

Needs the standard library only. The picture has its own light panel, so it reads the same on light and dark pages.
"""

from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 960, 520
PANEL, INK, MUTED = "#ffffff", "#1f2328", "#57606a"
BLUE, GREEN, AMBER = ("#ddf4ff", "#0969da"), ("#dafbe1", "#1a7f37"), ("#fff8c5", "#9a6700")
GREY = ("#f6f8fa", "#8c959f")
FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"

shapes = []


def text(x, y, words, size=13, color=INK, anchor="middle", weight="normal"):
    shapes.append(f'<text x="{x}" y="{y}" font-size="{size}" fill="{color}" text-anchor="{anchor}" '
                  f'font-weight="{weight}">{escape(words)}</text>')


def box(x, y, width, height, title, lines=(), tone=GREY, size=13):
    fill, stroke = tone
    shapes.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="7" fill="{fill}" '
                  f'stroke="{stroke}" stroke-width="1.4"/>')
    middle = x + width / 2
    top = y + height / 2 - len(lines) * 8 + 5
    text(middle, top, title, size, weight="600")
    for number, line in enumerate(lines):
        text(middle, top + 17 + number * 15, line, 11, MUTED)


def frame(x, y, width, height, title, color):
    shapes.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="11" fill="none" '
                  f'stroke="{color}" stroke-width="1.6"/>')
    text(x + 14, y + 21, title, 13, color, "start", "600")


def arrow(points, tone=MUTED, dashed=False):
    path = " L ".join(f"{x} {y}" for x, y in points)
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    head = {MUTED: "ink", GREEN[1]: "green"}[tone]
    shapes.append(f'<path d="M {path}" fill="none" stroke="{tone}" stroke-width="1.6"{dash} '
                  f'marker-end="url(#{head})"/>')


def marker(name, color):
    return (f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            f'<path d="M0 0 L8 4 L0 8 z" fill="{color}"/></marker>')


def draw():
    # Clients.
    box(22, 92, 106, 64, "Clients", ("OpenAI and", "Anthropic APIs"))

    # The binary: gateway on top, the routing core below it.
    frame(168, 26, 560, 410, "warmroute serve (one binary)", BLUE[1])
    phases = [("Read", ("JSON fields,", "prompt digests")), ("Admit", ("limits,", "fair queue")),
              ("Route", ("choose and", "book a worker")), ("Forward", ("retry before", "first byte")),
              ("Relay", ("stream, usage,", "first token"))]
    step, width = 108, 94
    left = [184 + step * number for number in range(len(phases))]
    for x, (title, lines) in zip(left, phases):
        box(x, 92, width, 64, title, lines, BLUE)
    text(184, 80, "gateway", 11, MUTED, "start")
    arrow([(128, 124), (184, 124)])
    for x, following in zip(left, left[1:]):
        arrow([(x + width, 124), (following, 124)])

    frame(184, 226, 528, 194, "routing core (no I/O)", BLUE[1])
    box(204, 264, 156, 60, "Prefix index", ("which worker holds", "which prompt prefix"), GREEN)
    box(204, 344, 156, 60, "Load and latency", ("bookings, queues,", "learned prefill times"), AMBER)
    box(402, 300, 130, 64, "Policy", ("expected time to", "first token"), BLUE)
    box(562, 264, 132, 60, "Feedback", ("predicted against", "found tokens"), GREEN)
    box(562, 344, 132, 60, "Health", ("breakers, outliers,", "drains"), AMBER)
    arrow([(360, 294), (384, 294), (384, 322), (402, 322)])
    arrow([(360, 374), (384, 374), (384, 342), (402, 342)])
    arrow([(447, 300), (447, 156)])
    arrow([(562, 284), (360, 284)], GREEN[1], True)
    text(500, 277, "corrects", 11, GREEN[1])

    # Relay reports what happened.
    arrow([(668, 156), (668, 264)])
    text(660, 205, "first token, usage, end, failure", 11, MUTED, "end")
    text(440, 205, "worker, reason", 11, MUTED, "end")

    # Engines: requests leave from Forward, answers come back to Relay and go on to the client.
    for top, name in ((60, "Engine 1"), (132, "Engine 2"), (204, "Engine N")):
        box(800, top, 138, 52, name, ("vLLM, SGLang, ...",))
    arrow([(555, 92), (555, 62), (770, 62), (770, 78), (800, 78)])
    arrow([(770, 78), (770, 150), (800, 150)])
    arrow([(770, 150), (770, 222), (800, 222)])
    arrow([(800, 96), (752, 96), (752, 124), (710, 124)])
    arrow([(800, 168), (752, 168), (752, 124), (710, 124)])
    arrow([(800, 240), (752, 240), (752, 124), (710, 124)])
    arrow([(636, 156), (636, 176), (75, 176), (75, 156)])
    text(300, 171, "response stream", 11, MUTED)

    # What engines report.
    arrow([(869, 256), (869, 460), (282, 460), (282, 404)], MUTED, True)
    arrow([(628, 460), (628, 404)], MUTED, True)
    text(860, 478, "load and health probes (HTTP)", 11, MUTED, "end")
    arrow([(842, 256), (842, 428), (194, 428), (194, 316), (204, 316)], GREEN[1], True)
    text(834, 330, "KV events", 11, GREEN[1], "end")
    text(834, 345, "(ZMQ)", 11, GREEN[1], "end")

    # Peers and operators.
    box(22, 266, 118, 64, "Other routers", ("mesh or Redis:", "bookings, digests"))
    arrow([(140, 290), (204, 290)], MUTED, True)
    arrow([(204, 302), (140, 302)], MUTED, True)
    box(22, 356, 118, 80, "Operators", ("metrics, explain,", "workers, config", "(admin port)"))
    arrow([(140, 388), (168, 388)], MUTED, True)
    for x, words, color in ((24, "solid: requests and answers", MUTED), (236, "dashed: state that arrives beside requests", MUTED),
                            (528, "green: what the engines' caches hold", GREEN[1])):
        text(x, 502, words, 11, color, "start")


def main():
    draw()
    body = "\n".join(shapes)
    picture = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="{FONT}" role="img">\n'
               "<title>Warmroute: a request's path and the state behind the decision</title>\n"
               f'<defs>{marker("ink", MUTED)}{marker("green", GREEN[1])}</defs>\n'
               f'<rect width="{WIDTH}" height="{HEIGHT}" rx="14" fill="{PANEL}" stroke="#d0d7de"/>\n{body}\n</svg>\n')
    Path(__file__).with_name("architecture.svg").write_text(picture)


if __name__ == "__main__":
    main()
