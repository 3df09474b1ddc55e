"""Reads the lab's JSON: means over seeds, with the 95 % confidence of the mean."""
import json
import math
import statistics
from pathlib import Path

# Student's t for 95 %, by degrees of freedom from 1.
STUDENT = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228]


class Results:
    """One file: its points, each a list of runs. A file of `simulate` has one point without values."""

    def __init__(self, folder, name):
        self.name = name
        whole = json.loads((Path(folder) / f"{name}.json").read_text())
        self.command = whole["command"]
        points = whole.get("points") or [{"values": [], "results": whole["results"]}]
        self.points = [(tuple(point["values"]), point["results"]) for point in points]

    def values(self, place=0):
        """The values of a swept parameter, in order."""
        return list(dict.fromkeys(values[place] for values, _ in self.points))

    def policies(self):
        return list(dict.fromkeys(run["policy"] for _, runs in self.points for run in runs))

    def runs(self, policy, *values):
        """One policy's runs at a point; values may be left out at the end."""
        found = [run for at, runs in self.points if at[:len(values)] == values for run in runs if run["policy"] == policy]
        if not found:
            raise KeyError(f"{self.name}: no run of {policy} at {values}")
        return found

    def mean(self, policy, figure, *values):
        return statistics.mean(pick(run, figure) for run in self.runs(policy, *values))

    def within(self, policy, figure, *values):
        """Half of the 95 % interval; 0 with one seed."""
        all_of = [pick(run, figure) for run in self.runs(policy, *values)]
        if len(all_of) < 2:
            return 0.0
        return STUDENT[min(len(all_of) - 2, len(STUDENT) - 1)] * statistics.stdev(all_of) / math.sqrt(len(all_of))


def pick(run, figure):
    """`ttft_ms.mean` or a function of the run."""
    if callable(figure):
        return figure(run)
    for part in figure.split("."):
        run = run[part]
    return run


def duration(ms):
    return f"{ms:.1f} ms" if ms < 10 else f"{ms:.0f} ms" if ms < 1000 else f"{ms / 1000:.2f} s" if ms < 10_000 else f"{ms / 1000:.1f} s"


def milliseconds(words):
    """`12.3 s ± 4 s` or `42 ms`."""
    value, unit = words.split()[:2]
    return float(value) * (1000 if unit == "s" else 60_000 if unit == "min" else 1)


def percent(share):
    return f"{100 * share:.1f} %"


def count(number):
    return f"{number:,.0f}" if number >= 100 else f"{number:.1f}" if number >= 10 else f"{number:.2f}"


def change(new, old):
    """How much more or less, in percent."""
    return f"{100 * (new / old - 1):+.0f} %".replace("-", "−")
