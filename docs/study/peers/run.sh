#!/bin/bash
# Routers of others beside ours, in real time: docs/study/peers/run.sh WARMROUTE SMG VLLM_ROUTER TRACE [OUT]
#
# The first three are binaries (the peers' from PyPI: `pip install smg vllm-router`, each in an environment of its own), TRACE is
# Mooncake's conversation trace, OUT gets one JSON object for each run [results.jsonl here]. Every run has eight fresh simulated engines
# and one router in its default setting but for the policy; all get the same requests. The routers of a round run side by side, each with
# engines of its own, so that what else the machine does hits all alike; everybody sleeps most of the time, and SPEED below 1 makes the
# machine's part smaller still. REPEAT, SPEED, REQUESTS and TRAFFICS may be set.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
warmroute=$1 smg=$2 vllm_router=$3 trace=$4 out=${5:-$here/results.jsonl}
repeat=${REPEAT:-2} speed=${SPEED:-0.25} requests=${REQUESTS:-400} traffics=${TRAFFICS:-conversation b2b}
engines=8

stop() {
  [ ${#pids[@]} -eq 0 ] || kill "${pids[@]}" 2>/dev/null || true
  wait || true
  rm -rf "$scratch"
}

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# What a process announced in its first line, under this name.
announced() {
  until grep -qs listening "$1"; do sleep 0.05; done
  sed -nE "1s/.*\"$2\":\"([^\"]*)\".*/\1/p" "$1"
}

start_engines() { # SPEED KV_TOKENS -> urls
  urls=()
  for i in $(seq $engines); do
    "$warmroute" engine --port 0 --speed "$1" --kv-tokens "$2" >"$scratch/engine-$i" 2>/dev/null &
    pids+=($!)
  done
  for i in $(seq $engines); do urls+=("$(announced "$scratch/engine-$i" listening)"); done
}

# Starts a router and waits until it believes all engines to be well -> url, router
start_router() { # NAME POLICY
  local workers port
  rm -f "$scratch/router"
  case $1 in
    warmroute)
      "$warmroute" serve --host 127.0.0.1 --port 0 --admin-port 0 --policy "$2" --worker-urls "${urls[@]}" \
        >"$scratch/router" 2>"$scratch/router.log" &
      router=$!; pids+=($router)
      until [ -s "$scratch/router" ]; do sleep 0.05; done
      url=$(announced "$scratch/router" listening) workers=$(announced "$scratch/router" admin)/workers ;;
    *)
      port=$(free_port) url=http://127.0.0.1:$port workers=$url/workers
      local command=("$vllm_router"); [ "$1" = vllm-router ] || command=("$smg" launch)
      "${command[@]}" --host 127.0.0.1 --port "$port" --prometheus-port "$(free_port)" --policy "$2" \
        --worker-urls "${urls[@]}" >"$scratch/router.log" 2>&1 &
      router=$!; pids+=($router) ;;
  esac
  url=${url%/}
  until [ "$(curl -s "$workers" | grep -oE '"is_healthy":true|"state":"ready"' | wc -l)" -eq $engines ]; do sleep 0.2; done
}

# User and system time of a process and of those it has waited for, in hundredths of a second.
cpu() { sed -E 's/.*\) //' "/proc/$1/stat" | awk '{print $12 + $13 + $14 + $15}'; }

# Requests each engine got.
shares() { for engine in "${urls[@]}"; do curl -s "$engine/metrics" | awk '/^vllm:request_success_total/ {n += $2} END {print n + 0}'; done | paste -sd,; }

run() ( # TRAFFIC SEED NAME POLICY
  scratch=$(mktemp -d) pids=()
  trap stop EXIT
  engine_speed=$speed kv_tokens=846000
  case $1 in
    conversation) drive=(--trace "$trace" --rate-scale 3) ;;
    # As published: Qwen3-32B's prefill, its cache, and the first stage of 15 requests a second.
    b2b) drive=(--workload b2b) kv_tokens=307328 engine_speed=$(python3 -c "print($speed * 0.55)") ;;
  esac
  start_engines "$engine_speed" $kv_tokens
  start_router "$3" "$4"
  before=$(cpu $router)
  driven=$("$warmroute" lab drive --url "$url" --name "$3 $4" "${drive[@]}" --requests "$requests" --seed "$2" --speed "$speed" --json -)
  printf '{"traffic":"%s","router_cpu_s":%s,"machine_load":%s,"shares":[%s],"result":%s}\n' "$1" \
    "$(python3 -c "print(($(cpu $router) - $before) / $(getconf CLK_TCK))")" "$(cut -d' ' -f1 /proc/loadavg)" "$(shares)" \
    "$(python3 -c 'import json,sys; print(json.dumps(json.load(sys.stdin)["results"][0]))' <<<"$driven")" >>"$out"
)

for seed in $(seq "$repeat"); do
  for traffic in $traffics; do
    for router in "warmroute round_robin" "warmroute cache_aware" "warmroute expected_ttft" \
      "smg cache_aware" "smg prefix_hash" "vllm-router cache_aware"; do
      run "$traffic" "$seed" $router &
    done
    wait
    echo "$traffic, round $seed done" >&2
  done
done
python3 "$here/table.py" "$out"
