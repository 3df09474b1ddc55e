#!/usr/bin/env python3
"""Expected against observed TTFT of recorded decisions, by what was ahead of the prompt.

    docs/study/gpu/overdue.py [docs/study/gpu/results/4x8b-sharegpt-decisions.jsonl]

A line is the chosen worker of one decision: the last 256 of a run of `expected_ttft` with KV events, from the file that bench/sockets/run.py
writes to `--logs`. Python's standard library only.
"""
import json
import statistics
import sys
from pathlib import Path

DEFAULT = Path(__file__).parent / "results" / "4x8b-sharegpt-decisions.jsonl"
KINDS = {
    "nothing ahead": lambda row: row["prompts_ahead"] == 0,
    "a prompt ahead, on time": lambda row: row["prompts_ahead"] > 0 and row["queue_ms"] >= 1,
    "a prompt ahead, overdue": lambda row: row["prompts_ahead"] > 0 and row["queue_ms"] < 1,
}

lines = Path(sys.argv[1] if len(sys.argv) > 1 else DEFAULT).read_text().splitlines()
rows = [row for row in map(json.loads, lines) if row["observed_ms"] is not None]
for name, is_one in KINDS.items():
    those = [row for row in rows if is_one(row)]
    expected = statistics.mean(row["queue_ms"] + row["prefill_ms"] for row in those)
    observed = statistics.mean(row["observed_ms"] for row in those)
    print(f"{name:<25}{len(those):>4} of {len(rows)} decisions, expected {expected:>4.0f} ms, observed {observed:>4.0f} ms")
