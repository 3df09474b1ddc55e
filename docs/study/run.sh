#!/bin/sh
# Makes every table of the study again: docs/study/run.sh LAB TRACES, where LAB is the command (`warmroute lab`) and TRACES a
# folder with mooncake/, sharegpt/ and mtrag/ as published (see README.md here). Figures depend on flags and seeds alone.
set -eu
lab=$1 traces=$2 out=$(dirname "$0")/results
mkdir -p "$out"
six=round_robin,least_loaded,power_of_two,session_affinity,prefix_affinity,weighted_score
all=$six,cache_aware,sticky_least_loaded,product,dual_choice,expected_ttft
presets=cache_aware:preset=high_affinity,cache_aware:preset=balanced,cache_aware:preset=load_focused
conversation="--trace $traces/mooncake/conversation_trace.jsonl.zst"
synthetic="--trace $traces/mooncake/synthetic_trace.jsonl.zst"

run() { name=$1; shift; echo "$name" >&2; $lab "$@" --markdown "$out/$name.md" >/dev/null; }

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
