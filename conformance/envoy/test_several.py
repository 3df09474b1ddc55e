"""Several pools in one picker, several pickers at once, and their rolling update."""

import copy
import json
import os
import pathlib
import re
import threading
import time

import httpx
import pytest
import yaml

from test_choice import CHATS, chat
from test_failures import EVENTS, read_events, write_workers
from world import HERE, TIMEOUT_S, Envoy, Picker, eventually, observer, set_endpoints


class Port:
    """A listener of a picker, as Envoy's configuration needs it."""

    def __init__(self, port):
        self.port = port


def test_pools_of_one_model_have_ports_of_their_own(world, tmp_path):
    engines = world.engines(4)
    config = tmp_path / "picker.toml"
    pools = ["llama", "llama", "qwen", "qwen"]
    tables = [f'[[workers]]\nurl = "http://{engine.address}"\npool = "{pool}"\n' for engine, pool in zip(engines, pools)]
    config.write_text("\n".join(tables))
    picker = world.keep(Picker([], "--config", str(config), "--picker-pools", "llama=0,qwen=0"))
    ports = {engine.port for engine in engines}
    for pool, members in {"llama": engines[:2], "qwen": engines[2:]}.items():
        # The proxy knows all engines: only the picker keeps the request in its pool.
        envoy = world.keep(Envoy(engines, Port(picker.pools[pool])))
        eventually("the picker is healthy", envoy.picker_is_healthy)
        client = world.client(envoy)
        chosen = {client.post(CHATS, json=chat(f"{pool} {n}")).json()["engine"] for n in range(8)}
        assert chosen == {engine.port for engine in members}
    envoy = world.keep(Envoy(engines, picker))
    eventually("the picker is healthy", envoy.picker_is_healthy)
    client = world.client(envoy)
    assert {client.post(CHATS, json=chat(f"any {n}")).json()["engine"] for n in range(24)} == ports


@pytest.fixture
def secret(tmp_path):
    file = tmp_path / "secret"
    file.write_text("a secret that only these pickers know\n")
    file.chmod(0o600)
    return file


def meshed(world, engines, secret, others, *flags):
    """A picker that shares state with others."""
    seeds = [json.loads(other.get("/peers"))["transport"]["listening"] for other in others]
    mesh = ["--share", "mesh", "--share-secret-file", str(secret), "--mesh-listen", "127.0.0.1:0"]
    return world.keep(Picker(engines, *mesh, *(["--mesh-peers", *seeds] if seeds else []), *flags))


def knows(picker, count):
    return lambda: len(json.loads(picker.get("/peers"))["peers"]) == count


def test_an_observed_response_reaches_the_picker_that_chose(world, secret):
    engines = world.engines()
    first = meshed(world, engines, secret, [], "--picker-feedback", "observer")
    second = meshed(world, engines, secret, [first], "--picker-feedback", "observer")
    pickers = [first, second]
    for picker in pickers:
        eventually("they know each other", knows(picker, 1))

    def change(parts):
        observer(parts)
        set_endpoints(parts["picker"], [picker.port for picker in pickers])

    envoy = world.keep(Envoy(engines, first, change))
    eventually("both are healthy", lambda: envoy.counter("cluster.picker.membership_healthy") == 2)
    client = world.client(envoy)
    for n in range(20):
        with client.stream("POST", CHATS, json=chat(f"{n}", events=EVENTS)) as response:
            assert len(list(read_events(response))) == EVENTS + 2
    count = lambda outcome: sum(picker.requests(outcome) for picker in pickers)
    eventually("all responses are counted", lambda: count("ok") == 20)
    assert count("unobserved") == 0
    assert sum(picker.metric("warmroute_time_to_first_token_seconds_count") for picker in pickers) == 20
    # Envoy gives streams in turn: one picker chose, the other saw the response.
    # A response that one picker sees ends the load at both.
    eventually("nothing is in flight", lambda: all(picker.in_flight() == 0 for picker in pickers))


