"""On /v1/messages errors have Anthropic's shape, so that its SDK raises what its users catch."""

import anthropic
import pytest

QUESTION = [{"role": "user", "content": "Hello?"}]


def error_of(caught):
    body = caught.value.body
    assert body["type"] == "error"
    return body["error"]


def test_an_unknown_model_is_not_found(claude):
    with pytest.raises(anthropic.NotFoundError) as caught:
        claude.messages.create(model="no-such-model", messages=QUESTION, max_tokens=1)
    assert error_of(caught)["type"] == "not_found_error"
    assert "no-such-model" in error_of(caught)["message"]


def test_an_unknown_model_is_not_found_before_a_stream_begins(claude):
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.create(model="no-such-model", messages=QUESTION, max_tokens=1, stream=True)


def test_a_body_over_the_limit_is_too_large(claude, model, too_long_text):
    messages = [{"role": "user", "content": too_long_text}]
    with pytest.raises(anthropic.APIStatusError) as caught:
        claude.messages.create(model=model, messages=messages, max_tokens=1)
    assert caught.value.status_code == 413
    assert error_of(caught)["type"] == "request_too_large"


def test_bad_json_is_refused_with_its_place(http):
    response = http.post("/v1/messages", content=b'{"model": "any", "max_tokens": }')
    assert response.status_code == 400
    assert response.json()["type"] == "error"
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert "line 1, column 32" in response.json()["error"]["message"]


def test_an_error_of_the_engines_own_reaches_the_sdk(claude, model):
    with pytest.raises(anthropic.BadRequestError) as caught:
        claude.messages.create(model=model, messages=QUESTION, max_tokens=0)
    assert error_of(caught)["type"] == "invalid_request_error"
    assert "max_tokens" in error_of(caught)["message"]
