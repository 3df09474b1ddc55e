#!/usr/bin/env python3
"""Draws two pictures of ARCHITECTURE.md: who does what during a request, and the view of a worker's cache.

    docs/img/parts.py            # writes docs/img/request.svg and docs/img/cache-view.svg

Needs the standard library only, and the shapes of architecture.py.
"""

from pathlib import Path

import architecture as a

WIDTH = 960
LANES = (("Client", 100), ("Gateway: one task", 330), ("Router", 580), ("Worker", 850))


def lanes(bottom):
    for title, x in LANES:
        a.text(x, 34, title, 14, weight="600")
        a.shapes.append(f'<path d="M {x} 46 L {x} {bottom}" stroke="#d0d7de" stroke-width="1.4"/>')


def message(y, start, end, words, tone=a.MUTED, dashed=False):
    """An arrow between two lanes with its words above it."""
    one, other = LANES[start][1], LANES[end][1]
    gap = 8 if one < other else -8
    a.arrow([(one + gap, y), (other - gap, y)], tone, dashed)
    a.text((one + other) / 2, y - 6, words, 11, tone)


def step(lane, y, title, lines, tone, height=54):
    a.box(LANES[lane][1] - 100, y, 200, height, title, lines, tone)


def note(y, lines):
    """Words beside the client's lane, which ends behind them."""
    a.shapes.append(f'<rect x="20" y="{y - 13}" width="214" height="{15 * len(lines) + 6}" fill="{a.PANEL}"/>')
    for number, line in enumerate(lines):
        a.text(24, y + 15 * number, line, 11, a.MUTED, "start")


def request():
    lanes(690)
    message(72, 0, 1, "request")
    step(1, 84, "Read", ("fields and prompt as slices;", "chunks of the prompt"), a.BLUE)
    step(1, 148, "Admit", ("limits, fair queue, time budget:", "the request holds a permit"), a.BLUE)
    message(226, 1, 2, "route(request)")
    step(2, 238, "Look up", ("walk of the index,", "without a lock"), a.GREEN)
    a.frame(462, 304, 236, 132, "critical section of the model", a.AMBER[1])
    a.box(480, 334, 200, 40, "Load, policy, choice", (), a.AMBER)
    a.box(480, 382, 200, 42, "Book and presume", (), a.AMBER)
    message(456, 2, 1, "Decision: owns the booking")
    message(490, 1, 3, "body, unchanged but for splices")
    a.text(840, 520, "prefill", 11, a.MUTED, "end")
    message(540, 3, 1, "head and first chunk")
    message(566, 1, 2, "observe(first token): prefill ends", a.GREEN[1])
    message(566, 1, 0, "first byte")
    message(600, 3, 1, "chunks, usage")
    message(600, 1, 0, "chunks")
    message(634, 1, 2, "observe(end): cached tokens", a.GREEN[1])
    message(668, 1, 2, "drop: booking, connection, permit", a.MUTED, True)
    note(486, ("Before the first byte a failed", "worker is excluded, and the", "request is routed again."))
    note(636, ("A client that leaves drops the task:", "the same drop releases everything", "and stops the worker."))
    return 706


def cache_view():
    a.box(30, 150, 190, 96, "presumed", ("no usable events: what this", "router and its peers sent", "there, until it expires"), a.GREY)
    a.box(385, 150, 190, 96, "reported", ("the engine's events, and what", "was sent within 2 s, until", "its event arrives"), a.GREEN)
    a.box(740, 150, 190, 96, "uncertain", ("the events so far, weighed by", "their trust, and what was", "sent there"), a.AMBER)
    a.arrow([(220, 180), (385, 180)], a.GREEN[1])
    a.text(302, 173, "events that match", 11, a.GREEN[1])
    a.arrow([(385, 216), (220, 216)])
    a.text(302, 233, "silence, or blocks that", 11, a.MUTED)
    a.text(302, 248, "cannot be followed", 11, a.MUTED)
    a.arrow([(575, 180), (740, 180)])
    a.text(657, 158, "lost batches, no connection,", 11, a.MUTED)
    a.text(657, 173, "responses contradict", 11, a.MUTED)
    a.arrow([(740, 216), (575, 216)], a.GREEN[1])
    a.text(657, 233, "a whole replay, a clear, or", 11, a.GREEN[1])
    a.text(657, 248, "responses agree again", 11, a.GREEN[1])
    a.arrow([(835, 246), (835, 288), (125, 288), (125, 246)], a.MUTED, True)
    a.arrow([(480, 246), (480, 288)], a.MUTED, True)
    a.text(480, 306, "a new process behind the address: the next generation, with an empty cache", 11, a.MUTED)

    a.box(30, 34, 190, 60, "Decisions", ("presume on the worker;", "first tokens confirm"), a.BLUE)
    a.box(385, 34, 190, 60, "KV events", ("proven, sampled, all tiers:", "three holders"), a.GREEN)
    a.box(740, 34, 190, 60, "Responses", ("cached tokens against", "the prediction"), a.AMBER)
    a.arrow([(125, 94), (125, 150)])
    a.arrow([(480, 94), (480, 150)], a.GREEN[1])
    a.arrow([(835, 94), (835, 150)])
    a.text(845, 127, "stale: cut", 11, a.MUTED, "start")
    a.arrow([(790, 94), (790, 122), (530, 122), (530, 150)])
    a.text(650, 116, "judge trust, prove sampled blocks", 11, a.MUTED)
    a.text(30, 342, "View, trust and generation are one atomic word. A response judges only the generation in which its prediction was made.",
           11, a.MUTED, "start")
    return 362


def write(name, title, draw):
    a.shapes.clear()
    height = draw()
    body = "\n".join(a.shapes)
    picture = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="{a.FONT}" role="img">\n'
               f"<title>{title}</title>\n"
               f'<defs>{a.marker("ink", a.MUTED)}{a.marker("green", a.GREEN[1])}</defs>\n'
               f'<rect width="{WIDTH}" height="{height}" rx="14" fill="{a.PANEL}" stroke="#d0d7de"/>\n{body}\n</svg>\n')
    Path(__file__).with_name(name).write_text(picture)


def main():
    write("request.svg", "Who does what during a request", request)
    write("cache-view.svg", "The view of a worker's cache", cache_view)


if __name__ == "__main__":
    main()