class Endpoints:
    """The pickers behind a Service, in a file that Envoy follows as it follows a control plane."""

    def __init__(self, folder, pickers):
        self.file = pathlib.Path(folder, "endpoints.json")
        self.set(pickers)

    def set(self, pickers):
        address = lambda port: {"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}}}
        endpoints = [{"lb_endpoints": [address(picker.port) for picker in pickers]}]
        resource = {"@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment", "cluster_name": "picker",
                    "endpoints": endpoints}
        written = self.file.with_suffix(".new")
        written.write_text(json.dumps({"version_info": str(time.monotonic()), "resources": [resource]}))
        os.replace(written, self.file)

    def follow(self, parts):
        cluster = parts["picker"]
        del cluster["load_assignment"]
        source = {"resource_api_version": "V3", "path_config_source": {"path": str(self.file)}}
        # A host that is gone from the list gets no more streams, however healthy it is.
        cluster.update(type="EDS", eds_cluster_config={"eds_config": source}, ignore_health_on_host_removal=True)


class Traffic:
    """Clients that send streams and documents, and note every failure."""

    def __init__(self, envoy, clients=6):
        self.asked, self.failed, self.is_over = 0, [], False
        self.threads = [threading.Thread(target=self.run, args=(envoy.url, n)) for n in range(clients)]
        for thread in self.threads:
            thread.start()

    def run(self, url, number):
        with httpx.Client(base_url=url, timeout=TIMEOUT_S) as client:
            while not self.is_over:
                try:
                    body = chat(f"{number} {self.asked}", events=EVENTS) if number % 2 else chat(f"{number} {self.asked}")
                    answer = client.post(CHATS, json=body)
                    if answer.status_code != 200 or (number % 2 and "[DONE]" not in answer.text):
                        self.failed.append(f"{answer.status_code} {answer.text[:200]}")
                except httpx.HTTPError as error:
                    self.failed.append(repr(error))
                self.asked += 1

    def wait_for_more(self, requests):
        before = self.asked
        eventually("clients go on", lambda: self.asked >= before + requests)

    def stop(self):
        self.is_over = True
        for thread in self.threads:
            thread.join()
        return self.asked, self.failed


def test_a_rolling_update_of_the_pickers_fails_no_request(world, secret, tmp_path):
    engines = world.engines()
    pickers = [meshed(world, engines, secret, [])]
    pickers.append(meshed(world, engines, secret, pickers))
    endpoints = Endpoints(tmp_path, pickers)

    def change(parts):
        endpoints.follow(parts)
        # Fail closed: a request that no picker answers fails, and is counted.
        parts["ext_proc"]["failure_mode_allow"] = False

    envoy = world.keep(Envoy(engines, pickers[0], change))
    healthy = lambda count: lambda: envoy.counter("cluster.picker.membership_healthy") == count
    eventually("both are healthy", healthy(2))
    traffic = Traffic(envoy)
    for _ in range(3):
        traffic.wait_for_more(30)
        pickers.append(meshed(world, engines, secret, pickers[-1:]))
        eventually("the readiness probe succeeds", pickers[-1].is_ready)
        endpoints.set(pickers)
        eventually("Envoy has found the new one", healthy(3))
        old = pickers.pop(0)
        endpoints.set(pickers)
        eventually("Envoy has left the old one", healthy(2))
        # preStop: streams that Envoy opened before still arrive.
        traffic.wait_for_more(30)
        old.terminate()
    traffic.wait_for_more(30)
    asked, failed = traffic.stop()
    print(f"{asked} requests, 3 pickers replaced, {len(failed)} failed")
    assert not failed, f"{len(failed)} of {asked} failed: {failed[:5]}"


def test_a_picker_that_is_killed_under_load_cuts_no_stream_and_the_other_takes_over(world, secret):
    engines = world.engines()
    pickers = [meshed(world, engines, secret, [])]
    pickers.append(meshed(world, engines, secret, pickers))
    change = lambda parts: set_endpoints(parts["picker"], [picker.port for picker in pickers])
    envoy = world.keep(Envoy(engines, pickers[0], change))
    healthy = lambda count: lambda: envoy.counter("cluster.picker.membership_healthy") == count
    eventually("both are healthy", healthy(2))
    traffic = Traffic(envoy)
    traffic.wait_for_more(30)
    pickers[0].kill()
    eventually("Envoy notices", healthy(1))
    asked, failed = traffic.stop()
    # Requests fail whose body Envoy had sent to the dead picker, until it notices; a response that has begun goes on.
    print(f"{asked} requests, a picker killed, {len(failed)} failed")
    assert all(failure.startswith("5") for failure in failed), failed
    assert len(failed) < asked / 2
    traffic = Traffic(envoy)
    traffic.wait_for_more(60)
    assert traffic.stop()[1] == []


def test_scaling_to_zero_and_back_under_load_fails_no_request(world, tmp_path):
    engines, file = world.engines(1), tmp_path / "workers.toml"
    write_workers(file, engines)
    picker, envoy = world.start(engines, "--worker-file", str(file), "--wake-timeout-secs", "60", workers=[])
    traffic = Traffic(envoy)
    for _ in range(2):
        traffic.wait_for_more(30)
        write_workers(file, [])
        eventually("all clients wait", lambda: picker.metric("warmroute_requests_awaiting_worker") == len(traffic.threads))
        write_workers(file, engines)
    traffic.wait_for_more(30)
    asked, failed = traffic.stop()
    print(f"{asked} requests, twice without a worker, {len(failed)} failed")
    assert not failed, f"{len(failed)} of {asked} failed: {failed[:5]}"


def istio_entry():
    """The route's entry for ext_proc in the EnvoyFilter of docs/kubernetes.md."""
    text = (HERE / "../../docs/kubernetes.md").read_text()
    blocks = [yaml.safe_load_all(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]
    (found,) = [document for block in blocks for document in block if document.get("kind") == "EnvoyFilter"]
    return found["spec"]["configPatches"][0]["patch"]["value"]["typed_per_filter_config"]


@pytest.mark.parametrize("stream", [False, True])
def test_istios_names_work_with_the_documented_envoyfilter(world, stream):
    entry = istio_entry()
    overrides = entry["envoy.filters.http.ext_proc"]["overrides"]
    name = overrides["grpc_service"]["envoy_grpc"]["cluster_name"]
    # Istio's own entry is the same without the authority. A proxy that fails open would hide the difference.
    overrides["failure_mode_allow"] = False
    plain = copy.deepcopy(entry)
    del plain["envoy.filters.http.ext_proc"]["overrides"]["grpc_service"]["envoy_grpc"]["authority"]
    engines = world.engines()
    for per_route, status in [(plain, 500), (entry, 200)]:
        def change(parts):
            parts["picker"].update(name=name)
            parts["picker"]["load_assignment"].update(cluster_name=name)
            parts["picker"].pop("health_checks")
            parts["ext_proc"]["grpc_service"]["envoy_grpc"].update(cluster_name=name)
            (route,) = parts["manager"]["route_config"]["virtual_hosts"][0]["routes"]
            route["typed_per_filter_config"] = per_route

        picker = world.keep(Picker(engines))
        envoy = world.keep(Envoy(engines, picker, change))
        answer = world.client(envoy).post(CHATS, json=chat("x", events=3) if stream else chat("x"))
        assert answer.status_code == status, answer.text
        assert picker.metric("warmroute_decisions_total") == (status == 200)


def test_a_cluster_whose_name_is_no_host_name_needs_an_authority(world):
    name = "outbound|9002||picker.default.svc.cluster.local"
    engines = world.engines()
    for authority, status in [(None, 500), ("picker.default.svc:9002", 200)]:
        def change(parts):
            parts["picker"].update(name=name)
            parts["picker"]["load_assignment"].update(cluster_name=name)
            parts["picker"].pop("health_checks")
            parts["ext_proc"].update(failure_mode_allow=False)
            parts["ext_proc"]["grpc_service"]["envoy_grpc"].update(cluster_name=name)
            if authority:
                parts["ext_proc"]["grpc_service"]["envoy_grpc"].update(authority=authority)

        picker = world.keep(Picker(engines))
        envoy = world.keep(Envoy(engines, picker, change))
        assert world.client(envoy).post(CHATS, json=chat("x")).status_code == status
