"""What docs/tracing.md promises, asked of a real gateway. Started by `run`.

Each line of the output is a claim. A claim that fails is to be mended in the gateway or in the document, not here.
"""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import rotel
from receiver import Receiver
from world import MODEL, PROMPT, SECRET, Engine, Gateway, body_of, connect, folder, send, world

BINARY = sys.argv[1]
PARENT = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
TRACEPARENT = f"00-{PARENT[0]}-{PARENT[1]}-01"


def gateway(receiver, engines, *flags, env=None):
    return Gateway(BINARY, [engine.url for engine in engines], "--otlp-endpoint", receiver.url, *flags, env=env)


def kinds(spans):
    """The spans by kind, in the order of their start."""
    spans = sorted(spans, key=lambda span: span.start)
    (server,) = [span for span in spans if span.kind == "SERVER"]
    return server, [span for span in spans if span.name == "route"], [span for span in spans if span.kind == "CLIENT"]


def is_tree(spans):
    """Children lie below the server's span and within its time."""
    server, _, _ = kinds(spans)
    for span in spans:
        if span is not server:
            assert span.parent == server.id, f"{span.name} is not below the server's span"
            assert server.start <= span.start and span.end <= server.end, f"{span.name} is not within the server's span"
    assert len({span.id for span in spans}) == len(spans), "span ids repeat"


def a_streamed_request_is_a_tree_below_its_client(receiver, engine, router):
    status, _ = send(router, "tree", traceparent=TRACEPARENT, tracestate="vendor=x, other=y")
    assert status == 200
    spans = receiver.trace("tree")
    is_tree(spans)
    server, (route,), (attempt,) = kinds(spans)
    assert (server.trace, server.parent) == PARENT and server.raw.flags == 0x301
    assert attempt.raw.flags == 0x101 and server.state == attempt.state == "vendor=x,other=y"
    assert server.name == "POST /v1/chat/completions" and not server.is_error
    assert server.attributes["http.response.status_code"] == 200 and server.attributes["url.scheme"] == "http"
    assert server.attributes["warmroute.outcome"] == "ok" and server.attributes["warmroute.model"] == MODEL
    assert route.attributes["warmroute.worker"] == engine.url and route.attributes["warmroute.policy"] == "expected_ttft"
    (name, _, chosen), = route.events
    assert name == "candidate" and chosen["warmroute.chosen"] and chosen["warmroute.worker"] == engine.url
    assert chosen["warmroute.expected_ttft_ms"] >= 0
    assert attempt.name == f"chat {MODEL}" and not attempt.is_error
    expected = {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "openai", "gen_ai.request.model": MODEL,
        "gen_ai.request.stream": True, "gen_ai.usage.input_tokens": 40, "gen_ai.usage.output_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 16, "http.response.status_code": 200,
        "url.full": f"{engine.url}/v1/chat/completions", "server.address": "127.0.0.1",
    }
    assert expected.items() <= attempt.attributes.items(), attempt.attributes
    (first,) = attempt.events
    assert first[0] == "first token" and attempt.attributes["gen_ai.response.time_to_first_chunk"] > 0
    assert route.start <= route.end <= attempt.start <= first[1] <= attempt.end <= server.end
    got = engine.headers[-1]
    assert got["traceparent"] == f"00-{PARENT[0]}-{attempt.id}-01" and got["tracestate"] == "vendor=x,other=y"


def other_apis_have_their_own_names(receiver, engine, router):
    whole = body_of(stream=False, max_tokens=7)
    for path, name, provider in [
        ("/v1/completions", f"text_completion {MODEL}", "openai"),
        ("/v1/messages", f"chat {MODEL}", "anthropic"),
        ("/v1/embeddings", f"embeddings {MODEL}", "openai"),
    ]:
        request_id = path.replace("/", "-")
        send(router, request_id, path=path, body=whole)
        server, _, (attempt,) = kinds(receiver.trace(request_id))
        assert server.name == f"POST {path}" and attempt.name == name, (server.name, attempt.name)
        assert attempt.attributes["gen_ai.provider.name"] == provider and attempt.events == []
    assert attempt.attributes["gen_ai.request.stream"] is False
    send(router, "odd", path="/v1/what/ever/42", body="{}")
    server, _, (attempt,) = kinds(receiver.trace("odd"))
    assert server.name == "POST" and attempt.name == "forward" and "gen_ai.operation.name" not in attempt.attributes


