#!/usr/bin/env python3
"""Draws kubernetes.svg: routers in Kubernetes, what they watch, and what clients see.

    docs/img/kubernetes.py            # writes docs/img/kubernetes.svg

Needs the standard library only, and the shapes of architecture.py.
"""

from pathlib import Path

import architecture as a

WIDTH, HEIGHT = 960, 400


def draw():
    a.box(22, 150, 110, 64, "Clients", ("OpenAI and", "Anthropic APIs"))
    a.box(172, 150, 104, 64, "Service", ("port 80",), a.GREY)
    a.arrow([(132, 182), (172, 182)])

    a.frame(316, 24, 250, 310, "Deployment warmroute", a.BLUE[1])
    a.box(346, 70, 190, 84, "Router 1", ("all routers are active;", "watch, probe, choose,", "forward"), a.BLUE)
    a.box(346, 220, 190, 84, "Router 2", ("the same workers,", "the same caches"), a.BLUE)
    a.arrow([(276, 172), (310, 172), (310, 112), (346, 112)])
    a.arrow([(276, 192), (310, 192), (310, 262), (346, 262)])
    a.arrow([(384, 154), (384, 220)], a.MUTED, True)
    a.arrow([(410, 220), (410, 154)], a.MUTED, True)
    a.text(424, 184, "headless Service", 11, a.MUTED, "start")
    a.text(424, 199, "(mesh)", 11, a.MUTED, "start")

    a.frame(676, 24, 262, 310, "Pods with the label", a.GREEN[1])
    for top, name, state in ((60, "Engine pod", "ready: gets requests"), (148, "Engine pod", "not ready: keeps its cache view"),
                             (236, "Engine pod", "terminating: drains")):
        a.box(712, top, 200, 70, name, (state,), a.GREEN)
    a.arrow([(536, 96), (712, 96)])
    a.arrow([(536, 252), (630, 252), (630, 106), (712, 106)])
    a.text(622, 88, "requests", 11, a.MUTED)

    a.box(346, 350, 190, 40, "Kubernetes API server", (), a.AMBER)
    a.arrow([(384, 350), (384, 304)], a.MUTED, True)
    a.text(392, 323, "list and watch", 11, a.MUTED, "start")
    a.text(560, 374, "dashed: state that arrives beside requests", 11, a.MUTED, "start")


def main():
    draw()
    body = "\n".join(a.shapes)
    picture = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="{a.FONT}" role="img">\n'
               "<title>Warmroute in Kubernetes: routers, engines and the API server</title>\n"
               f'<defs>{a.marker("ink", a.MUTED)}{a.marker("green", a.GREEN[1])}</defs>\n'
               f'<rect width="{WIDTH}" height="{HEIGHT}" rx="14" fill="{a.PANEL}" stroke="#d0d7de"/>\n{body}\n</svg>\n')
    Path(__file__).with_name("kubernetes.svg").write_text(picture)


if __name__ == "__main__":
    main()
