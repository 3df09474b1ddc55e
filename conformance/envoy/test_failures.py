"""What clients see when the picker, an engine or a client goes away."""

import asyncio
import json
import time

import httpx
import pytest

from test_choice import CHATS, chat
from world import Picker, body_mode, eventually, observer

EVENTS = 30


def read_events(response):
    """Yields after each event."""
    for line in response.iter_lines():
        if line.startswith("data:"):
            yield line


def test_a_picker_that_is_killed_cuts_no_response(world):
    picker, envoy = world.start(world.engines())
    with world.client(envoy).stream("POST", CHATS, json=chat("x", events=EVENTS)) as response:
        events = read_events(response)
        seen = [next(events) for _ in range(10)]
        picker.kill()
        seen += list(events)
    assert len(seen) == EVENTS + 2 and seen[-1] == "data: [DONE]"


def test_an_observing_picker_that_is_killed_cuts_no_response(world):
    picker, envoy = world.start(world.engines(), "--picker-feedback", "observer", change=observer)
    with world.client(envoy).stream("POST", CHATS, json=chat("x", events=EVENTS)) as response:
        events = read_events(response)
        seen = [next(events) for _ in range(10)]
        picker.kill()
        seen += list(events)
    assert len(seen) == EVENTS + 2


def test_without_a_picker_requests_go_on_if_envoy_fails_open(world):
    engines = world.engines()
    picker, envoy = world.start(engines)
    client = world.client(envoy)
    picker.kill()
    eventually("Envoy notices", lambda: not envoy.picker_is_healthy())
    chosen = [client.post(CHATS, json=chat(f"{n}")).json() for n in range(4)]
    assert {answer["engine"] for answer in chosen} == {engine.port for engine in engines}
    # Without a picker nothing overwrites the header of a client: Envoy removes it.
    headers = {"x-gateway-destination-endpoint": engines[0].address}
    answer = client.post(CHATS, json=chat("x"), headers=headers).json()
    assert "x-gateway-destination-endpoint" not in answer["headers"]
    again = world.keep(Picker(engines, port=picker.port))
    eventually("Envoy notices", envoy.picker_is_healthy)
    # Its threads notice one after another.
    again_chosen = lambda: client.post(CHATS, json=chat("x")).status_code == 200 and again.metric("warmroute_decisions_total")
    eventually("the new picker is asked", again_chosen)


def test_without_a_picker_requests_fail_if_envoy_fails_closed(world):
    def closed(parts):
        parts["ext_proc"]["failure_mode_allow"] = False

    picker, envoy = world.start(world.engines(), change=closed)
    client = world.client(envoy)
    assert client.post(CHATS, json=chat("x")).status_code == 200
    picker.kill()
    assert client.post(CHATS, json=chat("x")).status_code >= 500
    eventually("Envoy notices", lambda: not envoy.picker_is_healthy())
    assert client.post(CHATS, json=chat("x")).status_code >= 500


@pytest.mark.parametrize("mode, allow, answered", [
    # In BUFFERED mode Envoy still has the body, and fails open.
    ("BUFFERED", True, True),
    ("BUFFERED", False, False),
    # In duplex mode it has sent the body and cannot.
    ("FULL_DUPLEX_STREAMED", True, False),
    ("FULL_DUPLEX_STREAMED", False, False),
])
def test_a_picker_that_is_killed_during_its_choice_fails_open_or_closed(world, mode, allow, answered):
    # One request runs at a time, so the second one waits in the picker.
    flags = ["--max-concurrent-requests", "1", "--picker-feedback", "stream"]

    def patient(parts):
        body_mode(mode, "STREAMED" if mode == "BUFFERED" else mode)(parts)
        parts["ext_proc"].update(message_timeout="20s", failure_mode_allow=allow)

    picker, envoy = world.start(world.engines(), *flags, change=patient)

    async def both():
        async with httpx.AsyncClient(base_url=envoy.url, timeout=30) as client:
            first = asyncio.create_task(client.post(CHATS, json=chat("x", events=100)))
            await asyncio.to_thread(eventually, "the first one runs", lambda: picker.in_flight() == 1)
            second = asyncio.create_task(client.post(CHATS, json=chat("y")))
            await asyncio.to_thread(eventually, "the second one waits", lambda: picker.metric("warmroute_queue_waiting") == 1)
            picker.kill()
            status = (await second).status_code
            first.cancel()
            return status

    status = asyncio.run(both())
    assert status == 200 if answered else status >= 500
    eventually("Envoy notices", lambda: not envoy.picker_is_healthy())
    status = world.client(envoy).post(CHATS, json=chat("z")).status_code
    assert status == 200 if allow else status >= 500