def contexts_that_are_not_valid_begin_a_new_trace(receiver, engine, router):
    for n, bad in enumerate(["", "00-xyz", TRACEPARENT.upper(), TRACEPARENT + "-more", TRACEPARENT.replace("00-", "ff-", 1)]):
        send(router, f"bad-{n}", traceparent=bad, tracestate="vendor=x")
        server, _, (attempt,) = kinds(receiver.trace(f"bad-{n}"))
        assert server.parent == "" and server.trace != PARENT[0] and server.raw.flags & 0x200 == 0
        got = engine.headers[-1]
        assert got["traceparent"] == f"00-{server.trace}-{attempt.id}-03" and "tracestate" not in got, got


def a_client_that_does_not_sample_is_obeyed(receiver, engine, router):
    unsampled = f"00-{PARENT[0]}-{PARENT[1]}-00"
    send(router, "unsampled", traceparent=unsampled)
    assert engine.headers[-1]["traceparent"] == unsampled
    send(router, "after-unsampled")
    receiver.trace("after-unsampled")
    assert all(span.attributes.get("warmroute.request_id") != "unsampled" for span in receiver.spans)


def refusals_have_one_span_that_is_no_error(receiver, engine, router):
    for request_id, body, status, code in [
        ("bad-json", "{", 400, "invalid_json"),
        ("bad-model", json.dumps({"model": "none", "messages": []}), 404, "model_not_found"),
    ]:
        assert send(router, request_id, body=body)[0] == status
        (server,) = receiver.trace(request_id)
        assert server.attributes["http.response.status_code"] == status and not server.is_error
        assert server.attributes["warmroute.error"] == code and "error.type" not in server.attributes


def a_client_that_leaves_ends_its_spans(receiver, engine, router):
    engine.mode = "slow"
    connection = connect(router)
    connection.request("POST", "/v1/chat/completions", body_of(), {"x-request-id": "left"})
    connection.getresponse().read(10)
    connection.sock.close()
    connection.close()
    spans = receiver.trace("left")
    engine.release.set()
    engine.mode = "ok"
    is_tree(spans)
    server, _, (attempt,) = kinds(spans)
    for span in (server, attempt):
        assert span.attributes["warmroute.outcome"] == "cancelled" and not span.is_error, span.attributes
    assert [event[0] for event in attempt.events] == ["first token"]


def a_stream_that_breaks_is_an_error(receiver, engine, router):
    engine.mode = "break"
    send(router, "broken")
    engine.mode = "ok"
    server, _, (attempt,) = kinds(receiver.trace("broken"))
    assert server.is_error and server.attributes["http.response.status_code"] == 200
    assert attempt.is_error and attempt.attributes["error.type"] == "connection_closed", attempt.attributes


def one_gateway_keeps_these_claims():
    with world(Receiver(), Engine()) as (receiver, engine):
        with world(gateway(receiver, [engine], "--otlp-headers", f"x-key={SECRET}", "--trace-attributes",
                           "service.name=router-a,deployment.environment.name=test")) as (router,):
            for claim in [
                a_streamed_request_is_a_tree_below_its_client,
                other_apis_have_their_own_names,
                contexts_that_are_not_valid_begin_a_new_trace,
                a_client_that_does_not_sample_is_obeyed,
                refusals_have_one_span_that_is_no_error,
                a_stream_that_breaks_is_an_error,
                a_client_that_leaves_ends_its_spans,
            ]:
                tell(claim, receiver, engine, router)
            tell(resource_and_headers_are_sent_and_secrets_are_not_shown, receiver, router)
            tell(collector_outages_cost_spans_only, receiver, engine, router)
        assert receiver.complaints == [], receiver.complaints


def resource_and_headers_are_sent_and_secrets_are_not_shown(receiver, router):
    resource = receiver.spans[0].resource
    version = subprocess.run([BINARY, "--version"], capture_output=True, text=True).stdout.split()[1]
    assert resource["service.name"] == "router-a" and resource["deployment.environment.name"] == "test"
    assert resource["service.version"] == version and len(resource["service.instance.id"]) == 36
    assert {head["x-key"] for head in receiver.heads} == {SECRET}
    assert PROMPT.encode() not in b"".join(receiver.exports), "a span contains prompt text"
    assert SECRET not in router.logged() + router.get("/config") + router.get("/metrics")
    sent = router.metric("sent")
    assert sent == len(receiver.spans) and router.metric("dropped") == router.metric("failed") == 0
    receiver.rejects = 1
    send(router, "rejected")
    receiver.trace("rejected")
    poll(lambda: router.metric("rejected") == 1, "a refused span is counted")


