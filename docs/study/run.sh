#!/bin/sh
# Makes every table and figure of the study again, with one build:
#
#   docs/study/run.sh "warmroute lab" TRACES [PART]    everything, or one part: workloads, claims, guidance, policies, routers
#   docs/study/run.sh --quick "warmroute lab"          every command with little traffic, in a few minutes; changes no file
#
# TRACES is a folder with mooncake/, sharegpt/, mtrag/ and loogle/ as published (traces.md has sources and checksums). The quick pass
# writes small files of each format instead: it checks that each command works and that tables and figures can be made of its results.
# Figures depend on flags and seeds alone, not on the machine. RESUME=yes leaves out what has results already. builds.tsv says which
# build made each part, and how long it took. Needs python3 (standard library only), and zstd for the checksums of compressed traces.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
quick=
if [ "${1:-}" = --quick ]; then quick=yes; shift; fi
lab=${1:?"usage: run.sh [--quick] LAB [TRACES [PART]]"}
part=${3:-all}
if [ -n "$quick" ]; then
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  traces=$work/traces out=$work/results claims=$work/claims guidance=$work/guidance policies=$work/policies routers=$work/routers img=$work/img
  python3 "$here/claims/tiny_traces.py" "$traces"
else
  traces=${2:?"usage: run.sh LAB TRACES [PART]"}
  python3 "$here/checksums.py" "$traces"
  out=$here/results claims=$here/claims/results guidance=$here/guidance/results policies=$here/expected_ttft/results routers=$here/many_routers/results img=$here/../img
fi
mkdir -p "$out" "$claims" "$guidance" "$policies" "$routers" "$img"
# What made the results: a build names its commit if it was made with WARMROUTE_COMMIT=$(git rev-parse --short HEAD) cargo build --release.
build=$($lab simulate --workload short --requests 20 --policies round_robin --bounds off --markdown - | sed -n 's/.*made by: //p')
echo "$build" >&2

# In the quick pass: one seed, few requests, and few of them in flight.
lab() {
  if [ -z "$quick" ]; then $lab "$@"; return; fi
  set -- "$@" --end
  while [ "$1" != --end ]; do
    case $1 in
      --seeds | --requests | --copies | --rate-scale) shift 2 ;;
      --concurrency) set -- "$@" --concurrency 4; shift 2 ;;
      concurrency=*) set -- "$@" concurrency=2,4; shift ;;
      *) set -- "$@" "$1"; shift ;;
    esac
  done
  shift
  $lab "$@" --requests 60
}

# A table as Markdown, or results as JSON.
skipped=
begins() { if [ -n "${RESUME:-}" ] && [ -s "$1" ]; then skipped=yes; return 1; fi; echo "$name" >&2; }
run() {
  name=$1; shift
  begins "$out/$name.md" || return 0
  lab "$@" --markdown "$out/$name.md" >/dev/null
}
kept=$claims
keep() {
  name=$1; shift
  begins "$kept/$name.json" || return 0
  lab "$@" --bounds off --json - >"$kept/$name.tmp"
  python3 "$here/claims/keep.py" <"$kept/$name.tmp" >"$kept/$name.json"
  rm "$kept/$name.tmp"
}

six=round_robin,least_loaded,power_of_two,session_affinity,prefix_affinity,weighted_score
all=$six,cache_aware,sticky_least_loaded,product,dual_choice,expected_ttft
presets=cache_aware:preset=high_affinity,cache_aware:preset=balanced,cache_aware:preset=load_focused
conversation="--trace $traces/mooncake/conversation_trace.jsonl.zst"
synthetic="--trace $traces/mooncake/synthetic_trace.jsonl.zst"


