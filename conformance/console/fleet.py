"""Processes for a console to look at: simulated engines, gateways in front of them, and traffic."""

import http.client
import json
import socket
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

MODEL = "llama-3.1-8b"
WAIT_S = 60


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def get(url, token=None):
    request = urllib.request.Request(url, headers={"authorization": f"Bearer {token}"} if token else {})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.read().decode()


def await_that(what, is_so, wait_s=WAIT_S):
    deadline = time.monotonic() + wait_s
    while True:
        try:
            if is_so():
                return
        except (OSError, urllib.error.URLError):
            pass
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {wait_s} s: {what}")
        time.sleep(0.1)


class Process:
    """A process of the binary, killed at the end. Its log is kept for a failure's report."""

    def __init__(self, binary, *arguments):
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([binary, *arguments], stdout=subprocess.PIPE, stderr=self.log, text=True)

    def announced(self):
        line = self.process.stdout.readline()
        if not line:
            self.log.seek(0)
            raise AssertionError(f"the process ended: {self.log.read()[-2000:]}")
        return json.loads(line)

    def stop(self, kill=False):
        if self.process.poll() is None:
            self.process.kill() if kill else self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class Engines:
    """Simulated engines: each URL has `ranks` data-parallel ranks."""

    def __init__(self, binary, count=1, ranks=1, speed=1.0, kv_tokens=None):
        sized = ["--kv-tokens", str(kv_tokens)] if kv_tokens else []
        options = ["--port", "0", "--ranks", str(ranks), "--speed", str(speed), *sized]
        self.processes = [Process(binary, "engine", *options) for _ in range(count)]
        self.urls = [process.announced()["listening"] for process in self.processes]

    def stop(self):
        for process in self.processes:
            process.stop(kill=True)


class Gateway:
    """`warmroute serve` on ports that a restart keeps."""

    def __init__(self, binary, urls, *options, workers=None):
        self.binary, self.options = binary, ["--worker-urls", ",".join(urls), *options]
        self.port, self.admin_port = free_port(), free_port()
        self.workers = workers or len(urls)
        self.start()

    @property
    def ui(self):
        return f"http://127.0.0.1:{self.admin_port}/ui"

    def start(self):
        ports = ["--host", "127.0.0.1", "--port", str(self.port), "--admin-port", str(self.admin_port)]
        self.process = Process(self.binary, "serve", *ports, *self.options)
        await_that("the gateway is ready", lambda: get(f"http://127.0.0.1:{self.admin_port}/readyz"))

    def stop(self, kill=False):
        self.process.stop(kill)

    @property
    def pid(self):
        return self.process.process.pid


class Traffic:
    """Conversations that share system prompts, from threads, until it is stopped."""

    def __init__(self, gateway, clients=6, prompts=12, pause_s=0.15):
        self.gateway, self.prompts, self.pause_s = gateway, prompts, pause_s
        self.is_over = threading.Event()
        self.answered = 0
        self.threads = [threading.Thread(target=self.converse, args=(n,), daemon=True) for n in range(clients)]
        for thread in self.threads:
            thread.start()

    def converse(self, client):
        turn = 0
        while not self.is_over.wait(self.pause_s):
            turn += 1
            try:
                self.ask(client, turn)
            except (OSError, http.client.HTTPException):
                pass

    def ask(self, client, turn):
        kind = (client * 7 + turn) % self.prompts
        system = f"You are assistant number {kind}. " * (40 + 90 * (kind % 5))
        messages = [{"role": "system", "content": system}]
        for past in range(turn % 4):
            messages.append({"role": "user", "content": f"Question {client} {turn // 4} {past}? " * 20})
            messages.append({"role": "assistant", "content": "An answer. " * 30})
        messages.append({"role": "user", "content": f"Question {client} {turn}?"})
        body = {"model": MODEL, "messages": messages, "max_tokens": 24, "stream": True}
        connection = http.client.HTTPConnection("127.0.0.1", self.gateway.port, timeout=20)
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            self.answered += answer.status == 200
        finally:
            connection.close()

    def stop(self):
        self.is_over.set()
        for thread in self.threads:
            thread.join()
