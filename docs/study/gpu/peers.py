#!/usr/bin/env python3
"""peers.py: `expected_ttft` as a share of the better peer, for each traffic and seed that a file of results has with a peer.

Of each two figures the first is with KV events, the second presumed; those in bold are behind the peer by more than half a percent.
Files are compared within themselves: their routers shared one start of the servers, but for tenants-seed5, where the peers had the next
one. Two runs of one router differ by up to a tenth.
"""
import json
import pathlib

RESULTS = pathlib.Path(__file__).parent / "results"
FILES = ["tenants-all", "tenants-18s", "tenants-seed5", "tenants-seed7", "tenants-seed8", "tenants-peers", "tenants-seed6-peers", "closed-loop",
         "sharegpt", "sharegpt-seed8", "sharegpt-all", "mtrag", "mtrag-all", "places"]
METRICS = {"mean": "mean_ms", "p50": "p50_ms", "p95": "p95_ms", "p99": "p99_ms", "hits": "hit"}
OURS = ["expected_ttft+events", "expected_ttft"]


def cells():
    """(name of the file, traffic, seed) -> policy -> row."""
    found = {}
    for name in FILES:
        for line in (RESULTS / f"4x8b-{name}.jsonl").read_text().splitlines():
            row = json.loads(line)
            if "mean_ms" in row:
                traffic = "full load" if row.get("concurrency") and row["traffic"] == "tenants" else row["traffic"]
                found.setdefault((name, traffic, row["seed"]), {})[row["policy"]] = row
    return {cell: rows for cell, rows in found.items() if any(":" in policy for policy in rows)}


def share(rows, policy, metric):
    if policy not in rows:
        return "–"
    peers = [row[metric] for name, row in rows.items() if name.startswith(("smg:", "vllm-router:"))]
    ours = rows[policy][metric]
    value = ours / (max(peers) if metric == "hit" else min(peers))
    is_behind = value < 0.995 if metric == "hit" else value > 1.005
    return f"**{value:.2f}**" if is_behind else f"{value:.2f}"


def main():
    print("| Traffic | Seed | Raw | " + " | ".join(METRICS) + " |")
    print("|---|--:|---|" + "--:|" * len(METRICS))
    for (name, traffic, seed), rows in sorted(cells().items(), key=lambda cell: (cell[0][1], cell[0][2])):
        columns = [", ".join(share(rows, policy, metric) for policy in OURS) for metric in METRICS.values()]
        print(f"| {traffic} | {seed} | [{name}](results/4x8b-{name}.jsonl) | " + " | ".join(columns) + " |")


if __name__ == "__main__":
    main()
