#!/usr/bin/env python3
"""Every policy on every workload at shares of its capacity, and who is best in each cell.

    docs/study/expected_ttft/grid.py --lab "warmroute lab" --data FOLDER [--seeds 5] [--axis workers-32] [--only conversation,b2b] [--except codegen]

Capacity is the load at which round_robin's queue begins to grow (bisection, see `Lab.capacity`). Each cell is one `lab simulate` with the same arrivals for all policies. "Not worse" is a paired difference over the seeds whose 95 %
interval reaches zero, or a mean within 2 %. A cell is green within 2 % of the best other, even where the difference is larger but
within its interval (five seeds cannot tell), and red where it is worse. An axis changes one thing for all cells.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

OURS = "expected_ttft"
POLICIES = [
    OURS, "round_robin", "random", "least_loaded", "power_of_two", "session_affinity", "prefix_affinity", "cache_aware",
    "sticky_least_loaded", "weighted_score", "product", "dual_choice",
    "preble_e2", "dynamo_cost", "llmd_weights", "llmd_sticky", "lbgr", "mooncake_conductor", "chwbl", "aibrix",
]
# Policies that know nothing of caches; the default must never be worse than these.
FLOOR = ["round_robin", "least_loaded"]
SHARES = [0.5, 0.8, 0.95, 1.1, 1.5]
STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
# A queue that grows doubles the wait with the number of requests, one that does not leaves it as it is (traces change with
# time: what they take without any queue is compared). And where requests wait for ten times what they take alone, it has
# grown before half of them came.
GROWTH, GROWN = 1.3, 10
# Flags that change what routers know, and not what the fleet can serve.
KNOWLEDGE = {"--view", "--history", "--incident", "--evictions", "--event-lag-ms", "--refresh-s"}
# Flags, and how many times as many workers as 8: so many times the requests, and copies of a trace with nothing in common.
AXES = {
    "none": ([], 1),
    "workers-2": (["--workers", "2"], 0.25),
    "workers-32": (["--workers", "32"], 4),
    "workers-128": (["--workers", "128"], 16),
    "stale-1s": (["--refresh-s", "1"], 1),
    "presumed": (["--view", "presumed"], 1),
    # Routers that join engines with a history, engines that are reset, and evictions that are not published.
    "reset": (["--view", "reported", "--history", "reset"], 1),
    "warm-presumed": (["--view", "presumed", "--history", "warm"], 1),
    "resets": (["--view", "reported"] + [word for worker in range(8) for at in (4, 60) for word in ("--incident", f"reset:{worker}@{at + worker}")], 1),
    # With an eighth of the cache, or these workloads evict nothing.
    "evictions-unpublished": (["--view", "reported", "--evictions", "unpublished", "--kv-tokens", "105750"], 1),
    "late-events": (["--view", "reported", "--event-lag-ms", "500"], 1),
    # A prior of the latency model that is wrong by a factor of four, either way.
    "slow": (["--view", "reported", "--history", "reset", "--speed-percent", "25"], 1),
    "fast": (["--view", "reported", "--history", "reset", "--speed-percent", "400"], 1),
    "cache-quarter": (["--kv-tokens", "211500"], 1),
    "cache-fourfold": (["--kv-tokens", "3384000"], 1),
}


def scenes(data, times):
    """Name, flags, how far the rate is turned up to find the capacity."""
    mooncake, texts = os.path.join(data, "mooncake"), os.path.join(data, "sharegpt")
    copies = ["--copies", str(times)] if times > 1 else []
    # Of short traces as many copies as make about as many requests.
    some = lambda copies: ["--copies", str(max(1, int(copies * times)))]
    yield "conversation", ["--trace", f"{mooncake}/conversation_trace.jsonl.zst"] + copies, 20
    yield "synthetic", ["--trace", f"{mooncake}/synthetic_trace.jsonl.zst"] + copies, 40
    yield "sharegpt", ["--trace", f"{texts}/ShareGPT_V3_filtered_500.json.zst", "--sessions-per-s", "20", "--think-s", "2"] + some(8), 400
    yield "chats", ["--workload", "sharegpt"], 100 * times
    yield "mtrag", ["--trace", f"{data}/mtrag/mtragun_reference.jsonl.zst", "--sessions-per-s", "20", "--think-s", "2"] + some(2), 400
    for name, surely in [("b2b", 4), ("codegen", 8), ("reasoning", 20), ("batch", 10), ("unique", 10), ("one-hot-prefix", 20), ("burst", 10)]:
        yield name, ["--workload", name], surely * times
    groups = ["--worker-group", "4", "--worker-group", "2:speed-percent=50", "--worker-group", "2:kv-tokens=400000"]
    yield "heterogeneous", ["--trace", f"{mooncake}/conversation_trace.jsonl.zst"] + groups, 20


class Lab:
    def __init__(self, command, flags, requests):
        self.command, self.flags, self.requests = command, flags, requests

    def simulate(self, flags, bounds="off"):
        fixed = ["simulate", "--bounds", bounds, "--threads", "1", "--json", "-"]
        done = subprocess.run(self.command + fixed + self.flags + flags, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(flags)}: {done.stderr.strip()[-400:]}")
        return json.loads(done.stdout)

    def waits(self, flags, scale, requests):
        """Mean TTFT of round_robin at this scale."""
        more = ["--policies", "round_robin", "--rate-scale", f"{scale:.6g}", "--requests", str(requests)]
        (result,) = self.simulate(flags + more)["results"]
        return result["ttft_ms"]["mean"]

    def capacity(self, flags, surely):
        """The rate scale at which round_robin's queue begins to grow, by bisection."""
        waits = lambda scale: (self.waits(flags, scale, self.requests), self.waits(flags, scale, self.requests // 2))
        low, high = surely / 4000, surely
        all_alone, half_alone = waits(low)
        while high > 1.02 * low:
            middle = (low * high) ** 0.5
            all_ms, half_ms = waits(middle)
            grows = all_ms > 3 * all_alone and all_ms / half_ms > GROWTH * all_alone / half_alone
            low, high = (low, middle) if grows or all_ms > GROWN * all_alone else (middle, high)
        return low

    def cell(self, name, flags, scale, options):
        """Runs by policy, and what one cache as large as all could have held."""
        flags = flags + ["--requests", str(self.requests), "--rate-scale", f"{scale:.4g}"]
        runs = {}
        for run in self.simulate(flags + ["--seeds", str(options.seeds), "--policies", options.policies])["results"]:
            runs.setdefault(run["policy"], []).append(run)
        pooled = None
        if name in ("conversation", "synthetic"):
            pooled = self.simulate(flags + ["--policies", "round_robin"], "on")["bounds"]["pooled_lru_token_hit_ratio"]
        return runs, pooled


def interval(differences):
    if len(differences) < 2:
        return 0.0
    return STUDENT.get(len(differences), 1.96) * statistics.stdev(differences) / len(differences) ** 0.5


def compared(own, other):
    """How our costs compare with another's, run by run: the ratio, and green, even or red."""
    differences = [a - b for a, b in zip(own, other)]
    mean, theirs = statistics.mean(differences), statistics.mean(other)
    ratio = statistics.mean(own) / theirs if theirs else 1.0
    if mean <= 0.02 * abs(theirs):
        return ratio, "green"
    return ratio, "even" if mean <= interval(differences) else "red"


def verdict(runs, cost):
    """How we compare with the best other: our cost, ratio to it, its name, the colour."""
    costs = {name: [cost(run) for run in some] for name, some in runs.items()}
    own = costs.pop(OURS)
    best = min(costs, key=lambda name: statistics.mean(costs[name]))
    return statistics.mean(own), *compared(own, costs[best]), best


METRICS = {"mean": lambda run: run["ttft_ms"]["mean"], "p99": lambda run: run["ttft_ms"]["p99"], "goodput": lambda run: -run["goodput_rps"]}


def worse_than_blind(runs):
    """By what the default is worse than policies that know nothing of caches."""
    pairs = [(name, metric, *compared(*([METRICS[metric](run) for run in runs[policy]] for policy in (OURS, name))))
             for name in FLOOR if name in runs for metric in ("mean", "p99")]
    return [f"{metric} {ratio:.2f} of {name}" for name, metric, ratio, colour in pairs if colour == "red"]


def of(runs, measure):
    return statistics.mean(measure(run) for run in runs)


def row(name, share, scale, runs, pooled, tally):
    columns = [name, f"{share:.0%} (×{scale:.3g})"]
    for metric, cost in METRICS.items():
        own, ratio, colour, best = verdict(runs, cost)
        tally.setdefault(metric, []).append(colour)
        columns += [f"{abs(own):.4g}", f"{'**red**' if colour == 'red' else colour} {ratio:.2f} of {best}"]
    worse = worse_than_blind(runs)
    tally.setdefault("beside " + " and ".join(FLOOR), []).append("red" if worse else "green")
    columns.append("**" + ", ".join(worse) + "**" if worse else "no")
    tpot = lambda run: run["tpot_ms"]["mean"]
    columns.append(f"{of(runs[OURS], tpot):.3g} ({of(runs['round_robin'], tpot):.3g})")
    hit = of(runs[OURS], lambda run: run["token_hit_ratio"])
    columns.append(f"{hit:.3f}")
    if pooled:
        tally.setdefault("90 % of pooled LRU", []).append("green" if hit >= 0.9 * pooled else "red")
        columns[-1] += f", {hit / pooled:.0%} of pooled LRU"
    print("| " + " | ".join(columns) + " |", flush=True)


def told(colours):
    return " ".join(f"{colours.count(colour)} {colour}" for colour in ("green", "even", "red") if colour in colours)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--lab", default="warmroute lab")
    arguments.add_argument("--data", required=True)
    arguments.add_argument("--seeds", type=int, default=5)
    arguments.add_argument("--requests", type=int, default=4000, help="at 8 workers")
    arguments.add_argument("--policies", default=",".join(POLICIES))
    arguments.add_argument("--only", default="")
    arguments.add_argument("--except", dest="without", default="")
    arguments.add_argument("--shares", default=",".join(map(str, SHARES)))
    arguments.add_argument("--axis", choices=AXES, default="none")
    arguments.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments.add_argument("--quick", action="store_true", help="one workload, to see that the command works")
    options = arguments.parse_args()
    if options.quick:
        options.seeds, options.only, options.shares, options.requests = 1, "b2b", "0.8", 0
        options.policies = "expected_ttft,round_robin,least_loaded"
    flags, times = AXES[options.axis]
    view = [] if "--view" in flags else ["--view", "exact"]
    lab = Lab(options.lab.split(), view + flags, max(int(options.requests * times), 2000))
    fleet = Lab(lab.command, [word for pair in zip(flags[::2], flags[1::2]) if pair[0] not in KNOWLEDGE for word in pair], lab.requests)
    wanted = options.only.split(",") if options.only else None
    # The unequal fleet has its own workers and caches.
    chosen = [scene for scene in scenes(options.data, times) if (not wanted or scene[0] in wanted) and scene[0] not in options.without.split(",")
              and (scene[0] != "heterogeneous" or options.axis in ("none", "stale-1s", "presumed"))]

    def one(scene):
        name, flags, surely = scene
        full = fleet.capacity(flags, surely)
        return name, [(float(share), full * float(share), *lab.cell(name, flags, full * float(share), options)) for share in options.shares.split(",")]

    print("| workload | of capacity | mean TTFT ms | against the best other | p99 TTFT ms | against the best other "
          "| goodput/s | against the best other | worse than round_robin or least_loaded? | ms a token (round_robin's) | token hit |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    tally = {}
    with ThreadPoolExecutor(options.jobs) as pool:
        for name, cells in pool.map(one, chosen):
            for share, scale, runs, pooled in cells:
                row(name, share, scale, runs, pooled, tally)
    print("\n" + "; ".join(f"{what}: {told(colours)}" for what, colours in tally.items()))


if __name__ == "__main__":
    main()
