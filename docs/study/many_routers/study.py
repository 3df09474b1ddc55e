#!/usr/bin/env python3
"""One router, and several: alone, behind a balancer that keeps sessions together, and telling each other what they do.

    docs/study/many_routers/study.py --lab "warmroute lab" --data FOLDER [--seeds 8] [--only b2b]

Every row is compared with the single router on the same arrivals, seed by seed: the differences' mean and 95 % interval. The
presumed view: all that a router knows of caches is what it has routed, so what is not shared is not known.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
# At 80 % of what round_robin can serve, as the grid of ../expected_ttft found it; codegen far below it, for its sessions are long.
RATES = {"conversation": 2.11, "synthetic": 0.907, "b2b": 0.89, "codegen": 0.0792}


def scenes(data):
    mooncake = os.path.join(data, "mooncake")
    for name in ("conversation", "synthetic"):
        yield name, ["--trace", f"{mooncake}/{name}_trace.jsonl.zst"]
    for name in ("b2b", "codegen"):
        yield name, ["--workload", name]


def settings():
    yield "1 router", []
    for routers in (2, 4, 8, 16):
        several = ["--routers", str(routers)]
        yield f"{routers} alone", several
        yield f"{routers} alone, sessions kept together", several + ["--balancer", "session"]
        yield f"{routers} shared, 50 ms", several + ["--share-delay-ms", "50"]
    for delay_ms in (0, 10, 100, 500):
        yield f"8 shared, {delay_ms} ms", ["--routers", "8", "--share-delay-ms", str(delay_ms)]
    yield "8 shared, 50 ms, 10 % lost", ["--routers", "8", "--share-delay-ms", "50", "--share-loss", "0.1"]
    yield "8 shared, 50 ms, cut in two for a minute", ["--routers", "8", "--share-delay-ms", "50", "--share-cut", "60..120"]


def simulate(lab, flags, seeds):
    fixed = ["simulate", "--bounds", "off", "--threads", "1", "--json", "-", "--policies", "expected_ttft", "--seeds", str(seeds)]
    done = subprocess.run(lab.split() + fixed + flags, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{flags}: {done.stderr[-500:]}")
    return json.loads(done.stdout)["results"]


def paired(ours, base, of, relative):
    """Mean and 95 % interval of the differences, in percent of the base or in points."""
    pairs = list(zip((of(one) for one in ours), (of(one) for one in base), strict=True))
    differences = [100 * (mine - other) / (other if relative else 1) for mine, other in pairs]
    mean = statistics.mean(differences)
    if len(differences) < 2:
        return f"{mean:+.1f}"
    within = STUDENT.get(len(differences), 2.26) * statistics.stdev(differences) / len(differences) ** 0.5
    return f"{mean:+.1f} ± {within:.1f}"


def shared_bytes(one):
    """Older results have another name for it."""
    return one["shared_bytes"] if "shared_bytes" in one else one["told_bytes"]


def row(name, results, base):
    mean = lambda of: statistics.mean(of(one) for one in results)
    span_s = lambda one: one["requests"] / one["throughput_rps"]
    routers = int(name.split()[0])
    told = mean(lambda one: shared_bytes(one) / span_s(one) / routers / 1000)
    asked = mean(lambda one: shared_bytes(one) / one["requests"] / 1000)
    return "| " + " | ".join([
        name,
        f"{100 * mean(lambda one: one['token_hit_ratio']):.1f}",
        paired(results, base, lambda one: one["token_hit_ratio"], False),
        f"{mean(lambda one: one['ttft_ms']['mean']):.4g}",
        paired(results, base, lambda one: one["ttft_ms"]["mean"], True),
        f"{mean(lambda one: one['ttft_ms']['p99']):.4g}",
        paired(results, base, lambda one: one["ttft_ms"]["p99"], True),
        f"{told:.3g}" if told else "",
        f"{asked:.3g}" if asked else "",
    ]) + " |"


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--lab", default="warmroute lab")
    arguments.add_argument("--data", required=True)
    arguments.add_argument("--seeds", type=int, default=8)
    arguments.add_argument("--requests", type=int, default=4000)
    arguments.add_argument("--only", default="")
    arguments.add_argument("--quick", action="store_true", help="60 requests and one seed, to check that it works")
    arguments.add_argument("--jobs", type=int, default=os.cpu_count())
    given = arguments.parse_args()
    if given.quick:
        given.seeds, given.requests = 1, 60
    for scene, traffic in scenes(given.data):
        if given.only and scene not in given.only.split(","):
            continue
        flags = traffic + ["--requests", str(given.requests), "--rate-scale", str(RATES[scene])]
        names, several = zip(*settings(), strict=True)
        with ThreadPoolExecutor(given.jobs) as pool:
            results = list(pool.map(lambda more: simulate(given.lab, flags + more, given.seeds), several))
        print(f"\n### {scene}, {RATES[scene]} times its rate\n")
        print("| routers | token hit % | points | mean TTFT ms | % | p99 TTFT ms | % | KB/s a router | KB a request |")
        print("|---|---|---|---|---|---|---|---|---|")
        for name, result in zip(names, results, strict=True):
            print(row(name, result, results[0]), flush=True)


main()