workloads() {
# 1. Under which workloads does cache-aware routing pay?
run conversation simulate $conversation --policies $all --seeds 3
run conversation-3x simulate $conversation --rate-scale 3 --policies $all --seeds 3
run conversation-4x simulate $conversation --rate-scale 4 --policies $all --seeds 3
run synthetic simulate $synthetic --policies $all --seeds 3
run synthetic-4x simulate $synthetic --rate-scale 4 --policies $all --seeds 3
run sharegpt simulate --workload sharegpt --policies $all --seeds 3
run mtrag-after simulate --trace $traces/mtrag/mtragun_reference.jsonl.zst --sessions-per-s 20 --policies $all --seeds 3
run mtrag-before simulate --trace $traces/mtrag/mtragun_reference.jsonl.zst --passages before --sessions-per-s 20 --policies $all --seeds 3
for workload in codegen reasoning batch short one-hot-prefix burst; do
  run $workload simulate --workload $workload --policies $all --seeds 3
done
run b2b simulate --workload b2b --speed-percent 55 --kv-tokens 307328 --policies $all --seeds 3
run small-study simulate $conversation --rate-scale 0.75 --workers 2 --profile llama-3.2-3b --policies $six --seeds 3

# 2. Affinity against queueing.
run surface-conversation sweep $conversation --rate-scale 3 --policies weighted_score \
  --over affinity=0,0.5,1,2,4,8 --over queue=0.25,1,4 --bounds off
run load-conversation sweep $conversation --over rate=1,2,3,3.5,4 --policies round_robin,least_loaded,prefix_affinity,weighted_score,cache_aware,expected_ttft \
  --seeds 3 --bounds off

# 3. How old may the directory be?
run staleness-conversation sweep $conversation --rate-scale 3 --over staleness=0,0.1,1,10 \
  --policies least_loaded,weighted_score,cache_aware,sticky_least_loaded,product,expected_ttft --seeds 3 --bounds off
run staleness-sharegpt sweep --workload sharegpt --over staleness=0,0.1,1,10,60 \
  --policies least_loaded,weighted_score,cache_aware,sticky_least_loaded,expected_ttft --seeds 3 --bounds off

# What engine events are worth, as production reads them.
for traffic in conversation sharegpt; do
  case $traffic in conversation) what="$conversation --rate-scale 3" ;; *) what="--workload sharegpt" ;; esac
  for view in presumed reported exact; do
    run view-$traffic-$view simulate $what --view $view --policies weighted_score,cache_aware,sticky_least_loaded,product,expected_ttft --seeds 3 --bounds off
  done
done
run lag-sharegpt sweep --workload sharegpt --view reported --over lag=0,100,1000,10000 --policies cache_aware,sticky_least_loaded,expected_ttft --seeds 3 --bounds off

# Events that get lost: with replays, and with engines that cannot be asked.
lossy="sweep --workload sharegpt --view reported --over loss=0,0.01,0.1 --policies cache_aware,sticky_least_loaded,expected_ttft --seeds 3 --bounds off"
run loss-sharegpt $lossy
run loss-sharegpt-unreplayed $lossy --event-replay 0

# The 1/N decay of round robin, at the same traffic; and fleets of 32 and 128 with as many copies of it.
run decay-synthetic sweep $synthetic --over workers=1,2,4,8,16,32 --policies round_robin,random,prefix_affinity,cache_aware,expected_ttft --bounds off
run conversation-32 simulate $conversation --workers 32 --copies 4 --rate-scale 3 --policies round_robin,least_loaded,prefix_affinity,cache_aware,expected_ttft --bounds off
run conversation-128 simulate $conversation --workers 128 --copies 16 --rate-scale 3 --policies round_robin,least_loaded,prefix_affinity,cache_aware,expected_ttft --bounds off

# What a gateway manual promises of its presets.
run presets-synthetic simulate $synthetic --rate-scale 3 --policies round_robin,$presets,expected_ttft --seeds 3
run presets-sharegpt simulate --workload sharegpt --policies round_robin,$presets,expected_ttft --seeds 3

