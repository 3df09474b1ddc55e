#!/usr/bin/env python3
"""What a choice costs: processor time of the picker and of Envoy per request, and the latency that the choice adds.

    cargo build --release
    conformance/envoy/run --collect-only >/dev/null      # installs Envoy
    conformance/.envoy/bin/python bench/picker/run.py [--binary target/release/warmroute] [--seconds 5] [--rate 500]
                                                         [--workers 1] [--prompts 32]

A simulated engine that takes next to no time stands behind Envoy, and behind `warmroute serve` as the proxy. With --workers N it is N workers,
at as many loopback addresses. Every setup gets the same requests from the same client, over HTTP/1.1, with a few prompts that repeat: first as
fast as eight connections allow, for processor time, then at a fixed rate, for latency. Setups take turns, so that what else happens on the
machine hits all alike. Latencies are compared with those of Envoy alone in the same round. Linux only: processor time comes from /proc, in
steps of 10 ms.

With --ahead the processes run before all others of the machine (SCHED_RR, needs root) while latencies are measured: other work then does
not wait in them. The picker, Envoy, the engine and this client still share the cores.
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
BASE, DIRECT = "envoy alone", "gateway"
SETUPS = [BASE, DIRECT, "duplex", "buffered", "duplex, observer", "duplex, stream"]
CASES = {"tiny": 40, "8k": 8_000, "100k": 100_000}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default=str(ROOT / "target/release/warmroute"))
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rate", type=float, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1, help="workers to choose from, at most 254")
    parser.add_argument("--prompts", type=int, default=32, help="different prompts of a case, which repeat")
    parser.add_argument("--ahead", action="store_true", help="measure latencies ahead of other work on the machine")
    parser.add_argument("--setups", nargs="+", choices=list(SETUPS), default=list(SETUPS))
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


class Worker:
    """The engine at one of its addresses."""

    def __init__(self, engine, number):
        self.host, self.port = f"127.0.0.{number}", engine.port
        self.address = f"{self.host}:{self.port}"


def workers_of(engine, count):
    return [Worker(engine, number) for number in range(1, count + 1)]


def with_hosts(change, workers):
    """Envoy's endpoints at the workers' addresses."""
    def changed(parts):
        endpoints = parts["engines"]["load_assignment"]["endpoints"][0]["lb_endpoints"]
        for endpoint, worker in zip(endpoints, workers):
            endpoint["endpoint"]["address"]["socket_address"]["address"] = worker.host
        change(parts)
    return changed


def alone(parts):
    del parts["filters"][0]


FILTERS = {
    BASE: (alone, []),
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


class Setup:
    """The processes of a setup. The gateway is a setup without Envoy."""

    def __init__(self, stack, name, engine):
        change, flags = FILTERS.get(name, (None, []))
        workers = workers_of(engine, ARGS.workers)
        self.warmroute = world.Picker(workers, *flags)
        stack.callback(self.warmroute.kill)
        self.envoy = None
        self.port = self.warmroute.gateway
        if name != DIRECT:
            self.envoy = world.Envoy(workers, self.warmroute, with_hosts(change, workers))
            stack.callback(self.envoy.kill)
            world.eventually("the picker is healthy", self.envoy.picker_is_healthy)
            self.port = self.envoy.port
        world.eventually("all are ready", lambda: all(worker["state"] == "ready" for worker in self.warmroute.workers()))

    def processes(self):
        return [process for process in (self.warmroute, self.envoy) if process]

    def cpu_s(self):
        return [process.cpu_s() if process else 0 for process in (self.warmroute, self.envoy)]


@contextlib.contextmanager
def ahead_of_others(processes):
    """Lets this program and these processes run before all others, if that was asked for."""
    pids = [os.getpid(), *[process.child.pid for process in processes]] if ARGS.ahead else []
    threads = [int(thread) for pid in pids for thread in os.listdir(f"/proc/{pid}/task")]

    def schedule(policy, priority):
        for thread in threads:
            with contextlib.suppress(ProcessLookupError):
                os.sched_setscheduler(thread, policy, os.sched_param(priority))

    schedule(os.SCHED_RR, 1)
    try:
        yield
    finally:
        schedule(os.SCHED_OTHER, 0)


def measure(stack):
    """Seconds of processor time per request and latencies, by case and setup, a list of rounds each."""
    engine = FastEngine()
    stack.callback(engine.kill)
    running = {name: Setup(stack, name, engine) for name in ARGS.setups}
    costs, latencies = {}, {}
    for _ in range(ARGS.rounds):
        for case, size in CASES.items():
            requests = [request(size, number) for number in range(ARGS.prompts)]
            for name, setup in running.items():
                before = setup.cpu_s()
                count = asyncio.run(flood(setup.port, requests, ARGS.seconds))
                spent = [(b - a) / count for a, b in zip(before, setup.cpu_s())]
                costs.setdefault((case, name), []).append(spent)
            for name, setup in running.items():
                with ahead_of_others([engine, *setup.processes()]):
                    paced = asyncio.run(pace(setup.port, requests, ARGS.seconds, ARGS.rate))
                latencies.setdefault((case, name), []).append(paced)
    return costs, latencies


def spread(values):
    """The middle, the least and the largest."""
    return f"{statistics.median(values):+6.2f} ({min(values):+.2f} to {max(values):+.2f})"


def line(case, name, costs, latencies):
    warmroute_us, envoy_us = (statistics.median(column) * 1e6 for column in zip(*costs[case, name]))
    rounds = [[quantile(values, q) * 1e3 for q in (0.5, 0.99)] for values in latencies[case, name]]
    p50, p99 = (statistics.median(column) for column in zip(*rounds))
    shown = [f"{case:6}  {name:16}", "        -" if name == BASE else f"{warmroute_us:9.0f}",
             "       -" if name == DIRECT else f"{envoy_us:8.0f}", f"{p50:6.2f}  {p99:6.2f}"]
    if name != BASE and BASE in ARGS.setups:
        base = [[quantile(values, q) * 1e3 for q in (0.5, 0.99)] for values in latencies[case, BASE]]
        for at in (0, 1):
            shown.append(f"{spread([ours[at] - alone[at] for ours, alone in zip(rounds, base)]):24}")
    return "  ".join(shown).rstrip()


def idle_cost(stack):
    """Cores that a picker uses for workers that get no requests."""
    engine = FastEngine()
    stack.callback(engine.kill)
    picker = world.Picker(workers_of(engine, IDLE_WORKERS))
    stack.callback(picker.kill)
    world.eventually("all are ready", lambda: all(worker["state"] == "ready" for worker in picker.workers()))
    time.sleep(2)
    before, seconds = picker.cpu_s(), max(ARGS.seconds, 10)
    time.sleep(seconds)
    return (picker.cpu_s() - before) / seconds


def main():
    with contextlib.ExitStack() as stack:
        costs, latencies = measure(stack)
    print(f"{ARGS.workers} workers, {ARGS.prompts} prompts of each case, {'ahead of' if ARGS.ahead else 'beside'} other work")
    added = f"{'+p50 ms (least to most)':24}  {'+p99 ms (least to most)':24}"
    print(f"{'case':6}  {'setup':16}  {'warmr. µs':>9}  {'Envoy µs':>8}  {'p50 ms':>6}  {'p99 ms':>6}  {added}")
    for case in CASES:
        for name in ARGS.setups:
            print(line(case, name, costs, latencies))
    with contextlib.ExitStack() as stack:
        print(f"{IDLE_WORKERS} idle workers: {idle_cost(stack):.3f} cores")


if __name__ == "__main__":
    main()
