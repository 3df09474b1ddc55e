#!/usr/bin/env python3
"""Writes a small file of every trace format into a folder: tiny_traces.py FOLDER. For `run.sh --quick`; no study uses them.

The names are those of the published files, so that the same commands read them. Their figures mean nothing."""
import json
import random
import sys
from pathlib import Path

folder, dice = Path(sys.argv[1]), random.Random(1)
WORDS = "amber birch cedar dune ember fjord grove heath iris juniper kelp larch moss north oak pine quartz reed stone tide".split()


def text(words):
    return " ".join(dice.choice(WORDS) for _ in range(words))


def write(name, content):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def mooncake(row):
    ids = [0, 1 + row % 7] + [1000 * row + block for block in range(dice.randint(1, 6))]
    return {"timestamp": 250 * row, "input_length": 512 * len(ids) - 100, "output_length": 60, "hash_ids": ids}


for name in ("conversation", "synthetic"):
    write(f"mooncake/{name}_trace.jsonl.zst", lines(mooncake(row) for row in range(120)))

accumulated = []
for _ in range(20):
    so_far = text(120)
    for _ in range(3):
        accumulated.append({"input": so_far, "output_length": 40})
        so_far += "\n" + text(80)
write("sharegpt/lmbenchmark_sharegpt_run.json.zst", json.dumps(accumulated))


def task(number):
    said = [{"speaker": "agent" if turn % 2 else "user", "text": text(30)} for turn in range(5)]
    return {"task_id": str(number), "contexts": [{"document_id": str(number), "text": text(200)}], "input": said,
            "targets": [{"speaker": "agent", "text": text(40)}]}


tasks = [task(number) for number in range(30)]
write("mtrag/mtragun_reference.jsonl.zst", lines(tasks))
write("mtrag/mtrag_reference_subset_with_human_evaluations.json.zst", json.dumps({"tasks": tasks, "documents": []}))
pairs = str([{"Q": "Who?", "A": text(20), "S": ["x"]}, {"Q": "When?", "A": text(20), "S": "y"}])
for name in ("longdep_qa", "shortdep_qa"):
    write(f"loogle/{name}.jsonl.zst", lines({"input": text(1500), "title": "t", "qa_pairs": pairs, "output": "none"} for _ in range(10)))
