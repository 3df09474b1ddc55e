#!/usr/bin/env python3
"""Policies over real sockets: the same conversations through `warmroute serve` and simulated engines, one JSON line a run.

    bench/sockets/run.py --warmroute target/release/warmroute expected_ttft expected_ttft+events round_robin

Each run starts a new router. `POLICY+events` follows the engines' KV events, `POLICY+reporter` gets them as posts (bench/gpu/fleet.sh),
`POLICY` alone presumes what the engines hold.
`smg:POLICY` and `vllm-router:POLICY` are those routers, started by the commands `--smg` and `--vllm-router`. With
`--history reset` the engines have served other traffic and were told to empty their caches just before the router starts: their event
streams still hold the old blocks, and announce the reset only with the next step, as vLLM does. With `--history fresh` the engines
are new processes. With `--fleet FILE` the engines are real vLLM servers that bench/gpu/fleet.sh has started.

Traffic is made up (tenants with long system prompts) or read from `--conversations FILE`, as bench/sockets/conversations.py writes it.
Conversations begin at a rate, or `--concurrency N` run at a time.

Python's standard library only. Times are seconds of this machine's clock: run nothing beside it.
"""
import argparse
import asyncio
import itertools
import json
import os
import random
import shlex
import socket
import statistics
import subprocess
import sys
import tempfile
import time

from processes import Fleet, Process, get, stop, wait_until, wait_until_ready

