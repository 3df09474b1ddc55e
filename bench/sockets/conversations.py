#!/usr/bin/env python3
"""Conversations with real text for run.py, as JSON lines: a list of turns, each with its messages and the tokens of its answer.

    conversations.py lmbenchmark lmbenchmark_sharegpt_run.json > sharegpt.jsonl
    conversations.py mtrag mtragun_reference.jsonl > mtrag.jsonl

LMBenchmark's ShareGPT requests carry the whole conversation so far as one text; those that continue another one become its next turn.
MTRAG's tasks are multi-turn questions about passages, which come with the last question.
"""
import json
import sys


def lmbenchmark(path):
    with open(path) as file:
        requests = json.load(file)
    conversations = []
    for request in sorted(requests, key=lambda request: len(request["input"])):
        turn = {"messages": [{"role": "user", "content": request["input"]}], "answer_tokens": min(request["output_length"], 64)}
        longest = max((c for c in conversations if request["input"].startswith(content(c[-1]))), key=lambda c: len(content(c[-1])), default=None)
        if longest is None:
            conversations.append([turn])
        else:
            longest.append(turn)
    return conversations


def content(turn):
    return turn["messages"][0]["content"]


def mtrag(path):
    with open(path) as file:
        tasks = [json.loads(line) for line in file]
    return [turns(task) for task in tasks]


def turns(task):
    roles = {"user": "user", "agent": "assistant"}
    history = [{"role": roles[message["speaker"]], "content": message["text"]} for message in task["input"]]
    questions = [at for at, message in enumerate(history) if message["role"] == "user"]
    all_turns = [history[:at + 1] for at in questions]
    passages = "\n\n".join(passage["text"].strip() for passage in task["contexts"])
    all_turns[-1][-1] = {"role": "user", "content": f"{passages}\n\n{all_turns[-1][-1]['content']}"}
    return [{"messages": messages, "answer_tokens": 48} for messages in all_turns]


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in ("lmbenchmark", "mtrag"):
        sys.exit(__doc__)
    for conversation in {"lmbenchmark": lmbenchmark, "mtrag": mtrag}[sys.argv[1]](sys.argv[2]):
        print(json.dumps(conversation))


if __name__ == "__main__":
    main()
