"""The look of the studies' figures: page, legend, lines and cells. Colours follow the reader's light or dark scheme.

Python's standard library only."""
import math
from xml.sax.saxutils import escape

FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"
WIDTH = 860
STYLE = """
.card{fill:#ffffff;stroke:#d0d7de} .title{fill:#1f2328;font-weight:600} .name{fill:#1f2328} .note{fill:#59636e} .axis{stroke:#d0d7de;fill:none}
.c0{--c:#57606a} .c1{--c:#cf222e} .c2{--c:#8250df} .c3{--c:#1a7f37} .c4{--c:#0969da} .c5{--c:#9a6700}
.line{stroke:var(--c);fill:none;stroke-width:2} .dash{stroke-dasharray:5 4} .dot,.bar{fill:var(--c)} .cell{fill:#0969da} .on{fill:#ffffff} .off{fill:#1f2328}
.good{fill:#1a7f37} .even{fill:#8c959f} .bad{fill:#cf222e}
@media (prefers-color-scheme: dark) {
.card{fill:#0d1117;stroke:#3d444d} .title,.name{fill:#f0f6fc} .note{fill:#9198a1} .axis{stroke:#3d444d}
.c0{--c:#8b949e} .c1{--c:#ff7b72} .c2{--c:#bc8cff} .c3{--c:#3fb950} .c4{--c:#58a6ff} .c5{--c:#d29922} .cell{fill:#1f6feb} .off{fill:#f0f6fc}
.good{fill:#238636} .even{fill:#6e7681} .bad{fill:#da3633}
}
"""

# A policy has the same colour in all figures.
COLOURS = {"1/N": 0, "random": 5, "round_robin": 1, "least_loaded": 1, "prefix_affinity": 2, "sticky_least_loaded": 2, "cache_aware": 3,
           "session_affinity": 3, "expected_ttft": 4, "weighted_score": 5}


def write(path, title, subtitle, shapes, height):
    head = [text(20, 32, title, "title", 15), text(20, 51, subtitle, "note")]
    path.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" font-family="{escape(FONT)}" role="img">\n'
                    f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n"
                    f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1:.0f}" rx="14" class="card"/>\n'
                    + "\n".join(head + shapes) + "\n</svg>\n")


def legend(names, y, dashed=()):
    """Names with their colours, in one row."""
    shapes, x = [], 20
    for place, name in enumerate(names):
        dash = " dash" if name in dashed else ""
        shapes += [f'<path d="M {x} {y - 4} h 22" class="line{dash} c{COLOURS.get(name, place)}"/>', text(x + 28, y, name, "name")]
        x += 50 + 7.2 * len(name)
    return shapes


def round_ticks(most):
    step = 10 ** math.floor(math.log10(most / 4)) if most > 0 else 1
    step = next(step * times for times in (1, 2, 2.5, 5, 10) if step * times >= most / 4)
    return [step * tick for tick in range(int(most / step) + 1)]


def lines(box, title, xs, series, words, x_words):
    """One panel: series are (values, colour, dashed); x positions are even, as the values grow by factors."""
    left, top, right, bottom = box
    most = max(value for values, *_ in series for value in values) * 1.05 or 1.0
    x_of = lambda place: left + (right - left) * (place + 0.5) / len(xs)
    y_of = lambda value: bottom - (bottom - top) * value / most
    shapes = [text(left, top - 12, title, "title")]
    for tick in round_ticks(most):
        shapes += [f'<path d="M {left} {y_of(tick):.1f} H {right}" class="axis"/>', text(left - 6, y_of(tick) + 4, words(tick), "note", 11, "end")]
    shapes += [text(x_of(place), bottom + 18, x_words(x), "note", 11, "middle") for place, x in enumerate(xs)]
    for values, colour, dashed in series:
        path = " L ".join(f"{x_of(place):.1f} {y_of(value):.1f}" for place, value in enumerate(values))
        shapes.append(f'<path d="M {path}" class="line c{colour}{" dash" if dashed else ""}"/>')
        shapes += [f'<circle cx="{x_of(place):.1f}" cy="{y_of(value):.1f}" r="3" class="dot c{colour}"/>' for place, value in enumerate(values)]
    return shapes


def cell(x, y, width, words, kind, opacity=1.0):
    """A filled field with its value."""
    return [f'<rect x="{x}" y="{y}" width="{width - 2}" height="22" rx="3" class="{kind}" fill-opacity="{opacity:.2f}"/>',
            text(x + width / 2 - 1, y + 15, words, "on" if opacity > 0.55 else "off", 11, "middle")]


def text(x, y, words, kind, size=12, anchor="start"):
    return f'<text x="{x:.0f}" y="{y:.0f}" class="{kind}" font-size="{size}" text-anchor="{anchor}">{escape(words)}</text>'
