"""Figures of the pages whose tables were printed by a script: expected_ttft, many_routers and peers.

The page's tables are the results. `read_tables` copies them to results/tables.json beside the page, and the figures are drawn from
that. `plot.py --check` fails where page, JSON and figures differ."""
import json
import re
from pathlib import Path

from drawing import cell, lines, text, write
from runs import Results, duration, milliseconds

HERE = Path(__file__).resolve().parent
PAGES = ["expected_ttft", "many_routers", "peers"]


def read_tables(page):
    """All tables of a page with the last line above each: [{"title", "rows": [{column: cell}]}]."""
    tables, title, columns = [], "", None
    for line in page.read_text().splitlines():
        if line.startswith("<!--"):
            columns = None
            continue
        if not line.startswith("|"):
            title, columns = (line.strip("#* ") or title), None
            continue
        cells = [part.strip() for part in line.strip("|").split("|")]
        if columns is None:
            # A column that others have the name of takes the name before it along.
            columns = [name if cells.count(name) == 1 else f"{cells[at - 1]}: {name}" for at, name in enumerate(cells)]
            tables.append({"title": title, "rows": []})
        elif set(line) - set("|-: "):
            tables[-1]["rows"].append(dict(zip(columns, cells, strict=True)))
    return tables


def number(words):
    """The first number of a cell."""
    return float(re.search(r"[-+]?\d[\d.,]*(e[+-]?\d+)?", words.replace("−", "-")).group().replace(",", ""))


def grid(out, tables):
    """expected_ttft against the best other policy, for each workload and load."""
    rows = tables[0]["rows"]
    workloads = list(dict.fromkeys(row["workload"] for row in rows))
    shares = list(dict.fromkeys(row["of capacity"].split()[0] for row in rows))
    kinds = {"green": "good", "even": "even", "red": "bad"}
    shapes = []
    for panel, metric in enumerate(["mean TTFT ms", "p99 TTFT ms"]):
        left, width = 130 + 360 * panel, 68
        shapes.append(text(left, 84, metric.removesuffix(" ms"), "title"))
        shapes += [text(left + width * place + width / 2, 104, share, "note", 11, "middle") for place, share in enumerate(shares)]
        for row in rows:
            colour, ratio, *_ = row[f"{metric}: against the best other"].replace("*", "").split()
            x, y = left + width * shares.index(row["of capacity"].split()[0]), 112 + 24 * workloads.index(row["workload"])
            shapes += cell(x, y, width, ratio, kinds[colour], 0.5 if colour == "even" else 1)
    shapes += [text(120, 127 + 24 * place, name, "name", 12, "end") for place, name in enumerate(workloads)]
    write(out / "study-grid.svg", "expected_ttft against the best of nineteen other policies in each cell",
          "TTFT over the best other's, by share of round_robin's capacity. Green: within 2 %, or better; grey: within chance; red: worse",
          shapes, 124 + 24 * len(workloads))