def test_a_terminated_picker_finishes_and_envoy_moves_on(world):
    engines = world.engines()
    picker, envoy = world.start(engines)
    client = world.client(envoy)
    assert client.post(CHATS, json=chat("x")).status_code == 200
    picker.terminate()
    eventually("Envoy notices", lambda: not envoy.picker_is_healthy())
    assert client.post(CHATS, json=chat("x")).status_code == 200


def test_an_engine_that_is_gone_is_replaced_by_the_next_of_the_list(world):
    engines = world.engines(2)
    # The picker does not notice by itself within this test.
    flags = ["--picker-fallbacks", "1", "--health-check-interval-secs", "600", "--load-interval-ms", "600000"]
    picker, envoy = world.start(engines, *flags)
    client = world.client(envoy)
    assert {client.post(CHATS, json=chat(f"{n} " * 300)).status_code for n in range(4)} == {200}
    engines[0].kill()
    answers = [client.post(CHATS, json=chat(f"{n} " * 300)) for n in range(8)]
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.json()["engine"] for answer in answers} == {engines[1].port}
    assert any(answer.json()["headers"]["x-gateway-destination-endpoint"].startswith(engines[0].address) for answer in answers)
    assert envoy.counter("cluster.engines.upstream_rq_retry") > 0


def test_a_response_of_another_engine_is_not_credited_to_the_chosen_one(world):
    engines = world.engines(2)
    flags = ["--picker-feedback", "observer", "--health-check-interval-secs", "600", "--load-interval-ms", "600000"]
    picker, envoy = world.start(engines, *flags, change=observer)
    client = world.client(envoy)
    engines[0].kill()
    for n in range(8):
        assert client.post(CHATS, json=chat(f"{n} " * 300)).status_code == 200
    eventually("all are seen", lambda: picker.requests("ok") + picker.requests("failed") == 8)
    assert picker.requests("failed") > 0 and picker.in_flight() == 0


def test_a_response_of_another_engine_passes_whole_in_the_pickers_stream(world):
    for mode in ["FULL_DUPLEX_STREAMED", "STREAMED"]:
        engines = world.engines(2)
        flags = ["--picker-feedback", "stream", "--health-check-interval-secs", "600", "--load-interval-ms", "600000"]
        picker, envoy = world.start(engines, *flags, change=body_mode("FULL_DUPLEX_STREAMED", mode))
        client = world.client(envoy)
        engines[0].kill()
        for n in range(4):
            with client.stream("POST", CHATS, json=chat(f"{n} " * 300, events=EVENTS)) as response:
                assert response.status_code == 200
                assert len(list(read_events(response))) == EVENTS + 2
        assert envoy.counter("cluster.engines.upstream_rq_retry") > 0, "no request was sent to the engine that is gone"
        # The proxy's own answer, when no engine is left, has its text.
        engines[1].kill()
        for n in range(4):
            answer = client.post(CHATS, json=chat(f"{n} " * 300))
            assert answer.status_code == 503 and "upstream connect error" in answer.text
        eventually("nothing is in flight", lambda: picker.in_flight() == 0)


def test_a_client_that_leaves_frees_its_engine(world):
    for feedback, change in [("observer", observer), ("stream", body_mode("FULL_DUPLEX_STREAMED", "FULL_DUPLEX_STREAMED"))]:
        engines = world.engines(1)
        picker, envoy = world.start(engines, "--picker-feedback", feedback, change=change)
        with world.client(envoy).stream("POST", CHATS, json=chat("x", events=3_000)) as response:
            events = read_events(response)
            next(events)
            assert picker.in_flight() == 1 and engines[0].open_streams() == 1
        eventually("the engine stops", lambda: engines[0].open_streams() == 0)
        eventually("the worker is free", lambda: picker.in_flight() == 0)
        assert picker.requests("cancelled") == 1


