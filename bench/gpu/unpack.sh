#!/usr/bin/env bash
# unpack.sh PARTS FLEET: unpacks what pack.sh made into FLEET/vt, and says whether vLLM can be imported.
set -euo pipefail
mkdir -p "$2"
cat "$1"/part.* | python3 -c 'import sys, tarfile; tarfile.open(fileobj=sys.stdin.buffer, mode="r|xz").extractall(sys.argv[1])' "$2"
PYTHONPATH=$2/vt python3 -c 'import vllm, vllm._C_stable_libtorch; print("vllm", vllm.__version__)'
