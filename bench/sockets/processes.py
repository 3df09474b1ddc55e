"""Processes for measurements over real sockets: simulated engines, routers, and waiting for both.

Used by bench/sockets/run.py and conformance/lab/run. Python's standard library only.
"""
import json
import os
import re
import subprocess
import time
import urllib.request


class Process:
    """A running warmroute, on ports that it has chosen itself."""

    def __init__(self, *command, log=subprocess.DEVNULL):
        self.process = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, stderr=log)
        self.addresses = json.loads(self.process.stdout.readline())

    def stop(self):
        stop(self.process)


def stop(process):
    """Asks a process to end, and kills it after ten seconds."""
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


def post(url):
    urllib.request.urlopen(urllib.request.Request(url, data=b"", method="POST"), timeout=10).read()


def wait_until(what, is_so, seconds=30):
    until = time.time() + seconds
    while time.time() < until:
        try:
            if is_so():
                return
        except OSError:
            pass
        time.sleep(0.05)
    raise TimeoutError(what)


def wait_until_ready(router, views):
    """Waits until a router has all its workers ready, and knows their caches in one of these ways."""

    def workers():
        return json.loads(get(f"{router.addresses['admin']}/workers"))["workers"]

    try:
        wait_until(f"all workers are ready and {' or '.join(views)}",
                   lambda: all(worker["state"] == "ready" and worker["view"] in views for worker in workers()))
    except TimeoutError as error:
        states = [(worker["state"], worker["view"], worker.get("why")) for worker in workers()]
        raise TimeoutError(f"{error}: {states}") from None


class Fleet:
    """Engines, with KV events and replay."""

    def __init__(self, model_path, engines, workers):
        self.model_path, self.engines, self.workers = model_path, engines, workers

    @classmethod
    def simulated(cls, warmroute, folder, count, speed, kv_tokens, *flags):
        """New simulated engines. Further flags are those of `warmroute engine`."""
        model_path, endpoint = os.path.join(folder, "model"), "tcp://127.0.0.1:0"
        command = [warmroute, "engine", "--port", 0, "--speed", speed, "--kv-tokens", kv_tokens, "--events", endpoint,
                   "--replay", endpoint, "--write-model", model_path, *flags]
        engines = [Process(*command) for _ in range(count)]
        return cls(model_path, engines, [{"url": engine.addresses["listening"]} for engine in engines])

    @classmethod
    def running(cls, described):
        """Servers that run already, as fleet.json of bench/gpu/fleet.sh describes them."""
        local = "tcp://127.0.0.1"
        workers = [{"url": f"http://127.0.0.1:{port}", "events": f"{local}:{events}", "replay": f"{local}:{replay}"}
                   for port, events, replay in described["ports"]]
        return cls(described["model_path"], [], workers)

    @property
    def urls(self):
        return [worker["url"] for worker in self.workers]

    def reset(self):
        for url in self.urls:
            post(f"{url}/reset_prefix_cache")

    def counters(self):
        """Tokens found in the prefix caches, and tokens looked up, since the engines started."""
        pages = [get(f"{url}/metrics") for url in self.urls]
        values = lambda name, page: re.findall(rf"^vllm:prefix_cache_{name}_total\S* (\S+)$", page, re.M)
        total = lambda name: sum(float(value) for page in pages for value in values(name, page))
        return total("hits"), total("queries")

    def stop(self):
        for engine in self.engines:
            engine.stop()