def collector_outages_cost_spans_only(receiver, engine, router):
    def requests(name):
        began = time.monotonic()
        assert all(send(router, f"{name}-{n}")[0] == 200 for n in range(20))
        return time.monotonic() - began

    usual = requests("usual")
    receiver.trace("usual-19")
    receiver.answer = 400
    refused = requests("refused")
    poll(lambda: router.metric("failed") >= 60, "a refused batch is lost and counted")
    port = receiver.port
    receiver.close()
    gone = requests("gone")
    for slower in (refused, gone):
        assert slower < 3 * usual + 2, f"20 requests took {slower:.2f} s, usually {usual:.2f} s"
    with world(Receiver(port)) as (again,):
        # The batch in hand is tried again, and arrives.
        again.trace("gone-19")
        assert again.complaints == []
    assert "does not take traces" in router.logged()


def retries_are_attempts_of_one_trace():
    with world(Receiver(), Engine(), Engine()) as (receiver, first, second):
        with world(gateway(receiver, [first, second], "--policy", "round_robin")) as (router,):
            first.mode, second.mode = 503, "ok"
            # A retry takes a turn as well, so which of two requests begins at the busy engine depends on where the turns began.
            for n in range(2):
                assert send(router, f"retry-{n}")[0] == 200
                spans = receiver.trace(f"retry-{n}")
                if len(kinds(spans)[2]) == 2:
                    break
            is_tree(spans)
            server, routes, (failed, good) = kinds(spans)
            assert not server.is_error and server.attributes["warmroute.attempts"] == 2 and len(routes) == 2
            assert failed.is_error and failed.attributes["error.type"] == "503"
            assert failed.attributes["http.response.status_code"] == 503 and failed.end <= good.start
            assert not good.is_error and good.attributes["http.request.resend_count"] == 1
            assert "http.request.resend_count" not in failed.attributes
            assert second.headers[-1]["traceparent"].split("-")[2] == good.id
        assert receiver.complaints == [], receiver.complaints


def workers_that_are_gone_are_errors():
    with world(Receiver(), Engine()) as (receiver, engine):
        with world(gateway(receiver, [engine])) as (router,):
            engine.close()
            status, _ = send(router, "dead")
            assert status in (502, 503), status
            server, _, (attempt,) = kinds(receiver.trace("dead"))
            assert server.is_error and attempt.is_error
            assert attempt.attributes["error.type"] == "connect_failed", attempt.attributes
        assert receiver.complaints == [], receiver.complaints


def the_queue_has_a_span():
    with world(Receiver(), Engine()) as (receiver, engine):
        flags = ["--max-concurrent-requests", "1", "--queue-size", "1", "--queue-timeout-secs", "30"]
        with world(gateway(receiver, [engine], *flags)) as (router,):
            engine.mode = "slow"
            threads = [threading.Thread(target=send, args=(router, f"queued-{n}")) for n in range(2)]
            threads[0].start()
            poll(lambda: engine.headers, "the first request runs")
            threads[1].start()
            poll(lambda: 'warmroute_queue_waiting{priority="normal"} 1' in router.get("/metrics"), "the second one waits")
            assert send(router, "queue-full")[0] == 429
            (server, queue) = sorted(receiver.trace("queue-full"), key=lambda span: span.name)
            assert queue.name == "queue" and queue.is_error and queue.attributes["error.type"] == "queue_full"
            assert not server.is_error, "429 is for the client to mend"
            engine.release.set()
            for thread in threads:
                thread.join()
            spans = receiver.trace("queued-1")
            is_tree(spans)
            (queue,) = [span for span in spans if span.name == "queue"]
            server, (route,), _ = kinds(spans)
            assert queue.kind == "INTERNAL" and not queue.is_error and queue.end <= route.start
            assert queue.end - queue.start > (server.end - server.start) / 10, "the wait is most of its time"
        assert receiver.complaints == [], receiver.complaints


