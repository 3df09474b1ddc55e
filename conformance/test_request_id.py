"""One id follows a request: the client's own where it sent one, a new one otherwise."""

import openai
import pytest

QUESTION = [{"role": "user", "content": "Who am I?"}]


def ask(client, model, **options):
    create = client.chat.completions.with_raw_response.create
    return create(model=model, messages=QUESTION, max_tokens=1, **options)


def test_an_id_that_was_sent_comes_back_and_reaches_the_engine(client, model):
    answer = ask(client, model, extra_headers={"x-request-id": "my-own-id-7"})
    assert answer.headers["x-request-id"] == "my-own-id-7"
    assert "my-own-id-7" in answer.parse().id, "vLLM makes the completion's id of it"


def test_an_id_is_made_when_none_was_sent(client, model):
    ids = {ask(client, model).headers["x-request-id"] for _ in range(5)}
    assert len(ids) == 5 and all(ids)


def test_a_stream_carries_its_id(client, model):
    answer = ask(client, model, stream=True, extra_headers={"x-request-id": "streamed-8"})
    assert answer.headers["x-request-id"] == "streamed-8"
    assert all("streamed-8" in chunk.id for chunk in answer.parse())


def test_a_refusal_carries_the_id_too(client):
    with pytest.raises(openai.NotFoundError) as caught:
        ask(client, "no-such-model", extra_headers={"x-request-id": "refused-9"})
    assert caught.value.request_id == "refused-9"
