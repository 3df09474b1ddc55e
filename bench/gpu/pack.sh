#!/usr/bin/env bash
# pack.sh OUT [PART_MIB]: vLLM 0.26.0 for Hopper GPUs (CUDA 13, Python 3.12) with the packages it imports, as OUT/part.00, part.01, ...
# for a machine that has torch 2.11.0, transformers, tokenizers and numpy, and no network. Needs PyPI and xz; about four minutes.
set -euo pipefail
out=$(mkdir -p "$1" && cd "$1" && pwd)
part=${2:-34}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 -m venv uv
uv/bin/pip -q install uv
install() {
    uv/bin/uv pip install -q --target vt --python-version 3.12 --python-platform x86_64-manylinux_2_31 --only-binary :all: "$@"
}
install 'fastapi>=0.133,<0.137' starlette uvicorn 'pydantic>=2.12' openai prometheus-fastapi-instrumentator lm-format-enforcer==0.11.3 \
    llguidance outlines_core==0.2.14 lark==1.2.2 partial-json-parser jsonschema pyzmq msgspec 'mistral_common>=1.11.5' watchfiles \
    python-json-logger pybase64 cbor2 ijson setproctitle openai-harmony anthropic 'model-hosting-container-standards>=0.1.14,<1' mcp \
    opentelemetry-sdk opentelemetry-api opentelemetry-exporter-otlp opentelemetry-semantic-conventions-ai cachetools blake3 nvtx \
    python-multipart email-validator httptools loguru
# These depend on torch, which the GPU machine has. xgrammar 0.2.1 needs this version of apache-tvm-ffi.
install --no-deps xgrammar==0.2.1 compressed-tensors==0.17.0 depyf==0.20.0 astor dill apache-tvm-ffi==0.1.10
find vt -name '*.so' -exec strip --strip-debug {} + 2>/dev/null || true
find vt -name '*.a' -delete
find vt -name __pycache__ -prune -exec rm -rf {} +
rm -rf vt/numpy* vt/PIL vt/pillow* vt/pycountry/locales vt/bin vt/anthropic vt/anthropic-* vt/xgrammar/include

uv/bin/pip -q download --no-deps --python-version 3.12 --only-binary=:all: --platform manylinux_2_28_x86_64 -d wheels vllm==0.26.0
# Left out: FlashAttention 2 (Hopper uses 3), mixture-of-experts and Blackwell kernels, the Rust front end.
python3 - <<'PYTHON'
import fnmatch, glob, zipfile
skip = ["vllm/vllm_flash_attn/_vllm_fa2_C*", "vllm/third_party/fmha_sm100/*", "vllm/third_party/deep_gemm/include/*", "vllm/vllm-rs",
        "vllm/_moe_C*"] + [f"vllm/third_party/deep_gemm/_C.cpython-{version}*" for version in (310, 311, 313, 314)]
with zipfile.ZipFile(glob.glob("wheels/vllm-*.whl")[0]) as wheel:
    for name in wheel.namelist():
        if not any(fnmatch.fnmatch(name, pattern) for pattern in skip):
            wheel.extract(name, "vt")
PYTHON
tar cf - vt | xz -T0 -3 > vllm.tar.xz
rm -f "$out"/part.*
split -b "${part}M" -d vllm.tar.xz "$out/part."
ls -l "$out"