def a_share_of_new_traces_is_sampled():
    with world(Receiver(), Engine()) as (receiver, engine):
        environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, "OTEL_SERVICE_NAME": "from-environment",
                       "OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.25"}
        with world(Gateway(BINARY, [engine.url], env=environment)) as (router,):
            for n in range(200):
                send(router, f"share-{n}", body=body_of(stream=False))
            sampled = {header["traceparent"] for header in engine.headers if header["traceparent"].endswith("-03")}
            others = {header["traceparent"] for header in engine.headers if header["traceparent"].endswith("-02")}
            assert len(sampled) + len(others) == 200, "each request has a context of its own"
            # Six standard deviations of 200 throws.
            assert 14 <= len(sampled) <= 86, len(sampled)
            router.stop()
            servers = [span for span in receiver.spans if span.kind == "SERVER"]
            assert len(servers) == len(sampled) and servers[0].resource["service.name"] == "from-environment"
        assert receiver.complaints == [], receiver.complaints


def the_last_spans_are_sent_at_the_end_and_a_hanging_collector_does_not_keep_the_process():
    with world(Receiver(), Engine()) as (receiver, engine):
        with world(gateway(receiver, [engine])) as (router,):
            send(router, "last")
            router.stop()
            assert receiver.trace("last"), "spans are sent at the end"
        receiver.answer = "hang"
        with world(gateway(receiver, [engine])) as (router,):
            assert send(router, "hanging")[0] == 200
            took = router.stop()
            assert took < 15, f"the process took {took:.1f} s to end"


def without_a_collector_nothing_is_added():
    with world(Engine()) as (engine,):
        with world(Gateway(BINARY, [engine.url])) as (router,):
            send(router, "off")
            assert "traceparent" not in engine.headers[-1] and router.metric("sent") is None
            # As any other header of the client's.
            send(router, "passed", traceparent="anything")
            assert engine.headers[-1]["traceparent"] == "anything"


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


class Rotel:
    """A real collector, written by others, which passes on what it gets."""

    def __init__(self, to):
        self.url = f"http://127.0.0.1:{free_port()}"
        agent = Path(rotel.__file__).parent / "rotel-agent"
        listens = self.url.removeprefix("http://")
        flags = {
            "--otlp-http-endpoint": listens, "--otlp-grpc-endpoint": f"127.0.0.1:{free_port()}",
            "--exporter": "otlp", "--otlp-exporter-endpoint": to.url, "--otlp-exporter-protocol": "http",
            "--otlp-exporter-compression": "none",
        }
        command = [agent, "start", *[word for pair in flags.items() for word in pair]]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        host, port = listens.split(":")
        poll(lambda: is_open(host, int(port)), "the collector listens")

    def close(self):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def is_open(host, port):
    with socket.socket() as socket_:
        return socket_.connect_ex((host, port)) == 0


def a_real_collector_takes_the_same_spans():
    with world(Receiver(), Engine()) as (receiver, engine):
        with world(Rotel(receiver)) as (collector,):
            with world(gateway(collector, [engine])) as (router,):
                send(router, "through", traceparent=TRACEPARENT)
                spans = receiver.trace("through")
                receiver.wait_for(lambda: len(receiver.trace("through")) == 3, "all spans of the request")
                spans = receiver.trace("through")
                is_tree(spans)
                server, _, (attempt,) = kinds(spans)
                assert (server.trace, server.parent) == PARENT and attempt.attributes["gen_ai.usage.input_tokens"] == 40
                assert engine.headers[-1]["traceparent"].split("-")[2] == attempt.id
                assert router.metric("sent") == 3 and router.metric("rejected") == 0


def poll(is_so, what, within_s=20):
    deadline = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        time.sleep(0.05)


def tell(claim, *arguments):
    began = time.monotonic()
    claim(*arguments)
    print(f"ok {time.monotonic() - began:6.1f} s  {claim.__name__.replace('_', ' ')}", flush=True)


CLAIMS = [
    one_gateway_keeps_these_claims,
    retries_are_attempts_of_one_trace,
    workers_that_are_gone_are_errors,
    the_queue_has_a_span,
    a_share_of_new_traces_is_sampled,
    the_last_spans_are_sent_at_the_end_and_a_hanging_collector_does_not_keep_the_process,
    without_a_collector_nothing_is_added,
    a_real_collector_takes_the_same_spans,
]

if __name__ == "__main__":
    began = time.monotonic()
    for claim in CLAIMS:
        tell(claim)
    print(f"all claims hold, after {time.monotonic() - began:.1f} s")
