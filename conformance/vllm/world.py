"""Processes and requests: real engines, a real gateway, and a client that needs nothing but Python."""

import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import threading
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
REPORTER = HERE.parent.parent / "crates/edge/events/reporter/warmroute_reporter.py"


def free_ports(n):
    sockets = [socket.socket() for _ in range(n)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def get(url):
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read().decode()


def until(what, condition, seconds):
    """Waits for a condition; says how long it took."""
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        try:
            if condition():
                return time.monotonic() - began
        except OSError:
            pass
        time.sleep(0.05)
    raise SystemExit(f"not within {seconds} s: {what}")


class Process:
    def __init__(self, command, log, **options):
        self.log = open(log, "ab")
        self.process = subprocess.Popen(command, stderr=self.log, start_new_session=True, **options)

    process = None

    def kill(self, how=signal.SIGKILL):
        if self.process and self.process.poll() is None:
            os.killpg(self.process.pid, how)
            self.process.wait()


class Meter:
    """Stands between a reporter and its gateway and counts what passes, heads included. One connection at a time: so a reporter posts."""

    def __init__(self, to):
        self.bytes = self.posts = 0
        self.to = to.removeprefix("http://").split(":")
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            client, _ = self.listener.accept()
            with client, socket.create_connection(self.to) as gateway:
                self.posts += 1
                back = threading.Thread(target=self.pump, args=(gateway, client))
                back.start()
                self.pump(client, gateway)
                back.join()

    def pump(self, source, sink):
        try:
            while piece := source.recv(65536):
                self.bytes += len(piece)
                sink.sendall(piece)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass


class Engine(Process):
    """A vLLM on ports of its own; it comes back on the same ones."""

    def __init__(self, args, logs, name, blocks, *flags):
        self.args, self.logs, self.name, self.blocks, self.flags = args, logs, name, blocks, flags
        self.ports = free_ports(3)
        self.url = f"http://127.0.0.1:{self.ports[0]}"
        self.topic = f"kv@127.0.0.1:{self.ports[0]}@tiny"

    def start(self, reporter=None, program=REPORTER):
        ports = [str(port) for port in self.ports]
        command = [str(HERE / "serve"), self.args.venv, self.args.model, *ports, str(self.blocks), *self.flags]
        if reporter:
            command = ["python3", str(program), "--worker", self.url, *reporter, "--", *command]
        # vLLM writes its own log to stdout: without it nobody knows why an engine stopped.
        log = self.logs / f"{self.name}.log"
        with open(log, "ab") as stdout:
            super().__init__(command, log, stdout=stdout)

    def ready(self, seconds=900):
        return until(f"{self.name} is healthy", lambda: get(f"{self.url}/health") == "", seconds)


class Gateway(Process):
    def __init__(self, binary, logs, name, *flags):
        command = [binary, "serve", "--port", "0", "--admin-port", "0", "--host", "127.0.0.1", "--decision-headers", *flags]
        super().__init__(command, logs / f"{name}.log", stdout=subprocess.PIPE)
        announced = json.loads(self.process.stdout.readline())
        self.url, self.admin = announced["listening"], announced["admin"]

    def workers(self):
        return {worker["url"]: worker for worker in json.loads(get(f"{self.admin}/workers"))["workers"]}

    def metric(self, name):
        rows = [line for line in get(f"{self.admin}/metrics").splitlines() if line.split("{")[0].split(" ")[0] == name]
        return sum(float(row.rsplit(" ", 1)[1]) for row in rows)

    def settle(self, quiet=0.8):
        """Until no more events come for so many seconds: the engines have reported all."""
        def batches():
            return [(worker["events"] or {}).get("stream") for worker in self.workers().values()]
        last, since = batches(), time.monotonic()
        while time.monotonic() - since < quiet:
            time.sleep(0.1)
            now = batches()
            if [one and one["next"] for one in now] != [one and one["next"] for one in last]:
                last, since = now, time.monotonic()


class Answer:
    """What became of one chat request."""

    def __init__(self, gateway, messages, max_tokens=24, **more):
        host = gateway.url.removeprefix("http://")
        connection = http.client.HTTPConnection(host, timeout=120)
        body = {"model": "tiny", "messages": messages, "max_tokens": max_tokens, "temperature": 1.0, **more}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
        response = connection.getresponse()
        self.status, self.headers, raw = response.status, response.headers, response.read()
        connection.close()
        if self.status != 200:
            raise SystemExit(f"{self.status}: {raw.decode()[:500]}")
        self.json = json.loads(raw)
        usage = self.json["usage"]
        self.prompt_tokens = usage["prompt_tokens"]
        self.cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        predicted = self.headers["x-warmroute-cached-tokens"]
        self.predicted = int(predicted) if predicted.isdigit() else None
        self.worker = self.headers["x-warmroute-worker"]
        self.text = self.json["choices"][0]["message"]["content"] or ""