async def stream_at_once(envoy, count):
    """Opens `count` streams at once. Returns the texts of those that were whole."""
    body = json.dumps(chat("x" * 2_000, events=50)).encode()
    head = f"POST {CHATS} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode()

    async def one():
        reader, writer = await asyncio.open_connection("127.0.0.1", envoy.port)
        writer.write(head + body)
        answer = await reader.read(-1)
        writer.close()
        return answer.startswith(b"HTTP/1.1 200") and b"data: [DONE]" in answer and answer.endswith(b"0\r\n\r\n")

    return sum(await asyncio.gather(*[one() for _ in range(count)]))


def test_two_thousand_streams_at_once(world):
    engines = world.engines(2)
    picker, envoy = world.start(engines)
    began = time.monotonic()
    assert asyncio.run(stream_at_once(envoy, 2_000)) == 2_000
    assert picker.metric("warmroute_decisions_total") == 2_000
    assert envoy.counter("ext_proc.streams_failed") == 0, f"after {time.monotonic() - began:.1f} s"


def write_workers(file, engines):
    tables = [f'[[workers]]\nurl = "http://{engine.address}"\n' for engine in engines]
    new = file.with_suffix(".new")
    new.write_text("\n".join(tables) or "workers = []\n")
    new.replace(file)


def test_a_fleet_that_goes_to_zero_is_answered_with_503_and_comes_back(world, tmp_path):
    engines, file = world.engines(2), tmp_path / "workers.toml"
    write_workers(file, engines[:1])
    picker, envoy = world.start(engines, "--worker-file", str(file), workers=[])
    client = world.client(envoy)
    status = lambda: client.post(CHATS, json=chat("x")).status_code
    eventually("the worker is ready", lambda: status() == 200)
    engines[0].kill()
    eventually("the engine is missed", lambda: status() == 503)
    answer = client.post(CHATS, json=chat("x"))
    assert "retry-after" in answer.headers and "error" in answer.json()
    write_workers(file, engines[1:])
    eventually("another one takes its place", lambda: status() == 200)
    assert client.post(CHATS, json=chat("x")).json()["engine"] == engines[1].port


def test_a_request_waits_while_the_fleet_wakes_up(world, tmp_path):
    engines, file = world.engines(1), tmp_path / "workers.toml"
    write_workers(file, [])
    picker, envoy = world.start(engines, "--worker-file", str(file), "--wake-timeout-secs", "60", workers=[])

    async def ask():
        async with httpx.AsyncClient(base_url=envoy.url, timeout=60) as client:
            asked = [asyncio.create_task(client.post(CHATS, json=chat(f"{n}"))) for n in range(5)]
            while picker.metric("warmroute_requests_awaiting_worker") < 5:
                await asyncio.sleep(0.01)
            write_workers(file, engines)
            return [answer.status_code for answer in await asyncio.gather(*asked)]

    assert asyncio.run(ask()) == [200] * 5


def test_an_engine_that_dies_in_a_stream_breaks_it_off_and_gets_no_more_requests(world):
    engines = world.engines(2)
    picker, envoy = world.start(engines, "--picker-feedback", "observer", change=observer)
    client = world.client(envoy)
    with client.stream("POST", CHATS, json=chat("x", events=1000)) as response:
        events = read_events(response)
        next(events)
        busy = next(engine for engine in engines if engine.open_streams())
        busy.kill()
        try:
            seen = list(events)
        except httpx.HTTPError:
            seen = []
        assert "data: [DONE]" not in seen, "a broken stream never looks complete"
    eventually("the picker notices", lambda: sorted(worker["state"] == "ready" for worker in picker.workers()) == [False, True])
    other = next(engine for engine in engines if engine is not busy)
    assert {client.post(CHATS, json=chat(f"{n}")).json()["engine"] for n in range(6)} == {other.port}
    eventually("nothing is in flight", lambda: picker.in_flight() == 0)
