#!/usr/bin/env python3
"""The results of run.sh as Markdown: one table for each traffic; mean over runs, and the least and the most in brackets."""

import json
import sys
from collections import defaultdict

COLUMNS = [
    ("TTFT mean, ms", lambda run: run["result"]["ttft_ms"]["mean"], "{:.0f}"),
    ("p50", lambda run: run["result"]["ttft_ms"]["p50"], "{:.0f}"),
    ("p95", lambda run: run["result"]["ttft_ms"]["p95"], "{:.0f}"),
    ("end to end p50, s", lambda run: run["result"]["e2e_ms"]["p50"] / 1e3, "{:.2f}"),
    ("token hit, %", lambda run: 100 * run["result"]["token_hit_ratio"], "{:.1f}"),
    ("busiest / mean", lambda run: max(run["shares"]) * len(run["shares"]) / sum(run["shares"]), "{:.2f}"),
    ("failed", lambda run: run["result"]["failed"], "{:.0f}"),
    ("router CPU, s", lambda run: run["router_cpu_s"], "{:.1f}"),
]


def cell(values, form):
    mean, least, most = sum(values) / len(values), min(values), max(values)
    said = form.format(mean)
    return said if form.format(least) == form.format(most) else f"{said} ({form.format(least)}..{form.format(most)})"


def main():
    traffics = defaultdict(lambda: defaultdict(list))
    with open(sys.argv[1]) as lines:
        for line in lines:
            run = json.loads(line)
            traffics[run["traffic"]][run["result"]["policy"]].append(run)
    for traffic, routers in traffics.items():
        runs = [run for all in routers.values() for run in all]
        loads = [run["machine_load"] for run in runs]
        print(f"\n**{traffic}**: {runs[0]['result']['requests']} requests, load of the machine {min(loads)} to {max(loads)}\n")
        print("| router | runs | " + " | ".join(name for name, _, _ in COLUMNS) + " |")
        print("|---|---:|" + "---:|" * len(COLUMNS))
        for router, all in sorted(routers.items(), key=lambda one: (not one[0].startswith("warmroute"), one[0])):
            cells = [cell([of(run) for run in all], form) for _, of, form in COLUMNS]
            print(f"| {router} | {len(all)} | " + " | ".join(cells) + " |")


main()
