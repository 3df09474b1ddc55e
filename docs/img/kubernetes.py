#!/usr/bin/env python3
"""Draws the three set-ups of docs/kubernetes.md: a gateway with discovery, an endpoint picker, and several routers.

    docs/img/kubernetes.py            # writes docs/img/kubernetes-{gateway,picker,routers}.svg

Needs the standard library only, and the shapes of architecture.py.
"""

from pathlib import Path

import architecture as a

WIDTH = 960
POD_STATES = (("Engine pod", "ready: gets requests"), ("Engine pod", "not ready: keeps its cache view"),
              ("Engine pod", "terminating: drains"))


def pods(left, top, title):
    a.frame(left, top, 262, 250, title, a.GREEN[1])
    for number, (name, state) in enumerate(POD_STATES):
        a.box(left + 30, top + 36 + number * 70, 202, 56, name, (state,), a.GREEN)


def api_server(left, top, to):
    a.box(left, top, 190, 40, "Kubernetes API server", (), a.AMBER)
    a.arrow([(left + 40, top), to], a.MUTED, True)
    a.text(left + 50, top - 14, "list and watch", 11, a.MUTED, "start")


def gateway():
    a.box(22, 122, 110, 64, "Clients", ("OpenAI and", "Anthropic APIs"))
    a.box(176, 122, 104, 64, "Service", ("port 80",), a.GREY)
    a.arrow([(132, 154), (176, 154)])
    a.box(346, 96, 200, 116, "warmroute", ("watches pods, probes,", "chooses by cache and load,", "forwards, retries"), a.BLUE)
    a.arrow([(280, 154), (346, 154)])
    pods(676, 24, "Pods with the label, or of a pool")
    a.arrow([(546, 140), (640, 140), (640, 88), (706, 88)])
    a.text(592, 130, "requests", 11, a.MUTED)
    a.arrow([(706, 158), (640, 158), (640, 180), (546, 180)], a.MUTED, True)
    a.text(556, 198, "KV events, load", 11, a.MUTED, "start")
    api_server(346, 262, (386, 212))
    a.text(560, 292, "dashed: state that arrives beside requests", 11, a.MUTED, "start")
    return 320


def picker():
    a.box(22, 50, 100, 64, "Clients", ("OpenAI API",))
    a.box(190, 36, 240, 92, "Envoy", ("Envoy Gateway, Istio,", "kgateway, GKE"), a.GREY)
    a.arrow([(122, 82), (190, 82)])
    pods(676, 24, "Pods of the pools")
    a.arrow([(430, 82), (706, 82)])
    a.text(560, 72, "requests and responses", 11, a.MUTED)
    a.frame(140, 226, 340, 136, "Deployment warmroute (picker)", a.BLUE[1])
    a.box(156, 266, 146, 76, "Picker 1", ("a port for each pool;", "all are active"), a.BLUE)
    a.box(318, 266, 146, 76, "Picker 2", ("the same workers,", "the same caches"), a.BLUE)
    a.arrow([(214, 128), (214, 226)])
    a.text(206, 180, "head and body (ext_proc)", 11, a.MUTED, "end")
    a.arrow([(240, 226), (240, 128)], a.GREEN[1])
    a.text(248, 160, "the pod's address", 11, a.MUTED, "start")
    a.arrow([(370, 128), (370, 226)], a.MUTED, True)
    a.text(378, 196, "the response, observed", 11, a.MUTED, "start")
    a.arrow([(302, 304), (318, 304)], a.MUTED, True)
    a.arrow([(706, 222), (600, 222), (600, 304), (480, 304)], a.MUTED, True)
    a.text(496, 296, "KV events, load", 11, a.MUTED, "start")
    a.box(540, 346, 390, 66, "InferencePool", ("selects the pods; endpointPickerRef names",
                                               "the picker's Service and the pool's port"), a.GREY)
    api_server(156, 400, (196, 362))
    a.text(156, 466, "dashed: state that arrives beside requests", 11, a.MUTED, "start")
    return 484


def routers():
    a.box(22, 150, 110, 64, "Clients", ("OpenAI and", "Anthropic APIs"))
    a.box(172, 150, 104, 64, "Service", ("port 80",), a.GREY)
    a.arrow([(132, 182), (172, 182)])
    a.frame(316, 24, 250, 310, "warmroute, on each node or n times", a.BLUE[1])
    a.box(346, 70, 190, 84, "Router 1", ("all routers are active;", "watch, probe, choose,", "forward"), a.BLUE)
    a.box(346, 220, 190, 84, "Router 2", ("the same workers,", "the same caches"), a.BLUE)
    a.arrow([(276, 172), (310, 172), (310, 112), (346, 112)])
    a.arrow([(276, 192), (310, 192), (310, 262), (346, 262)])
    a.arrow([(384, 154), (384, 220)], a.MUTED, True)
    a.arrow([(410, 220), (410, 154)], a.MUTED, True)
    a.text(424, 184, "headless Service", 11, a.MUTED, "start")
    a.text(424, 199, "(mesh)", 11, a.MUTED, "start")
    pods(676, 24, "Pods with the label")
    a.arrow([(536, 96), (706, 96)])
    a.arrow([(536, 252), (630, 252), (630, 108), (706, 108)])
    a.text(622, 88, "requests", 11, a.MUTED)
    api_server(346, 372, (386, 304))
    a.text(560, 396, "dashed: state that arrives beside requests", 11, a.MUTED, "start")
    return 424


def main():
    titles = {gateway: "a gateway with discovery", picker: "an endpoint picker behind Envoy", routers: "several routers"}
    for draw, title in titles.items():
        a.shapes.clear()
        height = draw()
        body = "\n".join(a.shapes)
        picture = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="{a.FONT}" role="img">\n'
                   f"<title>Warmroute in Kubernetes: {title}</title>\n"
                   f'<defs>{a.marker("ink", a.MUTED)}{a.marker("green", a.GREEN[1])}</defs>\n'
                   f'<rect width="{WIDTH}" height="{height}" rx="14" fill="{a.PANEL}" stroke="#d0d7de"/>\n{body}\n</svg>\n')
        Path(__file__).with_name(f"kubernetes-{draw.__name__}.svg").write_text(picture)


if __name__ == "__main__":
    main()