# Where reporters post to.
REPORTER_PORT = 29_000
# Three letters and a space: two tokens of the simulated engines.
WORDS = ["".join(chr(97 + (i * 7 + j * 5 + i // 26 * 3) % 26) for j in range(3)) for i in range(700)]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("policies", nargs="+", help="POLICY, POLICY+events, smg:POLICY or vllm-router:POLICY")
    add("--warmroute", default="target/release/warmroute", help="the binary")
    add("--history", choices=["fresh", "reset"], default="reset", help="what the engines did before")
    add("--engines", type=int, default=4)
    add("--speed", type=float, default=0.25, help="engine seconds per second")
    add("--kv-tokens", type=int, default=96_000, help="tokens of each engine's cache")
    add("--tenants", type=int, default=24, help="different system prompts")
    add("--system", type=int, default=3_000, help="words of a system prompt")
    add("--question", type=int, default=200, help="words of a question")
    add("--turns", type=int, default=4, help="questions of a conversation")
    add("--answer", type=int, default=32, help="tokens of an answer")
    add("--conversations", help="JSON lines of conversations instead of tenants")
    add("--name", default="tenants", help="the traffic's name in the results")
    add("--rate", type=float, default=3.0, help="conversations a second")
    add("--concurrency", type=int, help="so many conversations at a time instead of a rate")
    add("--secs", type=float, default=25.0, help="for how long conversations begin")
    add("--think", type=float, default=2.0, help="mean seconds between an answer and the next question")
    add("--seed", type=int, default=5)
    add("--fleet", help="fleet.json of bench/gpu/fleet.sh: real servers instead of simulated engines")
    add("--no-details", action="store_true", help="engines do not say how many tokens were cached")
    add("--smg", default="smg", help="command of SMG")
    add("--vllm-router", default="vllm-router", help="command of vllm-router")
    add("--answers", help="write one JSON line for each answer to this file")
    add("--logs", help="folder for the routers' logs")
    return parser.parse_args()


class Peer:
    """Another router before a fleet, in its default setting."""

    def __init__(self, o, fleet, name):
        program, _, policy = name.partition(":")
        command = shlex.split(o.smg) + ["launch"] if program == "smg" else shlex.split(o.vllm_router)
        self.port = free_port()
        log = open(os.path.join(o.logs, f"{program}.log"), "w") if o.logs else subprocess.DEVNULL
        self.process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(self.port), "--prometheus-port", str(free_port()), "--policy", policy,
             "--worker-urls", *fleet.urls], stdout=log, stderr=log)
        url = f"http://127.0.0.1:{self.port}/workers"
        try:
            wait_until(f"{program}'s workers are healthy", lambda: get(url).count('"is_healthy":true') == len(fleet.workers), 60)
        except TimeoutError:
            self.stop()
            raise

    def stop(self):
        stop(self.process)


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Router:
    """`warmroute serve` before a fleet."""

    def __init__(self, o, fleet, name, folder):
        policy, _, source = name.partition("+")
        config = os.path.join(folder, "router.toml")
        with open(config, "w") as file:
            for worker in fleet.workers:
                file.write(f'[[workers]]\nurl = "{worker["url"]}"\n')
                if source == "reporter":
                    file.write('kv-events = { endpoint = "off" }\n')
                elif source and "events" in worker:
                    file.write(f'kv-events = {{ endpoint = "{worker["events"]}", replay = "{worker["replay"]}", topic = "" }}\n')
        # The lab's `key` is an option of its own in production.
        policy, _, key = policy.partition(":key=")
        flags = ["--model-path", fleet.model_path] if source else ["--kv-events", "off"]
        flags += ["--prefix-key", key] if key else []
        admin = REPORTER_PORT if source == "reporter" else 0
        log = open(os.path.join(o.logs, f"{name}.log"), "w") if o.logs else subprocess.DEVNULL
        self.process = Process(o.warmroute, "serve", "--config", config, "--host", "127.0.0.1", "--port", 0, "--admin-port", admin,
                               "--policy", policy, "--decision-headers", *flags, log=log)
        self.port = int(self.process.addresses["listening"].rsplit(":", 1)[1])
        self.name, self.logs = name, o.logs
        # A reporter posts nothing before its engine's cache changes.
        try:
            wait_until_ready(self.process, {"": ["presumed"], "reporter": ["presumed", "reported"]}.get(source, ["reported"]))
        except TimeoutError:
            self.stop()
            raise

    def stop(self):
        if self.logs:
            # What it had learned, and its last decisions with all candidates.
            with open(os.path.join(self.logs, f"{self.name}.json"), "w") as file:
                for page in ["workers", "explain?n=1000"]:
                    file.write(get(f"{self.process.addresses['admin']}/{page}") + "\n")
        self.process.stop()


class Tenants:
    """Conversations of tenants, each of which has a long system prompt."""

    def __init__(self, o):
        self.o = o
        self.systems = [self.text(random.Random(9_000 + i), o.system) for i in range(o.tenants)]

    def text(self, r, words):
        return " ".join(r.choice(self.o.words) for _ in range(words))

    def conversation(self, number):
        """Yields the messages of each turn and the tokens of its answer; the answer is sent in."""
        o, r = self.o, random.Random(self.o.seed * 100_003 + number)
        messages = [{"role": "system", "content": self.systems[int(r.random() ** 1.6 * o.tenants)]}]
        for _ in range(o.turns):
            messages.append({"role": "user", "content": self.text(r, o.question)})
            answer = yield messages, o.answer
            messages.append({"role": "assistant", "content": answer})


class Recorded:
    """Conversations of a file, in an order that the seed decides, over and over."""

    def __init__(self, o):
        with open(o.conversations) as file:
            self.conversations = [json.loads(line) for line in file]
        random.Random(o.seed).shuffle(self.conversations)

    def conversation(self, number):
        again, index = divmod(number, len(self.conversations))
        for turn in self.conversations[index]:
            messages = turn["messages"]
            if again:
                # Another user: nothing is shared with the first time.
                messages = [{"role": "system", "content": f"User {again}."}, *messages]
            yield messages, turn["answer_tokens"]


class Load:
    """Conversations in real time: open loop, or a fixed number at a time."""

    def __init__(self, o, port):
        self.o, self.port, self.answers, self.errors = o, port, [], []
        self.traffic = Recorded(o) if o.conversations else Tenants(o)
        self.seconds = 0.0

    def run(self):
        began = time.perf_counter()
        asyncio.run(self.closed_loop() if self.o.concurrency else self.open_loop())
        self.seconds = time.perf_counter() - began

    async def open_loop(self):
        o, r, began, jobs = self.o, random.Random(self.o.seed), time.perf_counter(), []
        while time.perf_counter() - began < o.secs:
            jobs.append(asyncio.create_task(self.converse(len(jobs))))
            await asyncio.sleep(r.expovariate(o.rate))
        await asyncio.gather(*jobs)

    async def closed_loop(self):
        numbers, until = itertools.count(), time.perf_counter() + self.o.secs

        async def client():
            while time.perf_counter() < until:
                await self.converse(next(numbers), until)

        await asyncio.gather(*(client() for _ in range(self.o.concurrency)))

    async def converse(self, number, until=float("inf")):
        """One conversation; it is broken off after `until`."""
        r, turns, answer = random.Random(self.o.seed * 7_919 + number), self.traffic.conversation(number), None
        while time.perf_counter() < until:
            try:
                messages, tokens = turns.send(answer)
            except StopIteration:
                return
            answer = await self.ask(f"{self.o.seed}-{number}", messages, tokens)
            if answer is None:
                return
            if not self.o.concurrency:
                await asyncio.sleep(r.expovariate(1 / self.o.think))

    async def ask(self, session, messages, tokens):
        body = json.dumps({"model": "m", "messages": messages, "max_tokens": tokens, "ignore_eos": True, "stream": True,
                           "temperature": 0, "stream_options": {"include_usage": True}}).encode()
        head = (f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
                f"x-session-id: {session}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n").encode()
        began, first, usage, out = time.perf_counter(), None, {}, []
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 22)
            writer.write(head + body)
            status = await reader.readline()
            headers = {}
            while (line := await reader.readline()).strip():
                name, _, value = line.decode().partition(":")
                headers[name.lower()] = value.strip()
            async for line in lines(reader, headers):
                if not line.startswith(b"data: {"):
                    continue
                data = json.loads(line[6:])
                usage = data.get("usage") or usage
                delta = data["choices"][0]["delta"].get("content") if data.get("choices") else None
                if delta:
                    first = first or time.perf_counter() - began
                    out.append(delta)
            writer.close()
            if b" 200 " not in status or first is None:
                self.errors.append(status.decode().strip())
                return None
        except (OSError, EOFError, ValueError) as error:
            self.errors.append(repr(error))
            return None
        number = lambda name: float(headers[name]) if headers.get(name, "").replace(".", "", 1).isdigit() else None
        self.answers.append({
            "at_s": round(began, 4), "ttft_ms": round(1e3 * first, 2), "worker": headers.get("x-warmroute-worker"),
            "reason": headers.get("x-warmroute-reason"), "expected_ms": number("x-warmroute-expected-ttft-ms"),
            "predicted": number("x-warmroute-cached-tokens"), "prompt": usage.get("prompt_tokens", 0),
            "completion": usage.get("completion_tokens", 0),
            "cached": (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0})
        return "".join(out)


async def lines(reader, headers):
    """The lines of a response's body. A chunk may end within a line."""
    if headers.get("transfer-encoding") != "chunked":
        async for line in reader:
            yield line
        return
    rest = b""
    while size := int(await reader.readline(), 16):
        *whole, rest = (rest + (await reader.readexactly(size + 2))[:size]).split(b"\n")
        for line in whole:
            yield line


def summary(name, o, load, before, after):
    times = sorted(answer["ttft_ms"] for answer in load.answers)
    at = lambda share: round(times[min(len(times) - 1, int(share * len(times)))], 1)
    judged = [answer for answer in load.answers if answer["predicted"] is not None]
    # How right the estimate is once it has seen some answers: observed over expected.
    later = sorted(load.answers, key=lambda answer: answer["at_s"])[50:]
    ratios = sorted(answer["ttft_ms"] / answer["expected_ms"] for answer in later if answer["expected_ms"])
    shape = {"concurrency": o.concurrency} if o.concurrency else {"rate": o.rate}
    if not o.conversations:
        shape["system"] = o.system
    row = {"policy": name, "traffic": o.name, **shape, "history": o.history, "seed": o.seed, "requests": len(times),
           "errors": len(load.errors), "mean_ms": round(statistics.mean(times), 1), "p50_ms": at(.5), "p95_ms": at(.95), "p99_ms": at(.99),
           "hit": round((after[0] - before[0]) / max(1, after[1] - before[1]), 4),
           "hit_requests": round(sum(answer["cached"] > 0 for answer in load.answers) / len(times), 4),
           "requests_per_s": round(len(times) / load.seconds, 2),
           "output_tokens_per_s": round(sum(answer["completion"] for answer in load.answers) / load.seconds, 1),
           "predicted_equal": sum(answer["predicted"] == answer["cached"] for answer in judged), "judged": len(judged),
           "stale_requests": sum(answer["predicted"] > answer["cached"] for answer in judged)}
    if ratios:
        row["observed_over_expected_median"] = round(statistics.median(ratios), 3)
        row["within_0.67_1.5"] = round(sum(0.67 <= ratio <= 1.5 for ratio in ratios) / len(ratios), 3)
    return row


def measure(o, fleet, name, folder):
    is_peer = name.partition(":")[0] in ("smg", "vllm-router")
    router = Peer(o, fleet, name) if is_peer else Router(o, fleet, name, folder)
    try:
        before = fleet.counters()
        load = Load(o, router.port)
        load.run()
        print(json.dumps(summary(name, o, load, before, fleet.counters())), flush=True)
        for error in load.errors[:3]:
            print(error, file=sys.stderr)
        if o.answers:
            with open(o.answers, "a") as file:
                file.writelines(json.dumps({"policy": name, **answer}) + "\n" for answer in load.answers)
    finally:
        router.stop()


def make_history(o, fleet, folder):
    """Other traffic through round robin, so that every engine's stream tells of much that a reset takes away."""
    router = Router(o, fleet, "round_robin", folder)
    try:
        past = argparse.Namespace(**{**vars(o), "secs": min(o.secs, 8.0), "concurrency": None, "rate": 3.0})
        Load(past, router.port).run()
    finally:
        router.stop()
    fleet.reset()


def simulated(o, folder):
    details = ["--prompt-tokens-details", "off"] if o.no_details else []
    return Fleet.simulated(o.warmroute, folder, o.engines, o.speed, o.kv_tokens, "--model", "m", *details)


def main():
    o = arguments()
    o.words, described, failed = WORDS, None, False
    if o.fleet:
        with open(o.fleet) as file:
            described = json.load(file)
        with open(described["words"]) as file:
            o.words = json.load(file)
    with tempfile.TemporaryDirectory() as folder:
        fleet = None
        try:
            for name in o.policies:
                if fleet is None and described:
                    fleet = Fleet.running(described)
                    make_history(o, fleet, folder)
                elif fleet is None or (o.history == "fresh" and not described):
                    if fleet:
                        fleet.stop()
                    fleet = simulated(o, folder)
                    if o.history == "reset":
                        make_history(o, fleet, folder)
                else:
                    fleet.reset()
                try:
                    measure(o, fleet, name, folder)
                except TimeoutError as error:
                    # The other policies are still worth their run.
                    failed = True
                    print(json.dumps({"policy": name, "traffic": o.name, "failed": str(error)}), flush=True)
        finally:
            if fleet:
                fleet.stop()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
