"""Engines, a picker and an Envoy as processes. The configuration is deploy/envoy/picker.yaml with other ports."""

import copy
import http.client
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import yaml

HERE = pathlib.Path(__file__).parent
DEPLOY = HERE / "../../deploy/envoy"
BINARY = os.environ.get("PICKER_BINARY", "target/release/warmroute")
TIMEOUT_S = 30


def eventually(what, happened):
    end = time.monotonic() + TIMEOUT_S
    while True:
        if result := happened():
            return result
        assert time.monotonic() < end, f"it never happened: {what}"
        time.sleep(0.01)


def ask(port, path):
    """The status and the body of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def get(port, path):
    return ask(port, path)[1]


class Process:
    def __init__(self, command, **options):
        self.child = subprocess.Popen(command, text=True, **options)

    def kill(self):
        self.child.kill()
        self.child.wait()

    def cpu_s(self):
        """Seconds of processor time so far."""
        with open(f"/proc/{self.child.pid}/stat", encoding="ascii") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Engine(Process):
    def __init__(self):
        super().__init__([sys.executable, HERE / "engine.py"], stdout=subprocess.PIPE)
        self.port = int(self.child.stdout.readline())

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def open_streams(self):
        return json.loads(get(self.port, "/open"))["open"]


class Picker(Process):
    def __init__(self, engines, *flags, port=0):
        urls = [f"http://{engine.address}" for engine in engines]
        command = [BINARY, "serve", "--host", "127.0.0.1", "--port", "0", "--admin-port", "0", "--picker-host", "127.0.0.1"]
        command += ["--picker-port", str(port), *flags]
        command += ["--worker-urls", *urls] if urls else []
        super().__init__(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        said = json.loads(self.child.stdout.readline())
        self.port = int(said["picker"].rsplit(":", 1)[1])
        self.gateway = int(said["listening"].rsplit(":", 1)[1])
        self.admin = int(said["admin"].rsplit(":", 1)[1])
        self.pools = {pool: int(address.rsplit(":", 1)[1]) for pool, address in said.get("pools", {}).items()}

    def get(self, path):
        return get(self.admin, path)

    def is_ready(self):
        return ask(self.admin, "/readyz")[0] == 200

    def workers(self):
        return json.loads(get(self.admin, "/workers"))["workers"]

    def in_flight(self):
        return sum(worker["in_flight"] for worker in self.workers())

    def metric(self, start):
        """The sum of the lines that start so."""
        lines = get(self.admin, "/metrics").splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(start))

    def requests(self, outcome):
        lines = get(self.admin, "/metrics").splitlines()
        wanted = [line for line in lines if line.startswith("warmroute_requests_total{") and f'outcome="{outcome}"' in line]
        return sum(float(line.rsplit(" ", 1)[1]) for line in wanted)

    def terminate(self):
        self.child.send_signal(signal.SIGTERM)
        assert self.child.wait(TIMEOUT_S) == 0


class Envoy(Process):
    """`change` gets the parts of the configuration, see `parts`."""

    def __init__(self, engines, picker, change=lambda parts: None):
        self.folder = tempfile.TemporaryDirectory()
        config = yaml.safe_load((DEPLOY / "picker.yaml").read_text())
        parts = self.parts(config)
        parts["listener"]["address"]["socket_address"].update(address="127.0.0.1", port_value=0)
        config["admin"]["address"]["socket_address"]["port_value"] = 0
        config["node"] = {"id": "envoy", "cluster": "tests"}
        set_endpoints(parts["picker"], [picker.port])
        set_endpoints(parts["engines"], [engine.port for engine in engines])
        change(parts)
        file, admin = pathlib.Path(self.folder.name, "envoy.yaml"), pathlib.Path(self.folder.name, "admin")
        file.write_text(yaml.safe_dump(config))
        self.log = open(pathlib.Path(self.folder.name, "log"), "w+", encoding="utf-8")
        binary = pathlib.Path(sys.prefix, "bin/envoy")
        command = [binary, "-c", file, "--use-dynamic-base-id", "--concurrency", os.environ.get("ENVOY_THREADS", "1"),
                   "--admin-address-path", admin, "--log-level", "warning", *os.environ.get("ENVOY_LOG", "").split()]
        super().__init__(command, stdout=self.log, stderr=self.log)
        eventually("Envoy starts", lambda: self.has_ended() or (admin.exists() and admin.read_text()))
        self.admin = int(admin.read_text().rsplit(":", 1)[1])
        eventually("Envoy is live", lambda: self.has_ended() or "LIVE" in self.safely("/ready"))
        listeners = json.loads(get(self.admin, "/listeners?format=json"))["listener_statuses"]
        self.port = listeners[0]["local_address"]["socket_address"]["port_value"]
        self.url = f"http://127.0.0.1:{self.port}"

    def has_ended(self):
        if self.child.poll() is not None:
            self.log.seek(0)
            raise AssertionError(f"Envoy ended: {self.log.read()}")
        return False

    def safely(self, path):
        try:
            return get(self.admin, path)
        except OSError:
            return ""

    @staticmethod
    def parts(config):
        resources = config["static_resources"]
        listener = resources["listeners"][0]
        manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
        clusters = {cluster["name"]: cluster for cluster in resources["clusters"]}
        return {"listener": listener, "manager": manager, "filters": manager["http_filters"],
                "ext_proc": manager["http_filters"][0]["typed_config"], **clusters}

    def counter(self, name):
        stats = json.loads(get(self.admin, f"/stats?format=json&filter={name}$"))["stats"]
        return sum(stat.get("value", 0) for stat in stats)

    def picker_is_healthy(self):
        return self.counter("cluster.picker.membership_healthy") > 0


def set_endpoints(cluster, ports):
    endpoints = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
    one = endpoints[0]
    endpoints[:] = [copy.deepcopy(one) for _ in ports]
    for endpoint, port in zip(endpoints, ports):
        endpoint["endpoint"]["address"]["socket_address"].update(address="127.0.0.1", port_value=port)


def body_mode(request, response="NONE"):
    """Changes how the filter sends bodies."""
    def change(parts):
        mode = parts["ext_proc"]["processing_mode"]
        mode["request_body_mode"] = request
        if response != "NONE":
            mode.update(response_header_mode="SEND", response_body_mode=response, response_trailer_mode="SEND")
        # Trailers are sent only to a filter that needs them: without a stream there is no answer.
        if request != "FULL_DUPLEX_STREAMED":
            mode["request_trailer_mode"] = "SKIP"
        if "FULL_DUPLEX_STREAMED" not in (request, response):
            mode["response_trailer_mode"] = "SKIP"
    return change


def observer(parts):
    """Adds the observing filter."""
    parts["filters"].insert(1, yaml.safe_load((DEPLOY / "observer.yaml").read_text()))
