#!/usr/bin/env bash
# FLEET=DIR study.sh OUT STAGE...: the tables of docs/study/gpu, one OUT/STAGE.jsonl a stage, written as results come.
#
# fleet.sh has started four 8B servers with 6,000 blocks (for two-*: two 3B servers with 2,000 blocks), with TEXTS and REPORTER. DIR has besides: warmroute (the binary), peers/smg and
# peers/vllm_router (`pip install --target`), sharegpt.jsonl and mtrag.jsonl (bench/sockets/conversations.py). POLICIES names the
# routers and their order, where it is not the stage's.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=$(mkdir -p "$1" && cd "$1" && pwd)
shift
: "${FLEET:?the folder of fleet.sh}"

ours="expected_ttft+events expected_ttft"
peers="smg:cache_aware round_robin vllm-router:cache_aware"
six="round_robin least_loaded:signal=waiting power_of_two session_affinity prefix_affinity:key=system weighted_score+events expected_ttft+events"
run() { # STAGE OPTION... -- POLICY...
    local stage=$1 options=()
    shift
    while [[ $1 != -- ]]; do options+=("$1"); shift; done
    shift
    python3 "$here/../sockets/run.py" --warmroute "$FLEET/warmroute" --fleet "$FLEET/fleet.json" --logs "$FLEET/logs" \
        --smg "env PYTHONPATH=$FLEET/peers/smg:$FLEET/vt python3 -m smg.cli" \
        --vllm-router "env PYTHONPATH=$FLEET/peers/vllm_router:$FLEET/vt python3 -m vllm_router.launch_router" "${options[@]}" ${POLICIES:-"$@"} | tee -a "$out/$stage.jsonl" || true
}

for stage in "$@"; do
    case $stage in
        tenants) # Every policy, in the scenario of the README.
            run tenants --system 6000 --rate 3 --secs 30 --seed 6 -- $ours cache_aware+events cache_aware product+events \
                sticky_least_loaded+reporter least_loaded $peers ;;
        tenants-*) # The policies that matter, with another seed.
            run tenants --system 6000 --rate 3 --secs 30 --seed "${stage#tenants-}" -- $ours $peers sticky_least_loaded+reporter ;;
        sharegpt) run sharegpt --name sharegpt --conversations "$FLEET/sharegpt.jsonl" --rate 5 --secs 15 --think 1.5 --seed "${SEED:-6}" -- \
            $ours cache_aware+events product+events least_loaded $peers ;;
        mtrag) run mtrag --name mtrag --conversations "$FLEET/mtrag.jsonl" --rate 8 --secs 15 --think 1.5 --seed "${SEED:-6}" -- \
            $ours cache_aware+events product+events least_loaded $peers ;;
        places) # Closed loop on servers with few places (MAX_NUM_SEQS=8 fleet.sh 4 8b 6000).
            run places --name places --system 6000 --concurrency 48 --secs 20 --seed 6 -- $ours cache_aware+events smg:cache_aware ;;
        engine-metrics) # A load test of our own router, beside the engines' own measurements.
            servers=$(python3 -c 'import json, sys; print(" ".join("http://127.0.0.1:%d" % port[0] for port in json.load(open(sys.argv[1]))["ports"]))' \
                "$FLEET/fleet.json")
            "$FLEET/warmroute" serve $servers --port 8800 --kv-events off > "$FLEET/logs/engine-metrics.log" 2>&1 &
            router=$!
            trap 'kill "$router"' EXIT
            until curl -sf -o /dev/null http://127.0.0.1:8800/v1/models; do kill -0 "$router"; sleep 0.1; done
            "$FLEET/warmroute" lab drive --url http://127.0.0.1:8800 --workload tenants --concurrency 16 --duration 20 --requests 10000 \
                --model m --engine-metrics "${servers// /,}" | tee "$out/engine-metrics.txt"
            kill "$router"
            trap - EXIT ;;
        saturation) # Closed loop: what the fleet can serve.
            run saturation --system 6000 --concurrency 48 --secs 20 --seed 6 -- $ours cache_aware+events product+events $peers ;;
        saturation-*) # With another seed, the policies that matter.
            run saturation --system 6000 --concurrency 48 --secs 20 --seed "${stage#saturation-}" -- $ours smg:cache_aware \
                vllm-router:cache_aware ;;
        reporter) # What reporters post every 100 ms, beside KV events, on each traffic.
            both="sticky_least_loaded+reporter expected_ttft+events"
            run reporter --name tenants --system 6000 --rate 3 --secs 30 --seed 8 -- $both
            run reporter --name sharegpt --conversations "$FLEET/sharegpt.jsonl" --rate 5 --secs 15 --think 1.5 --seed 6 -- $both
            run reporter --name mtrag --conversations "$FLEET/mtrag.jsonl" --rate 8 --secs 15 --think 1.5 --seed 6 -- $both ;;
        two-chat) # Two small servers whose caches evict: chats that share system prompts, questions about passages, prompts of their own.
            for rate in ${RATES:-6 9 12}; do
                run two --name "chat-$rate" --system 4000 --turns 3 --think 1 --rate "$rate" --secs 6 --seed "${SEED:-6}" -- $six
            done ;;
        two-rag)
            for rate in ${RATES:-12 24}; do
                run two --name "rag-$rate" --conversations "$FLEET/mtrag.jsonl" --think 1 --rate "$rate" --secs 6 --seed "${SEED:-6}" -- $six
            done ;;
        two-unique)
            for rate in ${RATES:-6 12 20}; do
                run two --name "unique-$rate" --tenants 1 --system 0 --question 3000 --turns 1 --think 0.2 --rate "$rate" --secs 6 --seed "${SEED:-6}" -- $six
            done ;;
        *) echo "no such stage: $stage" >&2; exit 2 ;;
    esac
done
