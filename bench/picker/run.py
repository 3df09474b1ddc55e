#!/usr/bin/env python3
"""What a choice costs: processor time of the picker and of Envoy per request, and the latency that the choice adds.

    cargo build --release
    conformance/envoy/run --collect-only >/dev/null      # installs Envoy
    conformance/.envoy/bin/python bench/picker/run.py [--binary target/release/warmroute] [--seconds 5] [--rate 500]

One simulated engine that takes next to no time stands behind Envoy. Every setup gets the same requests from the same client: first as
fast as eight connections allow, for processor time, then at a fixed rate, for latency. Setups take turns, so that what else happens on the
machine hits all alike. Latencies are given less those of Envoy alone. Linux only: processor time comes from /proc, in steps of 10 ms.
"""

import argparse
import asyncio
import contextlib
import json
import os
import pathlib
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "conformance/envoy"))

CONNECTIONS, IDLE_WORKERS = 8, 100
CASES = {"tiny": 40, "8k": 8_000, "100k": 100_000}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default=str(ROOT / "target/release/warmroute"))
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rate", type=float, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


ARGS = arguments()
os.environ["PICKER_BINARY"] = ARGS.binary
import world  # noqa: E402  (reads the binary's name)


class FastEngine(world.Process):
    """`warmroute engine` on every loopback address."""

    def __init__(self):
        import subprocess
        command = [ARGS.binary, "engine", "--host", "0.0.0.0", "--port", "0", "--speed", "10000", "--model", "m"]
        super().__init__(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.port = int(json.loads(self.child.stdout.readline())["listening"].rsplit(":", 1)[1])
        self.address = f"127.0.0.1:{self.port}"


def alone(parts):
    del parts["filters"][0]


SETUPS = {
    "envoy alone": (alone, []),
    "duplex": (lambda parts: None, []),
    "buffered": (world.body_mode("BUFFERED"), []),
    "duplex, observer": (world.observer, ["--picker-feedback", "observer"]),
    "duplex, stream": (world.body_mode("FULL_DUPLEX_STREAMED", "FULL_DUPLEX_STREAMED"), ["--picker-feedback", "stream"]),
}


def request(size, number):
    text = f"{number} " + "word " * (size // 5)
    body = json.dumps({"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": text}]}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Connection:
    def __init__(self, port):
        self.port, self.ends = port, None

    async def ask(self, bytes_):
        """Sends a request and reads its answer; returns the seconds that took."""
        if self.ends is None:
            self.ends = await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = self.ends
        began = time.perf_counter()
        writer.write(bytes_)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        return time.perf_counter() - began


async def flood(port, requests, seconds):
    """Requests answered in this time by busy connections."""
    end, count = time.monotonic() + seconds, 0

    async def one(connection):
        nonlocal count
        while time.monotonic() < end:
            await connection.ask(requests[count % len(requests)])
            count += 1

    await asyncio.gather(*[one(Connection(port)) for _ in range(CONNECTIONS)])
    return count


async def pace(port, requests, seconds, rate):
    """Latencies at a fixed rate. A request is sent at its time, whatever became of the one before."""
    idle, latencies, tasks = [], [], []

    async def one(bytes_):
        connection = idle.pop() if idle else Connection(port)
        latencies.append(await connection.ask(bytes_))
        idle.append(connection)

    began = time.monotonic()
    for number in range(int(seconds * rate)):
        await asyncio.sleep(began + number / rate - time.monotonic())
        tasks.append(asyncio.create_task(one(requests[number % len(requests)])))
    await asyncio.gather(*tasks)
    return latencies


def quantile(values, q):
    return sorted(values)[min(int(len(values) * q), len(values) - 1)]


def measure(stack):
    engine = FastEngine()
    stack.callback(engine.kill)
    running = {}
    for name, (change, flags) in SETUPS.items():
        picker = world.Picker([engine], *flags)
        stack.callback(picker.kill)
        envoy = world.Envoy([engine], picker, change)
        stack.callback(envoy.kill)
        world.eventually("the picker is healthy", envoy.picker_is_healthy)
        running[name] = (picker, envoy)
    costs, latencies = {}, {}
    for _ in range(ARGS.rounds):
        for case, size in CASES.items():
            requests = [request(size, number) for number in range(32)]
            for name, (picker, envoy) in running.items():
                before = picker.cpu_s(), envoy.cpu_s()
                count = asyncio.run(flood(envoy.port, requests, ARGS.seconds))
                after = picker.cpu_s(), envoy.cpu_s()
                spent = [(b - a) / count * 1e6 for a, b in zip(before, after)]
                costs.setdefault((case, name), []).append(spent)
            for name, (picker, envoy) in running.items():
                latencies.setdefault((case, name), []).extend(asyncio.run(pace(envoy.port, requests, ARGS.seconds, ARGS.rate)))
    return costs, latencies


def idle_cost(stack):
    """Cores that a picker uses for workers that get no requests."""
    engine = FastEngine()
    stack.callback(engine.kill)

    class At:
        def __init__(self, number):
            self.address = f"127.0.0.{number}:{engine.port}"

    picker = world.Picker([At(number) for number in range(1, IDLE_WORKERS + 1)])
    stack.callback(picker.kill)
    world.eventually("all are ready", lambda: all(worker["state"] == "ready" for worker in picker.workers()))
    time.sleep(2)
    before, seconds = picker.cpu_s(), max(ARGS.seconds, 10)
    time.sleep(seconds)
    return (picker.cpu_s() - before) / seconds


def main():
    with contextlib.ExitStack() as stack:
        costs, latencies = measure(stack)
    print(f"{'case':6}  {'setup':18}  {'picker µs':>9}  {'Envoy µs':>8}  {'p50 ms':>7}  {'p99 ms':>7}  {'+p50 ms':>8}  {'+p99 ms':>8}")
    for case in CASES:
        base = [quantile(latencies[case, "envoy alone"], q) * 1e3 for q in (0.5, 0.99)]
        for name in SETUPS:
            picker_us, envoy_us = (statistics.median(column) for column in zip(*costs[case, name]))
            p50, p99 = (quantile(latencies[case, name], q) * 1e3 for q in (0.5, 0.99))
            added = "" if name == "envoy alone" else f"  {p50 - base[0]:+8.2f}  {p99 - base[1]:+8.2f}"
            shown = "-" if name == "envoy alone" else f"{picker_us:.0f}"
            print(f"{case:6}  {name:18}  {shown:>9}  {envoy_us:8.0f}  {p50:7.2f}  {p99:7.2f}{added}")
    with contextlib.ExitStack() as stack:
        print(f"{IDLE_WORKERS} idle workers: {idle_cost(stack):.3f} cores")


if __name__ == "__main__":
    main()
