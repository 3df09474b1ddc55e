"""Envoy follows the choice, in every body mode, and nothing is lost on the way."""

import hashlib
import json
import socket

import pytest

from world import body_mode, eventually, observer

CHATS = "/v1/chat/completions"
MODES = ["FULL_DUPLEX_STREAMED", "BUFFERED", "STREAMED", "NONE"]


def chat(prompt, **more):
    return {"model": "m", "max_tokens": 1, **more, "messages": [{"role": "user", "content": prompt}]}


def spurious(envoy):
    names = ["spurious_msgs_received", "streams_failed", "failure_mode_allowed", "message_timeouts"]
    return {name: envoy.counter(f"ext_proc.{name}") for name in names}


@pytest.mark.parametrize("mode", MODES)
def test_the_choice_is_followed_and_the_body_arrives_unchanged(world, mode):
    engines = world.engines()
    picker, envoy = world.start(engines, "--policy", "expected_ttft", change=body_mode(mode))
    for http2 in [False, True]:
        client = world.client(envoy, http2)
        for size in [10, 100_000, 1_000_000]:
            body = json.dumps(chat("x" * size)).encode()
            answer = client.post(CHATS, content=body, headers={"content-type": "application/json"}).json()
            assert answer["sha256"] == hashlib.sha256(body).hexdigest()
            assert answer["headers"]["x-gateway-destination-endpoint"] == f"127.0.0.1:{answer['engine']}"
            assert answer["headers"]["content-length"] == str(len(body))
    assert picker.metric("warmroute_decisions_total") >= 4
    assert set(spurious(envoy).values()) == {0}, spurious(envoy)


def test_a_body_beyond_envoys_buffer_gets_413_in_buffered_mode_and_passes_in_duplex(world):
    """Envoy's buffer is 1 MiB; the picker's own limit is far higher."""
    body = json.dumps(chat("x" * 1_200_000)).encode()
    for mode, status in [("BUFFERED", 413), ("FULL_DUPLEX_STREAMED", 200)]:
        _, envoy = world.start(world.engines(1), change=body_mode(mode))
        answer = world.client(envoy).post(CHATS, content=body, headers={"content-type": "application/json"})
        assert answer.status_code == status, (mode, answer.text)


@pytest.mark.parametrize("mode", ["FULL_DUPLEX_STREAMED", "BUFFERED"])
def test_a_body_beyond_the_pickers_limit_gets_413(world, mode):
    _, envoy = world.start(world.engines(1), "--max-payload-size", "100KiB", change=body_mode(mode))
    answer = world.client(envoy).post(CHATS, json=chat("x" * 200_000))
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")


@pytest.mark.parametrize("mode", ["FULL_DUPLEX_STREAMED", "BUFFERED"])
def test_prompts_return_to_the_engine_that_holds_them(world, mode):
    engines = world.engines(3)
    # These engines answer at once, so by its predictions expected_ttft would still wait for the turn before.
    _, envoy = world.start(engines, "--policy", "cache_aware", change=body_mode(mode))
    client = world.client(envoy)
    for conversation in range(3):
        prompt = f"{conversation} " + "a long conversation " * 2_000
        chosen = {client.post(CHATS, json=chat(prompt + "and on " * turn)).json()["engine"] for turn in range(4)}
        assert len(chosen) == 1


def test_get_needs_no_body(shared):
    world, engines, _, envoy = shared
    answer = world.client(envoy).get("/v1/models")
    assert answer.json()["engine"] in [engine.port for engine in engines]


def test_a_client_cannot_choose_its_engine(shared):
    world, engines, picker, envoy = shared
    outsider = world.keep(type(engines[0])())
    for address in [outsider.address, "10.6.6.6:666"]:
        headers = {"x-gateway-destination-endpoint": address, "x-data-parallel-rank": "3"}
        answer = world.client(envoy).post(CHATS, json=chat("x"), headers=headers).json()
        assert answer["engine"] in [engine.port for engine in engines]
        assert answer["headers"]["x-gateway-destination-endpoint"] == f"127.0.0.1:{answer['engine']}"
        assert "x-data-parallel-rank" not in answer["headers"]


