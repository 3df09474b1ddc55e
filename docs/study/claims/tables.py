#!/usr/bin/env python3
"""Writes the tables of the pages claims, guidance and of the study's from the committed results: docs/study/claims/tables.py [--check]

A table stands between `<!-- table NAME -->` and `<!-- end -->`. With --check nothing is written, and a page that differs from its
results is an error. --page, --results and --workloads name other files. Python's standard library only."""
import argparse
import re
import sys
from pathlib import Path

from runs import Results, change, count, duration, milliseconds, percent

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from pages import read_tables  # noqa: E402

FIVE = ["round_robin", "random", "least_loaded", "prefix_affinity", "cache_aware", "expected_ttft"]
SMALL = ["round_robin", "least_loaded:signal=waiting", "power_of_two", "session_affinity", "prefix_affinity:key=system",
         "weighted_score", "expected_ttft"]
TIMES = ["ttft_ms.mean", "ttft_ms.p99"]


def table(heads, rows):
    """Words to the left, figures to the right."""
    sides = ["---" if any(re.match(r"[`a-zA-Z]", str(row[column])) for row in rows) else "---:" for column in range(len(heads))]
    lines = [heads, sides, *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def text_table(heads, rows):
    """All columns to the left."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def with_range(results, policy, figure, words, *values):
    mean, within = results.mean(policy, figure, *values), results.within(policy, figure, *values)
    return f"{words(mean)} ± {words(within)}" if within > 0.02 * abs(mean) else words(mean)


def throughput(folder):
    rows = []
    settings = [("b2b", "throughput-b2b", (clients,)) for clients in Results(folder, "throughput-b2b").values()]
    settings += [(name, f"throughput-{name}", ()) for name in ["tenants", "codegen", "documents", "sharegpt", "unique"]]
    for traffic, name, at in settings:
        results = Results(folder, name)
        clients = int(at[0]) if at else re.search(r"--concurrency (\d+)", results.command)[1]
        base = results.mean("round_robin", "output_tokens_per_s", *at)
        cells = [f"{count(results.mean('round_robin', 'throughput_rps', *at))} / {count(base)}"]
        for policy in FIVE[1:]:
            cells.append(change(results.mean(policy, "output_tokens_per_s", *at), base))
        hits = " → ".join(percent(results.mean(policy, "token_hit_ratio", *at)) for policy in ("round_robin", "expected_ttft"))
        rows.append([f"{traffic}, {clients} in flight", *cells, hits])
    return table(["traffic", "round_robin: requests/s / output tokens/s", *FIVE[1:], "token hit, round_robin → expected_ttft"], rows)


def saturation_detail(folder):
    results = Results(folder, "throughput-b2b")
    at = (results.values()[1] if len(results.values()) > 2 else results.values()[-1],)
    rows = []
    for policy in FIVE:
        cell = lambda figure, words: with_range(results, policy, figure, words, *at)
        rows.append([policy, cell("throughput_rps", count), cell("output_tokens_per_s", count), cell("ttft_ms.mean", duration),
                     cell("ttft_ms.p99", duration), percent(results.mean(policy, "request_hit_ratio", *at)),
                     percent(results.mean(policy, "stale_request_ratio", *at)), f"{results.mean(policy, 'replication_factor', *at):.2f}",
                     percent(results.mean(policy, "repeated_prefill_ratio", *at))])
    return table(["policy", "requests/s", "output tokens/s", "TTFT mean", "p99", "request hit", "stale requests", "copies of a block",
                  "prefill repeated"], rows)


def saturation_literal(folder):
    ours, literal = Results(folder, "throughput-b2b"), Results(folder, "throughput-b2b-literal")
    rows = []
    for results, policies in ((ours, ["round_robin", "cache_aware", "expected_ttft"]), (literal, literal.policies())):
        for policy in policies:
            cells = [f"{count(results.mean(policy, 'throughput_rps', clients))}, {percent(results.mean(policy, 'token_hit_ratio', clients))}, "
                     f"{duration(results.mean(policy, 'ttft_ms.mean', clients))}" for clients in ours.values()]
            rows.append([policy, *cells])
    return table(["requests/s, token hit, TTFT mean", *(f"{clients:g} in flight" for clients in ours.values())], rows)


def one_over_n(folder):
    follow_up, chats = Results(folder, "one-over-n"), Results(folder, "one-over-n-chats")
    # Half of the requests are first questions, which cannot hit.
    hits = lambda policy, workers: percent(2 * follow_up.mean(policy, "request_hit_ratio", workers))
    token = lambda policy, workers: percent(chats.mean(policy, "token_hit_ratio", workers))
    rows = [[int(workers), percent(1 / workers), hits("random", workers), hits("round_robin", workers), hits("session_affinity", workers),
             hits("expected_ttft", workers), token("random", workers), token("round_robin", workers), token("expected_ttft", workers)]
            for workers in follow_up.values()]
    return table(["N", "1/N", "follow-ups that hit: random", "round_robin", "session_affinity", "expected_ttft",
                  "chats, token hit: random", "round_robin", "expected_ttft"], rows)


def equal_queries(folder):
    results, rows = Results(folder, "equal-queries"), []
    gigabytes = lambda tokens: f"{tokens * 131_072 / 1e9:.0f} GB"
    for policy in results.policies():
        computed = results.mean(policy, "prefill_tokens_computed")
        # Stored: the shared part once per copy.
        copies = results.mean(policy, "replication_most")
        rows.append([policy, f"{computed:,.0f}", percent(results.mean(policy, "repeated_prefill_ratio")), f"{copies:.1f}",
                     gigabytes(76_288 * copies), duration(results.mean(policy, "ttft_ms.mean")),
                     duration(results.mean(policy, "ttft_ms.p50"))])
    return table(["policy", "prompt tokens computed", "of them repeated", "copies of the shared part", "KV cache for it", "TTFT mean", "p50"], rows)


def documents(folder):
    rows = []
    for traffic, name in [("documents (generated)", "documents"), ("LooGLE, long dependency", "loogle-longdep"),
                          ("LooGLE, short dependency", "loogle-shortdep"), ("agentic", "agentic")]:
        results = Results(folder, name)
        long_key = "prefix_affinity:key=tokens=13000"
        for policy in ["round_robin", "least_loaded", "prefix_affinity", long_key, "cache_aware", "product", "expected_ttft"]:
            if policy not in results.policies():
                continue
            rows.append([traffic, policy, with_range(results, policy, "ttft_ms.mean", duration), duration(results.mean(policy, "ttft_ms.p99")),
                         percent(results.mean(policy, "token_hit_ratio")), f"{results.mean(policy, 'replication_factor'):.2f}",
                         percent(results.mean(policy, "repeated_prefill_ratio"))])
            traffic = ""
    return table(["traffic", "policy", "TTFT mean", "p99", "token hit", "copies of a block", "prefill repeated"], rows)


LITERAL = [
    ("the highest overlap, whatever its load", "longest_match", "cache_aware"),
    ("the least loaded holder of the prefix", "sticky_least_loaded:literal", "sticky_least_loaded"),
    ("overlap, unless *either* threshold is exceeded (manual)", "cache_aware:balance=either:worth=off", "cache_aware:balance=either"),
    ("overlap, unless *both* are exceeded (its code)", "cache_aware:balance=both:worth=off", "cache_aware"),
    ("overlap, unless above a dynamic threshold", "cache_aware:balance=dynamic:worth=off", "cache_aware:balance=dynamic"),
    ("the fewest *waiting* requests", "least_loaded:signal=waiting", "least_loaded"),
    ("hash of the system prompt", "prefix_affinity:key=system", "prefix_affinity"),
    ("hash of the first 256 tokens", "prefix_affinity:key=tokens=256", "prefix_affinity"),
    ("hash over windows of the first 4,000 tokens", "prefix_affinity:key=windows", "prefix_affinity"),
]


def literal(folder):
    traffics = [("literal-tenants", "tenants"), ("literal-one-hot-prefix", "one prefix"), ("literal-conversation-3x", "conversation, 3 times")]
    files = [Results(folder, name) for name, _ in traffics]
    cell = lambda results, policy: f"{duration(results.mean(policy, TIMES[0]))}, {percent(results.mean(policy, 'token_hit_ratio'))}"
    rows = [[words, f"`{rule}`", *(cell(results, rule) for results in files), f"`{ours}`", *(cell(results, ours) for results in files)]
            for words, rule, ours in LITERAL]
    rows.append(["the default", "", *("" for _ in files), "`expected_ttft`", *(cell(results, "expected_ttft") for results in files)])
    names = [name for _, name in traffics]
    return table(["rule as written", "its name here", *names, "with our additions", *names], rows)


def callbacks(folder):
    rows = []
    for traffic, name in [("ShareGPT (LMBenchmark)", "callbacks-sharegpt"), ("MTRAG", "callbacks-mtrag"), ("MTRAG-UN", "callbacks-mtragun")]:
        results = Results(folder, name)
        for tokens in results.values(0):
            for policy in results.policies():
                intervals = results.values(1)
                same = lambda figure, words: words(results.mean(policy, figure, tokens, intervals[1]))
                each = lambda figure, words: " / ".join(words(results.mean(policy, figure, tokens, ms)).removesuffix(" %") for ms in intervals)
                blind = policy == "round_robin"
                rows.append([traffic, f"{tokens:,.0f}", policy, same("ttft_ms.mean", duration) if blind else each("ttft_ms.mean", duration),
                             same("request_hit_ratio", percent) if blind else each("request_hit_ratio", percent) + " %",
                             *("–" if blind else each(figure, percent) + " %" for figure in ("stale_request_ratio", "stale_at_choice_ratio"))])
                traffic = ""
    return table(["traffic", "KV tokens per engine", "policy", "TTFT mean", "request hit", "stale requests", "at the choice already"], rows)


def small(folder):
    rows = []
    rates = Results(folder, "small-assistants")
    settings = [(f"assistants, {rate:g} times", rates, (rate,)) for rate in rates.values()]
    settings += [("ShareGPT (LMBenchmark)", Results(folder, "small-sharegpt"), ()), ("MTRAG-UN", Results(folder, "small-mtrag"), ())]
    for traffic, results, at in settings:
        for policy in SMALL:
            cell = lambda figure, words: words(results.mean(policy, figure, *at))
            rows.append([traffic, policy, with_range(results, policy, "ttft_ms.mean", duration, *at), cell("ttft_ms.p95", duration),
                         cell("ttft_ms.p99", duration), cell("queue_ms.mean", duration), cell("queue_ms.p99", duration),
                         cell("token_hit_ratio", percent), cell("load_max_over_mean", lambda n: f"{n:.2f}")])
            traffic = ""
    return table(["traffic", "policy", "TTFT mean", "p95", "p99", "queue mean", "queue p99", "token hit", "max/mean requests"], rows)


def surface(folder):
    rows = []
    for traffic in ["assistants", "tenants", "conversation-3x"]:
        results = Results(folder, f"surface-{traffic}")
        points = [(affinity, queue) for affinity in results.values(0) for queue in results.values(1)]
        for figure, words in [("ttft_ms.mean", "TTFT mean"), ("ttft_ms.p99", "TTFT p99"), ("queue_ms.mean", "queue mean")]:
            ranked = sorted(points, key=lambda at: results.mean("weighted_score", figure, *at))
            say = lambda at: f"{duration(results.mean('weighted_score', figure, *at))} ({at[0]:g} : {at[1]:g})"
            near = sum(results.mean("weighted_score", figure, *at) <= 1.1 * results.mean("weighted_score", figure, *ranked[0]) for at in points)
            rows.append([traffic, words, say(ranked[0]), say((1, 1)), say(ranked[-1]), f"{near} of {len(points)}"])
            traffic = ""
    return table(["traffic", "figure", "best (affinity : queue)", "default", "worst", "within 10 % of the best"], rows)


def staleness(folder):
    rows = []
    for traffic in ["assistants", "tenants"]:
        results = Results(folder, f"staleness-{traffic}")
        for seconds in results.values():
            cells = [f"{with_range(results, policy, 'ttft_ms.mean', duration, seconds)}, {percent(results.mean(policy, 'token_hit_ratio', seconds))}, "
                     f"{percent(results.mean(policy, 'stale_request_ratio', seconds))}" for policy in results.policies()]
            rows.append([traffic, f"{seconds:g} s", *cells])
            traffic = ""
    return table(["traffic", "refreshed every", *results.policies()], rows)


def claims(folder):
    """Claim, its setting, our closest setting, our figure, command."""
    of = lambda name: Results(folder, name)
    b2b, equal, law, tenants, documents = of("throughput-b2b"), of("equal-queries"), of("one-over-n"), of("literal-tenants"), of("documents")
    clients_of = lambda results: re.search(r"--concurrency (\d+)", results.command)[1]
    rate = lambda results, policy, *at: results.mean(policy, "output_tokens_per_s", *at)
    gains = {clients: rate(b2b, "expected_ttft", clients) / rate(b2b, "round_robin", clients) - 1 for clients in b2b.values()}
    others = {name: of(f"throughput-{name}") for name in ("tenants", "codegen", "documents", "sharegpt", "unique")}
    all_gains = {name: rate(results, "expected_ttft") / rate(results, "round_robin") - 1 for name, results in others.items()}
    order = sorted(all_gains, key=all_gains.get, reverse=True)
    unworthy, busiest = of("throughput-b2b-literal"), b2b.values()[-1]
    last = law.values()[-1]
    herd = of("literal-one-hot-prefix")
    spread = lambda results, policy: results.mean(policy, "load_max_over_mean")
    stale = lambda results, policy, tokens, ms: percent(results.mean(policy, "stale_request_ratio", tokens, ms))
    shared = of("callbacks-sharegpt")
    tokens, slow = shared.values(0)[0], shared.values(1)[-1]
    ratio = lambda policy: (percent(1 - documents.mean(policy, "prefill_tokens_computed") / documents.mean("round_robin", "prefill_tokens_computed"))
                            .replace("-", "−"))
    chat = others["sharegpt"]
    rows = [
        ["throughput can be doubled for free", "none given", "five traffics at saturation, expected_ttft",
         ", ".join(f"{name} {100 * all_gains[name]:+.0f} %" for name in order), others[order[0]]],
        ["up to +108 % throughput with precise prefix-aware routing over random or round robin", "8 engines, 150 groups of 5 prompts, 6,000 shared tokens",
         "the same traffic and caches, closed loop", "expected_ttft " + ", ".join(f"{100 * gain:+.0f} % at {clients:g} in flight" for clients, gain in gains.items())
         + f"; `cache_aware:worth=off` {change(rate(unworthy, 'cache_aware:worth=off', busiest), rate(b2b, 'round_robin', busiest))} at {busiest:g}", b2b],
        ["10 equal queries on 10 nodes compute and store the same 10 GB ten times", "one agentic system prompt",
         "10 engines, 76,288 shared tokens", f"round_robin {equal.mean('round_robin', 'replication_most'):.0f} copies, "
         f"expected_ttft {equal.mean('expected_ttft', 'replication_most'):.0f}", equal],
        ["round robin hits with probability 1/N", "N replicas that hold everything", "follow-up questions, N = 1 to 32",
         f"random at N = {last:g}: {percent(2 * law.mean('random', 'request_hit_ratio', last))}, 1/N = {percent(1 / last)}", law],
        ["the request is forced to the highest overlap", "no load in the rule", "one prefix that all share, 8 engines",
         f"`longest_match`: {spread(herd, 'longest_match'):.1f} times the mean load on one engine, TTFT {duration(herd.mean('longest_match', TIMES[0]))}; "
         f"expected_ttft {duration(herd.mean('expected_ttft', TIMES[0]))}", herd],
        ["prompt caching cuts input cost by 50 to 90 %", "requests reach the right replica", "long documents, 8 engines",
         f"prompt tokens computed: {ratio('expected_ttft')} less than round_robin", documents],
        ["TTFT up to −80 %", "none given", "long documents, 8 engines",
         f"expected_ttft: {change(documents.mean('expected_ttft', TIMES[0]), documents.mean('round_robin', TIMES[0]))} against round_robin, "
         f"{change(documents.mean('expected_ttft', TIMES[0]), documents.mean('least_loaded', TIMES[0]))} against least_loaded", documents],
        ["the same", "none given", "tenants, 4 engines",
         f"expected_ttft: {change(tenants.mean('expected_ttft', TIMES[0]), tenants.mean('least_loaded', TIMES[0]))} against least_loaded", tenants],
        ["TTFT p50 150 → 45 ms, p99 800 → 200 ms, hits 0 → 65 %", "“typical conversational workloads”", f"chats, 8 engines, {clients_of(chat)} in flight",
         f"round_robin → cache_aware: p50 {duration(chat.mean('round_robin', 'ttft_ms.p50'))} → {duration(chat.mean('cache_aware', 'ttft_ms.p50'))}, "
         f"p99 {duration(chat.mean('round_robin', 'ttft_ms.p99'))} → {duration(chat.mean('cache_aware', 'ttft_ms.p99'))}, "
         f"hits {percent(chat.mean('round_robin', 'token_hit_ratio'))} → {percent(chat.mean('cache_aware', 'token_hit_ratio'))}", chat],
        ["the callback's eventual consistency keeps the stale rate low", "callbacks every 100 ms", f"ShareGPT turns, 4 engines, {tokens:,.0f} KV tokens",
         f"stale requests at 100 ms {stale(shared, 'sticky_least_loaded:literal', tokens, shared.values(1)[1])}, "
         f"at {slow:g} ms {stale(shared, 'sticky_least_loaded:literal', tokens, slow)}", shared],
    ]
    linked = [[*row[:-1], f"[{row[-1].name}](results/{row[-1].name}.json)"] for row in rows]
    linked += claims_of_routers(all_gains)
    page = (HERE.parent / "many_routers" / "README.md").read_text()
    lost = {routers: re.search(rf"^\| {routers} alone \| [\d.]+ \| -([\d.]+)", page, re.MULTILINE)[1] for routers in (2, 4, 8)}
    linked.append(["cache efficiency drops by 10 to 20 % with several gateways", "own tree per gateway", "b2b, 1 to 8 routers",
                   "points of token hit lost alone: " + ", ".join(f"{points} with {routers}" for routers, points in lost.items()), "[many_routers](../many_routers/README.md)"])
    return text_table(["claim", "its setting", "our closest setting", "our figure", "results and [command](#commands)"], linked)


def claims_of_routers(saturation):
    """What papers and blogs of other routers report, beside the same traffic here."""
    found = {row["policy"]: row["TTFT mean"] for row in read_tables(HERE.parent / "results" / "conversation-3x.md")[0]["rows"]}
    ms = {policy: milliseconds(words) for policy, words in found.items()}
    link = "[conversation-3x](../results/conversation-3x.md)"
    return [
        ["mean TTFT 19.65 s at random, 5.27 by load, 3.58 by local caches, 3.07 by a global one (Mooncake)", "the conversation trace, 16 engines",
         "the same trace at 3 times its rate, 8 engines", ", ".join(f"{policy} {duration(ms[policy])}" for policy in ("round_robin", "least_loaded", "cache_aware", "expected_ttft")), link],
        ["misses × batch size: TTFT −92 % against vLLM (LMetric)", "not stated in its abstract", "the same trace, 8 engines",
         f"`product`: {change(ms['product'], ms['round_robin'])} against round_robin, {change(ms['product'], ms['least_loaded'])} against least_loaded; "
         f"`expected_ttft`: {change(ms['expected_ttft'], ms['round_robin'])} and {change(ms['expected_ttft'], ms['least_loaded'])}", link],
        ["2.9 times the input tokens/s on code generation (llm-d)", "10 engines, 10 to 100 clients", "8 engines, 64 clients, output tokens/s",
         f"expected_ttft {1 + saturation['codegen']:.1f} times round_robin's", "[throughput-codegen](results/throughput-codegen.json)"],
    ]


def commands(folder):
    rows = [[f"[{path.stem}](results/{path.name})", f"`{Results(folder, path.stem).command}`"] for path in sorted(Path(folder).glob("*.json"))]
    rows.append(["[conversation-3x](../results/conversation-3x.md), [many_routers](../many_routers/README.md)", "`docs/study/run.sh LAB TRACES workloads`, `routers`"])
    return text_table(["results", "command"], rows)


THRESHOLDS = {"preset=high_affinity": "0.2, 128, 2.0 (`high_affinity`)", "preset=balanced": "0.3, 64, 1.5 (`balanced`)",
              "preset=load_focused": "0.5, 32, 1.2 (`load_focused`)", "abs=8:rel=1.1": "0.3, 8, 1.1", "balance=either": "0.3, 64, 1.5, either one",
              "balance=dynamic": "0.3, `balance=dynamic`"}
FLEETS = {"equal-conversation": "equal, conversation", "equal-tenants": "equal, tenants", "unequal-conversation": "unequal, conversation",
          "unequal-tenants": "unequal, tenants", "bursts": "equal, bursts"}


def thresholds(folder, worth=""):
    """Mean and p99 TTFT and hits by the thresholds of cache_aware, for each fleet."""
    fleets = [Results(folder, name) for name in FLEETS]
    rules = {words: f"cache_aware:{rule}{worth}" for rule, words in THRESHOLDS.items()}
    policies = {"least_loaded": "least_loaded", **rules, "expected_ttft": "expected_ttft"}
    cell = lambda results, policy: (f"{with_range(results, policy, 'ttft_ms.mean', duration)} / {duration(results.mean(policy, 'ttft_ms.p99'))}, "
                                    f"{percent(results.mean(policy, 'token_hit_ratio'))}")
    rows = [[words, *(cell(results, policy) for results in fleets)] for words, policy in policies.items()]
    return text_table(["threshold, abs, rel", *FLEETS.values()], rows)


def thresholds_without_worth(folder):
    return thresholds(folder, ":worth=off")


# Traffic in words, and the file of its results.
TRAFFICS = {"conversation-3x": "long conversations near capacity", "conversation": "the same, a third of the load", "synthetic": "tools and long documents",
            "b2b": "tenants with long system prompts, far beyond capacity", "codegen": "code agents with growing contexts", "sharegpt": "chats without a system prompt",
            "burst": "chats of few tenants in bursts", "mtrag-after": "RAG, passages after the history", "mtrag-before": "RAG, passages before it",
            "one-hot-prefix": "one prefix that all share", "reasoning": "short prompts, answers of 8,000 tokens", "short": "short prompts, nothing shared",
            "batch": "5,000 jobs at once"}
# In this order a policy needs less: no index, no state, nothing at all.
SIMPLE = ["prefix_affinity", "session_affinity", "least_loaded", "round_robin"]
# Policies that are not worth the choice between them.
EVEN = 1.05


def choice(workloads):
    """Which policy for which traffic: mean TTFT of the best, of the default and of the simplest."""
    rows = []
    for name, words in TRAFFICS.items():
        found = read_tables(Path(workloads) / f"{name}.md")[0]["rows"]
        ms = {row["policy"]: milliseconds(row["TTFT mean"]) for row in found}
        best = min(ms, key=ms.get)
        simple = [policy for policy in SIMPLE if ms[policy] <= EVEN * ms["expected_ttft"]]
        rows.append([f"{words} ([{name}](../results/{name}.md))", f"`{best}` {duration(ms[best])}", *(duration(ms[policy]) for policy in ("expected_ttft", "cache_aware", "least_loaded", "round_robin")),
                     f"`{simple[-1]}` is as good" if simple else "a policy that knows caches"])
    return text_table(["traffic", "best mean TTFT", "expected_ttft", "cache_aware", "least_loaded", "round_robin", "simplest choice within 5 % of the default"], rows)


# Rows of the study's first table.
PAYS = {"conversation": "conversation", "conversation-3x": "conversation, 3 times the rate", "conversation-4x": "conversation, 4 times (no policy keeps up)",
        "synthetic": "synthetic", "synthetic-4x": "synthetic, 4 times the rate (no policy keeps up)", "sharegpt": "chats (sharegpt)",
        "codegen": "code generation, 40 clients", "burst": "bursts of 20 tenants", "mtrag-after": "MTRAG, passages after the history",
        "mtrag-before": "MTRAG, passages before it", "short": "short", "one-hot-prefix": "one prefix that all share", "batch": "batch", "reasoning": "reasoning"}
CACHE = ["prefix_affinity", "weighted_score", "cache_aware", "sticky_least_loaded", "product", "dual_choice"]


def pays(workloads):
    """When routing by cache pays: mean TTFT and hits against least_loaded."""
    rows = []
    for name, words in PAYS.items():
        page = Path(workloads) / f"{name}.md"
        found = {row["policy"]: row for row in read_tables(page)[0]["rows"]}
        ms = {policy: milliseconds(row["TTFT mean"]) for policy, row in found.items()}
        best = min(CACHE, key=ms.get)
        hit = lambda policy: " ".join(found[policy]["token hit"].split()[:2])
        bound = re.search(r"infinite cache, token hit: ([\d.]+ %)", page.read_text())[1]
        rows.append([f"[{words}](results/{name}.md)", duration(ms["least_loaded"]), f"{duration(ms[best])} ({best})", duration(ms["expected_ttft"]),
                     change(ms["expected_ttft"], ms["least_loaded"]), f"{hit('least_loaded')} → {hit('expected_ttft')}", bound])
    return text_table(["traffic", "least_loaded", "best other cache policy", "expected_ttft", "against least_loaded", "token hit, least_loaded → expected_ttft",
                       "token hit of an infinite cache"], rows)


def load(workloads):
    """Mean TTFT by load."""
    policies = ["round_robin", "least_loaded", "weighted_score", "cache_aware", "expected_ttft"]
    tables = [point for point in read_tables(Path(workloads) / "load-conversation.md") if "TTFT mean" in point["rows"][0]]
    words = lambda cell: " ± ".join(duration(milliseconds(part)) for part in cell.split(" ± "))
    rows = [[point["title"].split()[-1], *(words(row["TTFT mean"]) for policy in policies for row in point["rows"] if row["policy"] == policy)] for point in tables]
    return table(["times its rate", *policies], rows)


def rows_at(workloads, name):
    """The first table of each point of a sweep: {value: {policy: row}}. A report of `simulate` has one point, None."""
    found = [table for table in read_tables(Path(workloads) / f"{name}.md") if "TTFT mean" in table["rows"][0]]
    value = lambda table: table["title"].split()[-1] if len(found) > 1 else None
    return {value(table): {row["policy"]: row for row in table["rows"]} for table in found}


def age(workloads):
    """What an old directory costs."""
    conversation, chats = rows_at(workloads, "staleness-conversation"), rows_at(workloads, "staleness-sharegpt")
    share = lambda row, column: " ".join(row[column].split()[:2])
    time = lambda row: duration(milliseconds(row["TTFT mean"]))
    rows = []
    for seconds in chats:
        known = conversation.get(seconds, {})
        cells = [", ".join([time(known[policy]), share(known[policy], "token hit"), share(known[policy], "stale")]) if policy in known else ""
                 for policy in ("expected_ttft", "cache_aware")]
        chat = chats[seconds]["expected_ttft"]
        rows.append([f"{seconds} s", *cells, f"{time(chat)}, {share(chat, 'token hit')}"])
    return text_table(["T", "conversation 3×: TTFT mean, token hit, stale (expected_ttft)", "the same, cache_aware",
                       "chats: TTFT mean, token hit (expected_ttft)"], rows)


def lost(workloads):
    """What lost events cost."""
    policies = ["cache_aware", "sticky_least_loaded", "expected_ttft"]
    cell = lambda row: f"{row['token hit']} ({duration(milliseconds(row['TTFT mean']))})"
    rows = []
    for replays, name in (("yes", "loss-sharegpt"), ("no", "loss-sharegpt-unreplayed")):
        for share, found in rows_at(workloads, name).items():
            rows.append([percent(float(share)), f"[{replays}](results/{name}.md)", *(cell(found[policy]) for policy in policies)])
    (presumed,) = rows_at(workloads, "view-sharegpt-presumed").values()
    rows.append(["no events", "[presumed view](results/view-sharegpt-presumed.md)", *(cell(presumed[policy]) for policy in policies)])
    return text_table(["lost", "replays", *policies], rows)


TABLES = {maker.__name__.replace("_", "-"): maker for maker in
          (throughput, saturation_detail, saturation_literal, one_over_n, equal_queries, documents, literal, callbacks, small, surface, staleness, claims, commands, thresholds, thresholds_without_worth)}


WORKLOADS = {maker.__name__: maker for maker in (choice, pays, load, age, lost)}


def differ(results):
    """The six policies of the small study are six: no two have the same figures."""
    for policies in (policies for name in ("small-assistants", "small-sharegpt", "small-mtrag") for policies in [by_policy(Results(results, name))]):
        same = [(one, other) for one in policies for other in policies if one < other and policies[one] == policies[other]]
        if same:
            sys.exit(f"two policies of the small study made the same decisions: {same}")


def by_policy(results):
    """The figures of all runs of each policy."""
    return {policy: [{**run, "policy": ""} for run in results.runs(policy)] for policy in results.policies()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, help="results of the page [beside it]")
    parser.add_argument("--workloads", type=Path, default=HERE.parent / "results")
    parser.add_argument("--page", type=Path, action="append", help="pages [claims, guidance and the study's]")
    parser.add_argument("--check", action="store_true")
    o = parser.parse_args()
    if o.check:
        differ(HERE / "results")
    for page in o.page or [HERE / "README.md", HERE.parent / "guidance" / "README.md", HERE.parent / "README.md"]:
        results = o.results or page.parent / "results"
        make = lambda name: WORKLOADS[name](o.workloads) if name in WORKLOADS else TABLES[name](results)
        fill = lambda found: f"<!-- table {found[1]} -->\n\n{make(found[1])}\n\n<!-- end -->"
        words = page.read_text()
        made = re.sub(r"<!-- table ([\w-]+) -->.*?<!-- end -->", fill, words, flags=re.DOTALL)
        if o.check and made != words:
            sys.exit(f"the tables of {page} differ from the results: run docs/study/claims/tables.py")
        if not o.check:
            page.write_text(made)


if __name__ == "__main__":
    main()
