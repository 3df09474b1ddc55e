#!/usr/bin/env python3
"""Every policy on every workload at shares of its capacity, and who is best in each cell.

    docs/study/expected_ttft/grid.py --lab "warmroute lab" --data FOLDER [--seeds 5] [--out grid.json] [--only conversation,b2b]

Capacity is the load at which round_robin's queue begins to grow: what it serves a second when far more is asked of it. Each
cell is one `lab simulate` with the same arrivals for all policies. "Not worse" is a paired difference over the seeds whose 95 %
interval reaches zero, or a mean within 2 % of the best.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

POLICIES = [
    "expected_ttft", "round_robin", "least_loaded", "power_of_two", "session_affinity", "prefix_affinity", "cache_aware",
    "sticky_least_loaded", "weighted_score", "product", "dual_choice",
    "preble_e2", "dynamo_cost", "llmd_weights", "llmd_sticky", "lbgr", "mooncake_conductor", "chwbl", "aibrix",
]
SHARES = [0.5, 0.8, 0.95, 1.1, 1.5]
STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}


def scenes(data):
    """Name, flags, how far the rate is turned up to find the capacity."""
    mooncake, texts = os.path.join(data, "mooncake"), os.path.join(data, "sharegpt")
    yield "conversation", ["--trace", f"{mooncake}/conversation_trace.jsonl.zst"], 20
    yield "synthetic", ["--trace", f"{mooncake}/synthetic_trace.jsonl.zst"], 40
    yield "sharegpt", ["--trace", f"{texts}/ShareGPT_V3_filtered_500.json.zst", "--sessions-per-s", "20", "--think-s", "2"], 400
    yield "mtrag", ["--trace", f"{data}/mtrag/mtragun_reference.jsonl.zst", "--sessions-per-s", "20", "--think-s", "2"], 400
    for name, surely in [("b2b", 4), ("codegen", 8), ("reasoning", 20), ("batch", 10), ("unique", 10), ("one-hot-prefix", 20), ("burst", 10)]:
        yield name, ["--workload", name], surely
    groups = ["--worker-group", "4", "--worker-group", "2:speed-percent=50", "--worker-group", "2:kv-tokens=400000"]
    yield "heterogeneous", ["--trace", f"{mooncake}/conversation_trace.jsonl.zst"] + groups, 20


def lab(command, flags):
    done = subprocess.run(command + ["simulate", "--bounds", "off", "--threads", "1", "--json", "-"] + flags, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(flags)}: {done.stderr.strip()[-400:]}")
    return json.loads(done.stdout)["results"]


def served(command, flags, scale, requests):
    """Output tokens a second of round_robin at this scale."""
    (result,) = lab(command, flags + ["--policies", "round_robin", "--rate-scale", str(scale), "--requests", str(requests)])
    return result["output_tokens_per_s"]


def capacity(command, flags, surely, requests):
    """The rate scale that round_robin just serves."""
    offered = served(command, flags, surely / 1000, min(requests, 600)) * 1000 / surely
    return served(command, flags, surely, requests) / offered


def interval(differences):
    if len(differences) < 2:
        return 0.0
    return STUDENT[len(differences)] * statistics.stdev(differences) / len(differences) ** 0.5


def verdict(cell, metric, policy="expected_ttft"):
    """How the policy compares with the best other: (ratio to it, its name, whether it is not worse)."""
    values = lambda name: [run["ttft_ms"][metric] for run in cell[name]]
    others = {name: statistics.mean(values(name)) for name in cell if name != policy}
    best = min(others, key=others.get)
    own = statistics.mean(values(policy))
    differences = [a - b for a, b in zip(values(policy), values(best))]
    slack = max(0.02 * others[best], interval(differences))
    return own / others[best], best, statistics.mean(differences) <= slack


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--lab", default="warmroute lab")
    arguments.add_argument("--data", required=True)
    arguments.add_argument("--seeds", type=int, default=5)
    arguments.add_argument("--requests", type=int, default=8000)
    arguments.add_argument("--policies", default=",".join(POLICIES))
    arguments.add_argument("--only", default="")
    arguments.add_argument("--shares", default=",".join(map(str, SHARES)))
    arguments.add_argument("--view", default="exact")
    arguments.add_argument("--flags", default="", help="more flags for every cell")
    arguments.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments.add_argument("--out")
    options = arguments.parse_args()
    command, shares = options.lab.split(), [float(share) for share in options.shares.split(",")]
    chosen = [scene for scene in scenes(options.data) if not options.only or scene[0] in options.only.split(",")]
    common = ["--view", options.view, "--requests", str(options.requests)] + options.flags.split()

    def one(scene):
        name, flags, surely = scene
        more = options.flags.split()
        full = capacity(command, flags + more, surely, options.requests)
        cells = []
        for share in shares:
            runs = lab(command, flags + common + ["--rate-scale", f"{share * full:.4g}", "--seeds", str(options.seeds), "--policies", options.policies])
            cell = {}
            for run in runs:
                cell.setdefault(run["policy"], []).append(run)
            cells.append((share, cell))
        return name, full, cells

    results = {}
    print(f"| workload | of capacity | mean TTFT ms | against the best other | p99 TTFT ms | against the best other | token hit | goodput/s (best other) |")
    print("|---|---|---|---|---|---|---|---|")
    with ThreadPoolExecutor(options.jobs) as pool:
        for name, full, cells in pool.map(one, chosen):
            results[name] = {"capacity": full, "cells": [{"share": share, "runs": cell} for share, cell in cells]}
            for share, cell in cells:
                policy = options.policies.split(",")[0]
                own = cell[policy]
                mean = lambda get: statistics.mean(get(run) for run in own)
                columns = []
                for metric in ("mean", "p99"):
                    ratio, best, fine = verdict(cell, metric, policy)
                    columns += [f"{mean(lambda run: run['ttft_ms'][metric]):.4g}", f"{'green' if fine else '**red**'} {ratio:.2f} of {best}"]
                goodput = max((statistics.mean(run["goodput_rps"] for run in runs), other) for other, runs in cell.items() if other != policy)
                print(f"| {name} | {share:.0%} (×{share * full:.3g}) | {' | '.join(columns)} | {mean(lambda run: run['token_hit_ratio']):.3f} | {mean(lambda run: run['goodput_rps']):.4g} ({goodput[0]:.4g} {goodput[1]}) |", flush=True)
    if options.out:
        with open(options.out, "w") as file:
            json.dump(results, file)


main()
