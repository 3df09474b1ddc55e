"""Many streams at once: none is lost, and none gets another's bytes."""

import asyncio

import openai

from admin import eventually

STREAMS = 50
TOKENS = 30


async def read_stream(client, model, number):
    messages = [{"role": "user", "content": f"Tell story number {number}."}]
    stream = await client.chat.completions.create(
        model=model,
        messages=messages,
        max_tokens=TOKENS,
        stream=True,
        stream_options={"include_usage": True},
        extra_headers={"x-request-id": f"story-{number}"},
    )
    return [chunk async for chunk in stream]


async def read_all(url, model):
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        return await asyncio.gather(*(read_stream(client, model, number) for number in range(STREAMS)))


def test_fifty_streams_at_once_each_get_their_own_answer(url, model, admin):
    before = admin.total("warmroute_requests_total", outcome="ok")
    for number, chunks in enumerate(asyncio.run(read_all(url, model))):
        # The gateway puts digits of its own behind the client's request id.
        (answer,) = {chunk.id for chunk in chunks}
        assert answer.startswith(f"chatcmpl-story-{number}-"), answer
        assert chunks[-1].usage.completion_tokens == TOKENS
    assert eventually(lambda: admin.total("warmroute_requests_total", outcome="ok") == before + STREAMS)