# Memory behind the GPUs'. The break-even table: cargo run -p warmroute-engine --example break_even
behind="--workload sharegpt --requests 6000 --kv-tokens 60000 --policies round_robin,cache_aware --seeds 3 --bounds off"
run host-sharegpt sweep $behind --over host-kv-tokens=0,60000,240000,960000
run pool-sharegpt sweep $behind --over pool-kv-tokens=0,480000,1920000,7680000 --pool-gbps 12.5
}

claims() {
five=round_robin,least_loaded,prefix_affinity,cache_aware,expected_ttft
gpu4="--workers 4 --speed-percent 25 --kv-tokens 96000"
two="--workers 2 --profile llama-3.2-3b --speed-percent 15"

# Throughput: a closed loop, the fleet as busy as its clients make it.
keep throughput-b2b sweep --workload b2b --speed-percent 55 --kv-tokens 307328 --requests 4000 --view reported --over concurrency=32,128,512 --policies random,$five --seeds 3
keep throughput-b2b-literal sweep --workload b2b --speed-percent 55 --kv-tokens 307328 --requests 4000 --view reported --over concurrency=32,128,512 --policies longest_match,cache_aware:worth=off,sticky_least_loaded:literal --seeds 3
keep throughput-tenants simulate --workload tenants $gpu4 --requests 4000 --concurrency 64 --view reported --policies random,$five --seeds 3
keep throughput-sharegpt simulate --workload sharegpt --requests 6000 --concurrency 256 --view reported --policies random,$five --seeds 3
keep throughput-codegen simulate --workload codegen --rate-scale 2 --requests 600 --concurrency 64 --view reported --policies random,$five --seeds 3
keep throughput-documents simulate --workload documents --requests 600 --concurrency 64 --view reported --policies random,$five --seeds 3
keep throughput-unique simulate --workload unique --requests 2000 --concurrency 256 --view reported --policies random,$five --seeds 3

# The 1/N law, with caches that hold everything; ten equal queries on ten engines.
keep one-over-n sweep --workload follow-up --requests 2000 --kv-tokens 10000000 --over workers=1,2,4,8,16,32 --policies round_robin,random,session_affinity,expected_ttft --seeds 3
keep one-over-n-chats sweep --workload sharegpt --rate-scale 0.25 --requests 2000 --kv-tokens 10000000 --over workers=1,2,4,8,16,32 --policies round_robin,random,session_affinity,expected_ttft --seeds 3
keep equal-queries simulate --workload equal-queries --workers 10 --policies random,$five,longest_match --seeds 3

# Long documents, generated and LooGLE's; agents.
keep documents simulate --workload documents --requests 1200 --policies random,$five,product --seeds 3
for name in longdep shortdep; do
  keep loogle-$name simulate --trace $traces/loogle/${name}_qa.jsonl.zst --copies 10 --sessions-per-s 0.2 --policies random,$five,product --seeds 3
done
keep agentic simulate --workload agentic --requests 400 --policies random,$five,prefix_affinity:key=tokens=13000,product --seeds 1

# Rules to the letter.
literal=longest_match,sticky_least_loaded:literal,sticky_least_loaded,cache_aware:balance=either:worth=off,cache_aware:balance=both:worth=off,cache_aware:balance=dynamic:worth=off
literal=$literal,cache_aware:balance=either,cache_aware:balance=dynamic,cache_aware,least_loaded,least_loaded:signal=waiting
literal=$literal,prefix_affinity:key=system,prefix_affinity:key=windows,prefix_affinity:key=tokens=256,prefix_affinity,expected_ttft
keep literal-tenants simulate --workload tenants $gpu4 --requests 1200 --policies $literal --seeds 3
keep literal-one-hot-prefix simulate --workload one-hot-prefix --requests 1500 --policies $literal --seeds 3
keep literal-conversation-3x simulate $conversation --rate-scale 3 --requests 2000 --policies $literal --seeds 3

# Callbacks every 10, 100 and 1,000 ms, with caches that evict.
sticky="--policies round_robin,sticky_least_loaded:literal,sticky_least_loaded,expected_ttft --seeds 3 --workers 4 --speed-percent 25"
callbacks="--over kv-tokens=8000,15000,60000 --over batch=10,100,1000"
keep callbacks-sharegpt sweep --trace $traces/sharegpt/lmbenchmark_sharegpt_run.json.zst --copies 2 --sessions-per-s 0.4 $callbacks $sticky
keep callbacks-mtrag sweep --trace $traces/mtrag/mtrag_reference_subset_with_human_evaluations.json.zst --sessions-per-s 0.8 $callbacks $sticky
keep callbacks-mtragun sweep --trace $traces/mtrag/mtragun_reference.jsonl.zst --requests 700 --sessions-per-s 0.8 $callbacks $sticky

# Two small engines.
six_small=round_robin,least_loaded:signal=waiting,power_of_two,session_affinity,prefix_affinity:key=system,weighted_score
keep small-assistants sweep --workload assistants --requests 1200 $two --kv-tokens 6000 --over rate=0.2,0.35,0.45 --policies $six_small,expected_ttft --seeds 10
keep small-sharegpt simulate --trace $traces/sharegpt/lmbenchmark_sharegpt_run.json.zst --copies 2 --sessions-per-s 0.16 $two --kv-tokens 6000 --policies $six_small,expected_ttft --seeds 10
keep small-mtrag simulate --trace $traces/mtrag/mtragun_reference.jsonl.zst --requests 700 --sessions-per-s 0.3 $two --kv-tokens 6000 --policies $six_small,expected_ttft --seeds 10
surface="--policies weighted_score --over affinity=0,0.5,1,2,4,8 --over queue=0.25,1,4 --seeds 3"
keep surface-assistants sweep --workload assistants --rate-scale 0.4 --requests 1500 $two --kv-tokens 6000 ${surface% 3} 10
keep surface-tenants sweep --workload tenants $gpu4 --requests 1200 $surface
keep surface-conversation-3x sweep $conversation --rate-scale 3 --requests 1500 $surface
keep staleness-assistants sweep --workload assistants --rate-scale 0.4 --requests 1500 $two --kv-tokens 6000 --over staleness=0,0.1,1,3,10,30,60 --policies weighted_score,cache_aware,sticky_least_loaded,expected_ttft --seeds 10
keep staleness-tenants sweep --workload tenants $gpu4 --requests 1200 --over staleness=0,0.1,1,3,10,30,60 --policies weighted_score,cache_aware,sticky_least_loaded,expected_ttft --seeds 3
}

