"""A client that goes away: counted as cancelled, its worker freed, the engine told to stop.

The answers asked for would take the engines most of a minute, so one that is over within the deadline was cancelled.
"""

import asyncio

import openai

from admin import eventually, running_in

LONG_ANSWER_TOKENS = 8000
QUESTION = [{"role": "user", "content": "Tell me everything."}]


def cancelled(admin):
    return admin.total("warmroute_requests_total", outcome="cancelled")


def test_a_stream_left_halfway_is_cancelled_and_frees_its_worker(client, model, admin):
    before = cancelled(admin)
    create = client.chat.completions.with_raw_response.create
    answer = create(model=model, messages=QUESTION, max_tokens=LONG_ANSWER_TOKENS, stream=True)
    stream = answer.parse()
    next(iter(stream))
    assert eventually(lambda: admin.in_flight() == 1)
    stream.close()
    assert eventually(lambda: admin.in_flight() == 0)
    assert eventually(lambda: cancelled(admin) == before + 1)
    assert eventually(lambda: running_in(answer.headers["x-warmroute-worker"]) == 0)


async def ask_and_leave(url, model, admin):
    """Asks for a whole answer, and goes away once a worker has the request."""
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        create = client.chat.completions.create
        asking = asyncio.create_task(create(model=model, messages=QUESTION, max_tokens=LONG_ANSWER_TOKENS))
        assert await asyncio.to_thread(eventually, lambda: admin.in_flight() == 1)
        asking.cancel()
        await asyncio.wait([asking])
        assert asking.cancelled()


def test_a_client_that_leaves_before_the_first_byte_is_cancelled_too(url, model, admin):
    before = cancelled(admin)
    asyncio.run(ask_and_leave(url, model, admin))
    assert eventually(lambda: admin.in_flight() == 0)
    assert eventually(lambda: cancelled(admin) == before + 1)
    assert eventually(lambda: all(running_in(worker["url"]) == 0 for worker in admin.workers()))


def test_a_stream_read_to_its_end_is_not_cancelled(client, model, admin):
    before = cancelled(admin), admin.total("warmroute_requests_total", outcome="ok")
    list(client.chat.completions.create(model=model, messages=QUESTION, max_tokens=3, stream=True))
    assert eventually(lambda: admin.total("warmroute_requests_total", outcome="ok") == before[1] + 1)
    assert cancelled(admin) == before[0]