def test_headers_of_a_response_keep_their_repetitions(world):
    _, envoy = world.start(world.engines(), "--picker-feedback", "stream", change=body_mode("FULL_DUPLEX_STREAMED", "FULL_DUPLEX_STREAMED"))
    answer = world.client(envoy).post(CHATS, json=chat("x", events=1))
    assert answer.headers.get_list("set-cookie") == ["a=1", "b=2"]


def test_trailers_of_a_request_end_its_body(world):
    def with_trailers(parts):
        parts["manager"]["http_protocol_options"] = {"enable_trailers": True}
        # Envoy 1.40 forwards such a body twice on a route that retries, although the picker sends it back once.
        del parts["manager"]["route_config"]["virtual_hosts"][0]["routes"][0]["route"]["retry_policy"]

    _, envoy = world.start(world.engines(), change=with_trailers)
    body = json.dumps(chat("x" * 5_000)).encode()
    with socket.create_connection(("127.0.0.1", envoy.port), 20) as stream:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
        stream.sendall(head + b"%x\r\n%s\r\n0\r\nx-checksum: 1\r\n\r\n" % (len(body), body))
        answer = b""
        while part := stream.recv(65536):
            answer += part
    assert b" 200 OK" in answer.splitlines()[0]
    assert hashlib.sha256(body).hexdigest().encode() in answer


@pytest.mark.parametrize("mode", MODES)
def test_refusals_have_the_clients_format(world, mode):
    _, envoy = world.start([], change=body_mode(mode))
    answer = world.client(envoy).post(CHATS, json=chat("x"))
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "no_worker_ready"
    assert answer.headers["content-type"] == "application/json" and answer.headers["retry-after"] == "2"


def test_invalid_requests_do_not_reach_an_engine(shared):
    world, _, _, envoy = shared
    answer = world.client(envoy).post(CHATS, content=b'{"model": ', headers={"content-type": "application/json"})
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "invalid_json"


def test_a_subset_restricts_the_choice(world):
    engines = world.engines(3)
    allowed = engines[1]

    def with_subset(parts):
        value = {"x-gateway-destination-endpoint-subset": [allowed.address]}
        parts["filters"].insert(0, {
            "name": "envoy.filters.http.set_metadata",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config",
                "metadata": [{"metadata_namespace": "envoy.lb.subset_hint", "value": value}],
            },
        })

    _, envoy = world.start(engines, change=with_subset)
    client = world.client(envoy)
    assert {client.post(CHATS, json=chat(f"{n}")).json()["engine"] for n in range(9)} == {allowed.port}
    assert client.get("/v1/models").json()["engine"] == allowed.port


def test_the_picker_takes_tls_on_the_same_port(world):
    def with_tls(parts):
        cluster = parts["picker"]
        context = {"@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
                   "common_tls_context": {"alpn_protocols": ["h2"]}}
        cluster["transport_socket"] = {"name": "envoy.transport_sockets.tls", "typed_config": context}

    engines = world.engines()
    picker, envoy = world.start(engines, change=with_tls)
    assert envoy.counter("cluster.picker.ssl.handshake") > 0
    answer = world.client(envoy).post(CHATS, json=chat("x")).json()
    assert answer["headers"]["x-gateway-destination-endpoint"] == f"127.0.0.1:{answer['engine']}"


@pytest.mark.parametrize("way", ["stream", "stream, streamed", "observer"])
def test_the_picker_learns_from_responses(world, way):
    modes = {"stream": "FULL_DUPLEX_STREAMED", "stream, streamed": "STREAMED"}
    change = observer if way == "observer" else body_mode("FULL_DUPLEX_STREAMED", modes[way])
    picker, envoy = world.start(world.engines(), "--picker-feedback", way.split(",")[0], change=change)
    client = world.client(envoy)
    for _ in range(5):
        text = client.post(CHATS, json=chat("x", stream=True, stream_options={"include_usage": True}, events=3)).text
        assert text.endswith("data: [DONE]\n\n") and text.count("data:") == 5
    eventually("the last response is seen", lambda: picker.requests("ok") == 5)
    assert picker.metric("warmroute_time_to_first_token_seconds_count") == 5
    assert picker.in_flight() == 0
    assert picker.requests("unobserved") == 0


