#!/usr/bin/env python3
"""Agents on 16, 32 and 64 workers, presumed and reported: expected_ttft against the best other policy.

    docs/study/expected_ttft/agents.py --lab "warmroute lab"

`agentic` has contexts of hundreds of thousands of tokens; `coding-agents` has pauses at tools and sub-agents that start several at once.
The rate grows with the workers. Colours as in grid.py.
"""
import argparse
import os
import statistics
from concurrent.futures import ThreadPoolExecutor

from grid import METRICS, OURS, Lab, verdict

POLICIES = [OURS, "round_robin", "least_loaded", "session_affinity", "cache_aware", "product", "llmd_weights", "mooncake_conductor"]
# Requests on 16 workers.
REQUESTS = {"agentic": 1_500, "coding-agents": 4_000}


def row(lab, workload, workers, view, seeds):
    flags = ["--workload", workload, "--workers", str(workers), "--view", view, "--rate-scale", f"{workers / 8:g}",
             "--requests", str(REQUESTS[workload] * workers // 16), "--seeds", str(seeds), "--policies", ",".join(POLICIES)]
    runs = {}
    for run in lab.simulate(flags)["results"]:
        runs.setdefault(run["policy"], []).append(run)
    columns = [workload, str(workers), view]
    for metric in ("mean", "p99"):
        own, ratio, colour, best = verdict(runs, METRICS[metric])
        columns += [f"{own:,.0f}", f"{'**red**' if colour == 'red' else colour} {ratio:.2f} of {best}"]
    tpot = lambda policy: statistics.mean(run["tpot_ms"]["mean"] for run in runs[policy])
    hit = lambda policy: statistics.mean(run["token_hit_ratio"] for run in runs[policy])
    columns += [f"{tpot(OURS):.1f} ({tpot('session_affinity'):.1f}, {tpot('product'):.1f})", f"{hit(OURS):.3f} ({hit('round_robin'):.3f})"]
    return "| " + " | ".join(columns) + " |"


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--lab", default="warmroute lab")
    arguments.add_argument("--seeds", type=int, default=3)
    arguments.add_argument("--workers", default="16,32,64")
    arguments.add_argument("--quick", action="store_true", help="little traffic, to see that the command works")
    options = arguments.parse_args()
    if options.quick:
        options.seeds, options.workers = 1, "2"
    lab = Lab(options.lab.split(), [], 0)
    print("| workload | workers | view | mean TTFT ms | against the best other | p99 TTFT ms | against the best other "
          "| ms a token (session_affinity's, product's) | token hit (round_robin's) |")
    print("|---|--:|---|--:|---|--:|---|--:|--:|")
    rows = [(workload, workers, view) for workload in REQUESTS for workers in map(int, options.workers.split(",")) for view in ("presumed", "reported")]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for line in pool.map(lambda which: row(lab, *which, options.seeds), rows):
            print(line, flush=True)


if __name__ == "__main__":
    main()
