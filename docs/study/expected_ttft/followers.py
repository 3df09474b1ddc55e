#!/usr/bin/env python3
"""What counting the requests that are about to come is worth, near and beyond capacity.

    followers.py --lab "warmroute lab" --data TRACES
"""

import argparse
import json
import shlex
import statistics
import subprocess

POLICIES = ["expected_ttft", "expected_ttft:without=followers", "product"]
TENANTS = "--workload tenants --requests 400 --workers 4 --kv-tokens 48000 --speed-percent 12 --seeds 48 --seed 100"
TRACE = "--trace {data}/mooncake/conversation_trace.jsonl.zst --workers 8"
CELLS = {
    "tenants, 10 % below capacity, presumed": f"{TENANTS} --rate-scale 1.1",
    "tenants near capacity, presumed": f"{TENANTS} --rate-scale 1.33",
    "tenants near capacity, reported": f"{TENANTS} --rate-scale 1.33 --view reported",
    "tenants near capacity, reported, caches reset": f"{TENANTS} --rate-scale 1.33 --view reported --history reset",
    "conversation, below capacity": f"{TRACE} --rate-scale 2",
    "conversation, far beyond capacity": f"{TRACE} --rate-scale 4",
}


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--lab", default="warmroute lab")
    arguments.add_argument("--data", required=True)
    arguments.add_argument("--quick", action="store_true", help="little traffic, to see that the command works")
    given = arguments.parse_args()
    print("| traffic | " + " | ".join(f"`{policy}`" for policy in POLICIES) + " |")
    print("|---|" + "--:|" * len(POLICIES))
    for name, cell in CELLS.items():
        print(f"| {name} | " + " | ".join(times(given, cell.format(data=given.data))) + " |", flush=True)


def times(given, cell):
    """Mean and p99 TTFT of each policy, over all seeds."""
    if given.quick:
        cell = cell.replace("--seeds 48", "--seeds 1") + ("" if "--requests" in cell else " --requests 60")
    command = [*shlex.split(given.lab), "simulate", *cell.split(), "--policies", ",".join(POLICIES), "--json", "-"]
    results = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["results"]
    for policy in POLICIES:
        ttft = [result["ttft_ms"] for result in results if result["policy"] == policy]
        mean, p99 = (statistics.mean(one[name] for one in ttft) for name in ("mean", "p99"))
        yield f"{mean:,.0f} / {p99:,.0f}"


if __name__ == "__main__":
    main()
