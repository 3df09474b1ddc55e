#!/usr/bin/env bash
# FLEET=DIR fleet.sh N SIZE BLOCKS: N vLLM servers on one GPU, each with 1/N of its multiprocessors (CUDA MPS).
#
# SIZE is 1b, 3b or 8b: the shape of a Llama model with made-up weights. BLOCKS is each server's KV cache in blocks of 16 tokens. Ports
# are 8101..., KV events on 5601..., replay on 5701.... The servers outlive this script: FLEET/pids has their process ids, and
# FLEET/fleet.json describes them for bench/sockets/run.py. TEXTS names files that the tokenizer is trained on. REPORTER names
# warmroute_reporter.py: it posts what the caches hold to port 29000 every 100 ms, as well. MAX_NUM_SEQS is each server's number of places
# (vLLM's default on an H200: 1,024).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
servers=$1 size=$2 blocks=$3
# vLLM wants a cache that holds the longest prompt.
longest=$((blocks * 8 < 32768 ? blocks * 8 : 32768))
mkdir -p "${FLEET:?folder for logs, models and process ids}/logs"
cd "$FLEET"
: > pids

export CUDA_MPS_PIPE_DIRECTORY=$FLEET/mps CUDA_MPS_LOG_DIRECTORY=$FLEET/mpslog
mkdir -p mps mpslog
pgrep -f nvidia-cuda-mps-control > /dev/null || nvidia-cuda-mps-control -d
if [[ -d vt ]]; then export PYTHONPATH=$FLEET/vt; fi
export VLLM_NO_USAGE_STATS=1 VLLM_USE_FLASHINFER_SAMPLER=0 VLLM_ATTENTION_BACKEND=FLASH_ATTN VLLM_SERVER_DEV_MODE=1 HF_HUB_OFFLINE=1
[[ -d model-$size ]] || python3 "$here/model.py" "model-$size" "$size" ${TEXTS:-}

for i in $(seq 1 "$servers"); do
    events='{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:'$((5600 + i))'","replay_endpoint":"tcp://*:'$((5700 + i))'"}'
    report=()
    if [[ -n ${REPORTER:-} ]]; then
        report=("$REPORTER" --url http://127.0.0.1:29000/events --worker "http://127.0.0.1:$((8100 + i))" -- python3)
    fi
    CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=$((100 / servers)) setsid nohup python3 ${report[@]+"${report[@]}"} -m vllm.entrypoints.openai.api_server \
        --model "model-$size" --served-model-name m --load-format dummy --host 127.0.0.1 --port $((8100 + i)) \
        --gpu-memory-utilization "$(python3 -c "print(round(0.9 / $servers, 2))")" --num-gpu-blocks-override "$blocks" \
        --max-model-len "$longest" --max-num-batched-tokens 4096 --enforce-eager --enable-prompt-tokens-details \
        ${MAX_NUM_SEQS:+--max-num-seqs "$MAX_NUM_SEQS"} --kv-events-config "$events" > "logs/$i.log" 2>&1 &
    echo $! >> pids
    sleep 1
done

python3 - "$servers" "$FLEET/model-$size" > fleet.json <<'PYTHON'
import json, sys
ports = [[8100 + i, 5600 + i, 5700 + i] for i in range(1, int(sys.argv[1]) + 1)]
print(json.dumps({"ports": ports, "model_path": sys.argv[2], "words": sys.argv[2] + "/words.json"}))
PYTHON

for second in $(seq 1 240); do
    healthy=0
    for i in $(seq 1 "$servers"); do
        if curl -sf -o /dev/null "127.0.0.1:$((8100 + i))/health"; then healthy=$((healthy + 1)); fi
    done
    if [[ $healthy == "$servers" ]]; then
        echo "$servers servers are healthy after $second s"
        exit 0
    fi
    while read -r pid; do
        kill -0 "$pid" 2>/dev/null || { echo "a server died:" >&2; grep -hE "Error|error" logs/*.log | tail -8 >&2; exit 1; }
    done < pids
    sleep 1
done
echo "only $healthy of $servers servers are healthy" >&2
tail -n 5 logs/*.log >&2
exit 1
