#!/usr/bin/env python3
"""What each part of expected_ttft is good for: the rule without it, beside the whole, as ratios of mean and p99 TTFT.

    docs/study/expected_ttft/ablation.py --lab "warmroute lab" --data FOLDER [--seeds 5]

Workloads, capacity and arrivals are those of grid.py.
"""
import argparse
import os
import statistics
from concurrent.futures import ThreadPoolExecutor

from grid import OURS, Lab, compared, scenes

PARTS = ["queue", "behind", "followers", "step", "eviction", "lacking", "ties"]
CELLS = [("conversation", 0.95), ("conversation", 1.5), ("synthetic", 1.5), ("sharegpt", 1.5), ("chats", 0.95), ("one-hot-prefix", 0.5), ("one-hot-prefix", 0.95), ("batch", 0.95), ("burst", 0.95), ("b2b", 0.95)]


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--lab", default="warmroute lab")
    arguments.add_argument("--data", required=True)
    arguments.add_argument("--seeds", type=int, default=5)
    arguments.add_argument("--requests", type=int, default=4000)
    arguments.add_argument("--quick", action="store_true", help="little traffic, to see that the command works")
    options = arguments.parse_args()
    cells = CELLS[-1:] if options.quick else CELLS
    if options.quick:
        options.seeds, options.requests = 1, 400
    options.policies = ",".join([OURS] + [f"{OURS}:without={part}" for part in PARTS])
    lab = Lab(options.lab.split(), ["--view", "exact"], options.requests)
    known = {name: (flags, surely) for name, flags, surely in scenes(options.data, 1)}
    print("| workload | whole, mean and p99 ms | " + " | ".join(f"without {part}" for part in PARTS) + " |")
    print("|---|---|" + "---|" * len(PARTS))
    def runs_of(cell):
        name, share = cell
        flags, surely = known[name]
        return lab.cell(name, flags, lab.capacity(flags, surely) * share, options)[0]

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        done = list(zip(cells, pool.map(runs_of, cells)))
    for (name, share), runs in done:
        times = {rule: {metric: [run["ttft_ms"][metric] for run in some] for metric in ("mean", "p99")} for rule, some in runs.items()}
        whole = times[OURS]
        columns = [f"{name}, {share:.0%}", ", ".join(f"{statistics.mean(whole[metric]):.4g}" for metric in whole)]
        for part in PARTS:
            other = times[f"{OURS}:without={part}"]
            ratios = [statistics.mean(other[metric]) / statistics.mean(whole[metric]) for metric in whole]
            # Bold where the whole is better and chance does not explain it.
            marks = ["**" if compared(other[metric], whole[metric])[1] == "red" else "" for metric in whole]
            columns.append(", ".join(f"{mark}{ratio:.2f}{mark}" for mark, ratio in zip(marks, ratios)))
        print("| " + " | ".join(columns) + " |", flush=True)


main()