# Thresholds of cache_aware for equal and unequal fleets and for bursts, as in docs/study/guidance.
guidance() {
kept=$guidance
thresholds=least_loaded
for rule in preset=high_affinity preset=balanced preset=load_focused abs=8:rel=1.1 balance=either balance=dynamic; do
  thresholds=$thresholds,cache_aware:$rule
done
for rule in preset=high_affinity preset=balanced preset=load_focused abs=8:rel=1.1 balance=either balance=dynamic; do
  thresholds=$thresholds,cache_aware:$rule:worth=off
done
thresholds="--policies $thresholds,expected_ttft --seeds 3"
keep equal-conversation simulate $conversation --rate-scale 2.5 --requests 4000 $thresholds
keep unequal-conversation simulate $conversation --rate-scale 1.33 --requests 4000 --worker-group 4 --worker-group 2:speed-percent=50 --worker-group 2:kv-tokens=400000 $thresholds
keep equal-tenants simulate --workload tenants --workers 4 --speed-percent 25 --kv-tokens 96000 --requests 2400 $thresholds
keep unequal-tenants simulate --workload tenants --worker-group 2:speed-percent=33:kv-tokens=96000 --worker-group 2:speed-percent=17:kv-tokens=96000 --requests 2400 $thresholds
keep bursts simulate --workload burst --rate-scale 6.4 --requests 4000 $thresholds
}