def test_without_feedback_requests_count_as_unobserved(world):
    picker, envoy = world.start(world.engines())
    assert world.client(envoy).post(CHATS, json=chat("x")).status_code == 200
    eventually("its time is over", lambda: picker.requests("unobserved") == 1)
    assert picker.in_flight() == 0


@pytest.mark.parametrize("mode", ["FULL_DUPLEX_STREAMED", "BUFFERED"])
def test_a_changed_body_has_its_own_length(world, mode):
    engines = world.engines()
    _, envoy = world.start(engines, change=body_mode(mode))
    for http2 in [False, True]:
        client = world.client(envoy, http2)
        # Engines are not steered by clients: the field is dropped.
        body = json.dumps({**chat("hello"), "priority": 7}).encode()
        answer = client.post(CHATS, content=body, headers={"content-type": "application/json", "x-worker-id": "1"}).json()
        kept = json.dumps(chat("hello")).encode()
        assert answer["headers"]["content-length"] == str(len(kept))
        assert answer["sha256"] == hashlib.sha256(kept).hexdigest()
        assert "x-worker-id" not in answer["headers"]


def test_paths_that_control_engines_are_not_picked(shared):
    world, _, _, envoy = shared
    client = world.client(envoy)
    for path in ["/v1/load_lora_adapter", "/v1/chat/complet%69ons"]:
        assert client.post(path, json=chat("hello")).status_code == 404


def test_a_picker_does_what_the_conformance_tests_of_the_inference_extension_ask_of_it(world):
    """The choice is restricted by a header, as IP:PORT or IP, and the response says who answered."""
    engines = world.engines(3)
    duplex = "FULL_DUPLEX_STREAMED"
    flags = ["--picker-feedback", "stream", "--picker-conformance-headers"]
    _, envoy = world.start(engines, *flags, change=body_mode(duplex, duplex))
    client = world.client(envoy)
    ask = lambda selection, prompt: client.post(CHATS, json=chat(prompt), headers={"test-epp-endpoint-selection": selection})
    for engine in engines:
        for selection in [engine.address, f"10.9.9.9, {engine.address}"]:
            answer = ask(selection, "x")
            assert answer.json()["engine"] == engine.port
            assert answer.headers["x-conformance-test-served-endpoint"] == engine.address
    two = ",".join(engine.address for engine in engines[:2])
    assert {ask(two, f"{n} " * 300).json()["engine"] for n in range(12)} == {engine.port for engine in engines[:2]}
    assert {ask("127.0.0.1", f"{n} " * 300).json()["engine"] for n in range(18)} == {engine.port for engine in engines}
    assert ask("10.9.9.9", "x").status_code == 503
    # Without the header any engine may be chosen.
    assert client.post(CHATS, json=chat("x")).status_code == 200


def test_without_the_switch_headers_of_conformance_tests_choose_nothing(shared):
    world, engines, _, envoy = shared
    answer = world.client(envoy).post(CHATS, json=chat("x"), headers={"test-epp-endpoint-selection": "10.9.9.9"})
    assert answer.status_code == 200 and "x-conformance-test-served-endpoint" not in answer.headers


@pytest.mark.parametrize("http2", [False, True])
def test_a_request_may_have_more_than_a_hundred_headers(shared, http2):
    """Envoy's default is 100, of which its own and the picker's take some: a request with a few fewer got 500."""
    world, _, _, envoy = shared
    client = world.client(envoy, http2)
    for count in [90, 96, 100, 180]:
        answer = client.post(CHATS, json=chat("x"), headers={f"x-{n}": "1" for n in range(count)})
        assert answer.status_code == 200, (count, answer.text)
        assert answer.json()["headers"][f"x-{count - 1}"] == "1"