def several_routers(out, tables):
    """Hits against the number of routers, and time to first token against the delay between eight."""
    traffics = {table["title"].split(",")[0]: {row["routers"]: row for row in table["rows"]} for table in tables}
    counts, ways = [1, 2, 4, 8, 16], {"alone": 1, "alone, sessions kept together": 5, "shared, 50 ms": 4}
    say = lambda share: f"{share:.0f} %"
    shapes = []
    for place, (name, colour) in enumerate(ways.items()):
        x = 20 + [0, 90, 330][place]
        shapes += [f'<path d="M {x} 74 h 22" class="line c{colour}"/>', text(x + 28, 78, name, "name")]
    for place, (traffic, rows) in enumerate(traffics.items()):
        hit = lambda count, way: number(rows["1 router" if count == 1 else f"{count} {way}"]["token hit %"])
        series = [([hit(count, way) for count in counts], colour, False) for way, colour in ways.items()]
        left, top = 65 + 415 * (place % 2), 124 + 220 * (place // 2)
        shapes += lines((left, top, left + 355, top + 150), traffic, counts, series, say, lambda count: f"{count:g}")
    write(out / "study-routers-hits.svg", "Token hit against the number of routers", "The same traffic on the same eight engines; expected_ttft, presumed view",
          shapes, 540)
    delays, colours = [0, 10, 50, 100, 500], dict(zip(traffics, [4, 1, 3, 5]))
    shapes = []
    for place, (metric, title) in enumerate([("mean TTFT ms: %", "mean TTFT"), ("p99 TTFT ms: %", "p99 TTFT")]):
        more = lambda rows, ms: max(0.0, number(rows[f"8 shared, {ms} ms"][metric]))
        series = [([more(rows, ms) for ms in delays], colours[traffic], False) for traffic, rows in traffics.items()]
        left = 65 + 415 * place
        shapes += lines((left, 124, left + 355, 310), title, delays, series, lambda share: f"+{share:.0f} %", lambda ms: f"{ms:g} ms")
    shapes += [shape for place, (name, colour) in enumerate(colours.items()) for shape in (
        f'<path d="M {20 + 140 * place} 74 h 22" class="line c{colour}"/>', text(48 + 140 * place, 78, name, "name"))]
    write(out / "study-routers-delay.svg", "Eight routers that share state against one: time to first token by delay",
          "Time that a message between routers takes; less is better, and values below zero are drawn as zero", shapes, 350)


def peers(out, tables):
    """Mean time to first token and hits of the real binaries, by traffic."""
    shapes, top = [], 84
    for table in tables[:2]:
        rows = sorted(table["rows"], key=lambda row: number(row["TTFT mean, ms"]))
        most = max(number(row["TTFT mean, ms"]) for row in rows)
        shapes += [text(20, top, table["title"].split("**")[0], "title"), text(200, top, "mean TTFT", "note"), text(640, top, "token hit", "note")]
        for place, row in enumerate(rows):
            y, ms, hit = top + 12 + 22 * place, number(row["TTFT mean, ms"]), number(row["token hit, %"])
            kind = "c4" if row["router"] == "warmroute expected_ttft" else "c0"
            shapes += [text(190, y + 12, row["router"], "name", 12, "end"),
                       f'<rect x="200" y="{y}" width="{340 * ms / most:.1f}" height="15" rx="2" class="bar {kind}"/>',
                       text(206 + 340 * ms / most, y + 12, duration(ms), "name", 11),
                       f'<rect x="640" y="{y}" width="{1.5 * hit:.1f}" height="15" rx="2" class="bar {kind}"/>',
                       text(646 + 1.5 * hit, y + 12, f"{hit:.1f} %", "name", 11)]
        top += 22 * len(rows) + 40
    write(out / "study-peers.svg", "Real binaries of routers before the same simulated engines", "Mean over two runs of 400 requests; less time is better", shapes, top - 10)


def bars(left, width, y, series, most, say):
    """Bars below each other, each with its figure: (value, colour)."""
    shapes = []
    for place, (value, colour) in enumerate(series):
        length = max(1.0, width * value / most)
        shapes += [f'<rect x="{left}" y="{y + 13 * place}" width="{length:.1f}" height="11" rx="2" class="bar c{colour}"/>',
                   text(left + length + 6, y + 13 * place + 10, say(value), "note", 11)]
    return shapes


def named(names, y):
    """Names with the colours of their bars, in one row."""
    shapes, x = [], 20
    for name, colour in names.items():
        shapes += [f'<rect x="{x}" y="{y - 10}" width="14" height="11" rx="2" class="bar c{colour}"/>', text(x + 20, y, name, "name")]
        x += 46 + 7.2 * len(name)
    return shapes


def pays(out, table):
    """Mean time to first token as a share of least_loaded's: the study's first table."""
    policies = {"best other cache policy": 3, "expected_ttft": 4}
    shapes, y = named(policies, 78), 100
    for row in table["rows"]:
        base = milliseconds(row["least_loaded"])
        series = [(milliseconds(row[policy]) / base, colour) for policy, colour in policies.items()]
        name = re.sub(r"\[(.*)\]\(.*\)", r"\1", row["traffic"])
        shapes += [text(300, y + 17, name, "name", 12, "end"), *bars(310, 400, y, series, 1.1, lambda share: f"{share:.2f}")]
        y += 36
    shapes.append(f'<path d="M {310 + 400 / 1.1:.1f} 92 V {y - 6}" class="axis dash"/>')
    write(out / "study-pays.svg", "Mean time to first token against least_loaded, by traffic",
          "The dashed line is least_loaded; less is better; 8 workers, presumed view, 3 seeds", shapes, y + 4)


def thresholds(out, guidance):
    """cache_aware with its thresholds and worth, beside expected_ttft: mean time to first token in each fleet."""
    rules = {"cache_aware": 3, "cache_aware, worth=off": 5, "either threshold": 1, "expected_ttft": 4}
    fleets = {"equal-conversation": "equal workers, conversation", "unequal-conversation": "unequal workers, conversation",
              "equal-tenants": "equal workers, tenants", "unequal-tenants": "unequal workers, tenants", "bursts": "equal workers, bursts"}
    names = {"cache_aware": "cache_aware:preset=balanced", "cache_aware, worth=off": "cache_aware:preset=balanced:worth=off",
             "either threshold": "cache_aware:balance=either", "expected_ttft": "expected_ttft"}
    shapes, y = named(rules, 78), 100
    for file, words in fleets.items():
        results = Results(guidance, file)
        series = [(results.mean(names[rule], "ttft_ms.mean"), colour) for rule, colour in rules.items()]
        most = max(value for value, _ in series)
        shapes += [text(230, y + 30, words, "name", 12, "end"), *bars(240, 480, y, series, most, duration)]
        y += 13 * len(rules) + 14
    write(out / "study-thresholds.svg", "Thresholds of cache_aware, and the default without any: mean time to first token",
          "Each fleet has its own scale; less is better; 3 seeds", shapes, y + 4)


def draw(out, tables):
    """Draws all figures from the tables by page."""
    pays(out, next(table for table in read_tables(HERE / "README.md") if "against least_loaded" in table["rows"][0]))
    thresholds(out, HERE / "guidance" / "results")
    grid(out, tables["expected_ttft"])
    several_routers(out, tables["many_routers"])
    peers(out, tables["peers"])


def as_json(page):
    """The file that holds a page's tables, and what it has to hold."""
    return HERE / page / "results" / "tables.json", json.dumps(read_tables(HERE / page / "README.md"), indent=1, ensure_ascii=False) + "\n"
