"""The metrics' definitions: name, type, labels and meaning, from the tables of docs/metrics.md.

`cargo test` compares that page with what a gateway serves, so a metric that is not there does not exist.
"""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent.parent / "docs/metrics.md"


class Metric:
    def __init__(self, name, kind, labels, meaning):
        self.name, self.kind, self.labels, self.meaning = name, kind, labels, meaning


def code(text):
    return re.findall(r"`([^`]+)`", text)


def read():
    """All metrics by name."""
    metrics, prose, header = {}, "", None
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            prose, header = "", None
        elif line.startswith("| Metric |"):
            header = [cell.strip() for cell in line.strip("|").split("|")]
        elif header and line.startswith("| `warmroute_"):
            metric = of_row(dict(zip(header, (cell.strip() for cell in line.strip("| ").split(" | ")))), prose)
            metrics[metric.name] = metric
        elif not line.startswith("|"):
            header = None if line.strip() else header
            prose += f" {line}"
    return metrics


def of_row(row, prose):
    name = code(row["Metric"])[0]
    kind = row.get("Type") or ("counter" if name.endswith("_total") else "gauge")
    # A table without a column of labels says them before it: the worker or the policy, and the metric's own.
    common = re.search(r"the label\s+`(\w+)`", prose)
    labels = code(row["Labels"]) if "Labels" in row else [common[1]] if common else []
    own = [word for word in ("state", "view", "reason", "cause") if f"`{word}`" in row["Meaning"]]
    return Metric(name, kind, {*labels, *own}, re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", row["Meaning"]))