# The default against other policies: tables of expected_ttft/README.md.
printed=$policies
print() { # NAME SCRIPT [FLAGS]
  name=$1 script=$2; shift 2
  begins "$printed/$name.md" || return 0
  if [ -n "$quick" ]; then set -- "$@" --quick; fi
  python3 "$here/$script.py" --lab "$lab" "$@" >"$printed/$name.tmp"
  mv "$printed/$name.tmp" "$printed/$name.md"
}
policies() {
print grid expected_ttft/grid --data "$traces"
print overload expected_ttft/grid --data "$traces" --shares 1.5,2,4 \
  --policies expected_ttft,round_robin,least_loaded,product,dual_choice,llmd_weights,mooncake_conductor,lbgr
print followers expected_ttft/followers --data "$traces"
print agents expected_ttft/agents
print ablation expected_ttft/ablation --data "$traces"
small=conversation,synthetic,b2b,one-hot-prefix,burst
axis="expected_ttft/grid --data $traces --seeds 3 --shares 0.8,1.1 --except codegen --axis"
print presumed expected_ttft/grid --data "$traces" --shares 0.8,1.1 --except codegen --axis presumed
print stale-1s $axis stale-1s
# What routers know is wrong: histories, resets, evictions and events late or untold, priors.
some=expected_ttft,round_robin,least_loaded,session_affinity,cache_aware,sticky_least_loaded,product,llmd_weights,lbgr
for one in reset resets evictions-unpublished late-events warm-presumed slow fast; do
  print $one $axis $one --only b2b,one-hot-prefix,burst --policies $some
done
for one in cache-quarter cache-fourfold workers-2; do print $one $axis $one --only $small; done
print workers-32 $axis workers-32 --seeds 2 --shares 0.8 --only conversation,synthetic,one-hot-prefix
print workers-128 $axis workers-128 --seeds 2 --shares 0.8 --requests 1000 --only conversation,one-hot-prefix
}

# One router against several: tables of many_routers/README.md.
routers() {
printed=$routers
print many_routers many_routers/study --data "$traces"
}

# Runs a part, and notes its build in builds.tsv if it was made as a whole.
part() {
  began=$(date +%s) skipped=
  $1
  if [ -n "$quick$skipped" ]; then return; fi
  minutes=$((($(date +%s) - began + 59) / 60))
  grep -v "^$1	" "$here/builds.tsv" >"$here/builds.tmp" || true
  printf '%s\t%s\t%s\t%s\n' "$1" "${build#*commit }" "$(date -u +%Y-%m-%d)" "$minutes" >>"$here/builds.tmp"
  mv "$here/builds.tmp" "$here/builds.tsv"
}
case $part in
  all) for one in workloads claims guidance policies routers; do part $one; done ;;
  workloads | claims | guidance | policies | routers) part "$part" ;;
  *) echo "unknown part $part" >&2; exit 2 ;;
esac
# Tables and figures of the pages. The quick pass fills copies of them.
page() { # FOLDER RESULTS
  page=$here/$1/README.md
  if [ -n "$quick" ]; then page=$work/page.md; cp "$here/$1/README.md" "$page"; fi
  python3 "$here/claims/tables.py" --results "$2" --workloads "$out" --page "$page"
}
printed_page() { # FOLDER RESULTS
  page=$here/$1/README.md
  if [ -n "$quick" ]; then page=$work/page.md; cp "$here/$1/README.md" "$page"; fi
  python3 "$here/expected_ttft/fill.py" --results "$2" --page "$page"
}
case $part in all | policies) printed_page expected_ttft "$policies" ;; esac
case $part in all | routers) printed_page many_routers "$routers" ;; esac
# Its last claim is about several routers.
case $part in all | claims | routers) page claims "$claims"; python3 "$here/claims/figures.py" --results "$claims" --out "$img" ;; esac
case $part in all | workloads | guidance) page guidance "$guidance"; page . "$guidance" ;; esac
# Figures of all pages.
if [ -z "$quick" ]; then python3 "$here/plot.py"; python3 "$here/../img/load.py"; fi
