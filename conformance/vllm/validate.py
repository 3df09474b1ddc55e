"""One real vLLM with a small cache, and the engine model given the very same tokens. Prints a table; exits with 1 where they differ."""

import argparse
import json
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

import msgspec
import zmq

from world import Engine

BLOCK_TOKENS = 32
# With its answer it must fit into the served model's 1,536.
PROMPT_TOKENS_MAX = 1400
# Of the tiny model's ids the first five are special; it has at least one for each byte.
IDS = range(5, 5 + 256)


class Names:
    """Numbers for blocks: the same tokens after the same blocks have the same number in every source."""

    def __init__(self):
        self.numbers, self.by_hash = {}, {}

    def number(self, parent, tokens):
        return self.numbers.setdefault((parent, tuple(tokens)), len(self.numbers))

    def chain(self, tokens):
        names, parent = [], None
        for at in range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
            parent = self.number(parent, tokens[at:at + BLOCK_TOKENS])
            names.append(parent)
        return names


def tokens(rng, least, most):
    return [rng.choice(IDS) for _ in range(rng.randint(least, most))]


def requests(count, seed):
    """Prompts and lengths of answers; what was answered is sent in."""
    rng = random.Random(seed)
    heads, past = [tokens(rng, 40, 700) for _ in range(12)], []
    for _ in range(count):
        prompt, output = next_prompt(rng, heads, past), rng.choice([1, 2, 8, 33, 64])
        answer = yield prompt, output
        past.append(prompt + answer)


def next_prompt(rng, heads, past):
    """It goes on from an earlier answer, or shares a head with others; some end where a block ends, which is computed again then."""
    kind, head = rng.random(), rng.choice(heads)
    if kind < 0.35 and past:
        grown = rng.choice(past[-20:]) + tokens(rng, 1, 120)
        if len(grown) <= PROMPT_TOKENS_MAX:
            return grown
    if kind > 0.9:
        return head[:rng.randint(1, len(head) // BLOCK_TOKENS) * BLOCK_TOKENS]
    return head + tokens(rng, 1, 200)


def complete(url, prompt, output):
    body = {"model": "tiny", "prompt": prompt, "max_tokens": output, "ignore_eos": True, "return_token_ids": True}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            said = json.load(answer)
    except urllib.error.HTTPError as error:
        raise SystemExit(f"{error}: {error.read().decode()[:500]}") from error
    choice, usage = said["choices"][0], said["usage"]
    if choice["prompt_token_ids"] != prompt or len(choice["token_ids"]) != output:
        raise SystemExit("the engine has not served these tokens")
    return choice["token_ids"], (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


def events(replay_port):
    """All batches since the engine's start, from its replay."""
    socket = zmq.Context.instance().socket(zmq.DEALER)
    socket.setsockopt(zmq.RCVTIMEO, 20_000)
    socket.connect(f"tcp://127.0.0.1:{replay_port}")
    socket.send_multipart([b"", struct.pack(">Q", 0)])
    expected = 0
    while payload := (frames := socket.recv_multipart())[-1]:
        if struct.unpack(">Q", frames[-2])[0] != expected:
            raise SystemExit(f"batch {expected} is missing: too many requests for the replay's memory")
        expected += 1
        yield from msgspec.msgpack.decode(payload)[1]


def of_vllm(replay_port, names):
    """What it says has happened, block by block."""
    happened = []
    for event in events(replay_port):
        if event["type"] == "BlockStored":
            parent = names.by_hash.get(event["parent_block_hash"])
            for index, block in enumerate(event["block_hashes"]):
                tokens = event["token_ids"][index * BLOCK_TOKENS:(index + 1) * BLOCK_TOKENS]
                parent = names.by_hash[block] = names.number(parent, tokens)
                happened.append(("stored", parent))
        elif event["type"] == "BlockRemoved":
            happened += [("removed", names.by_hash[block]) for block in event["block_hashes"]]
        else:
            raise SystemExit(f"unexpected: {event['type']}")
    return happened


def of_model(binary, blocks, served, names):
    lines = [" ".join(map(str, [len(prompt), len(answer), *names.chain(prompt + answer)])) for prompt, answer in served]
    # vLLM keeps one block for itself.
    ran = subprocess.run([binary, str(BLOCK_TOKENS), str(blocks - 1)], input="\n".join(lines), text=True, capture_output=True, check=True)
    cached, happened = [], []
    for what, *numbers in map(str.split, ran.stdout.splitlines()):
        if what == "cached":
            cached += map(int, numbers)
        else:
            happened += [(what, int(number)) for number in numbers]
    return cached, happened


def report(served, real, model):
    prompt_tokens = sum(len(prompt) for prompt, _ in served)
    count = lambda happened, what: sum(one == what for one, _ in happened)
    rows = [
        ("blocks stored", *(count(happened, "stored") for _, happened in (real, model))),
        ("blocks evicted", *(count(happened, "removed") for _, happened in (real, model))),
        ("cached tokens", *(sum(cached) for cached, _ in (real, model))),
        ("token hit ratio", *(f"{sum(cached) / prompt_tokens:.2%}" for cached, _ in (real, model))),
    ]
    print(f"{len(served)} requests, {prompt_tokens} prompt tokens\n{'':24}{'vLLM':>10}{'model':>10}")
    for name, *cells in rows:
        print(f"{name:24}{cells[0]:>10}{cells[1]:>10}")
    same = next((at for at, (a, b) in enumerate(zip(real[1], model[1])) if a != b), min(len(real[1]), len(model[1])))
    print(f"the same in the same order: {same} of {len(real[1])} stores and evictions, "
          f"{sum(a == b for a, b in zip(real[0], model[0]))} of {len(real[0])} requests' cached tokens")
    if real[1] != model[1]:
        print(f"first difference: vLLM {real[1][same:same + 5]}, model {model[1][same:same + 5]}")
    return real == model


def main():
    parser = argparse.ArgumentParser()
    for name in ("--venv", "--model", "--replay"):
        parser.add_argument(name, required=True)
    for name, default in (("--requests", 300), ("--seed", 1), ("--blocks", 128)):
        parser.add_argument(name, type=int, default=default)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as logs:
        engine = Engine(args, pathlib.Path(logs), "vllm", args.blocks)
        try:
            engine.start()
            engine.ready()
            served, cached, asking, answer = [], [], requests(args.requests, args.seed), None
            for _ in range(args.requests):
                prompt, output = asking.send(answer)
                answer, found = complete(engine.url, prompt, output)
                served.append((prompt, answer))
                cached.append(found)
            names = Names()
            real = cached, of_vllm(engine.ports[2], names)
        finally:
            engine.kill()
    sys.exit(0 if report(served, real, of_model(args.replay, args.blocks, served, names)) else 1)


main()
