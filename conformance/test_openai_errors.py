"""Every error reaches the SDK as the exception that its users catch."""

import httpx
import openai
import pytest

QUESTION = [{"role": "user", "content": "Hello?"}]


def test_an_unknown_model_is_not_found(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="no-such-model", messages=QUESTION)
    error = caught.value
    assert (error.status_code, error.code, error.type) == (404, "model_not_found", "invalid_request_error")
    assert "no-such-model" in error.message
    assert error.request_id


def test_an_unknown_model_is_not_found_before_a_stream_begins(client):
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="no-such-model", messages=QUESTION, stream=True)


def test_bad_json_is_refused_with_its_place(http):
    body = b'{"model": "any",\n "messages": [}]}'
    response = http.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
    error = response.json()["error"]
    assert response.status_code == 400
    assert (error["code"], error["type"]) == ("invalid_json", "invalid_request_error")
    assert "line 2, column 15" in error["message"]


def test_a_body_that_ends_too_soon_is_refused_with_its_place(http):
    response = http.post("/v1/completions", content=b'{"model": "any"')
    assert response.status_code == 400
    assert "line 1, column 16" in response.json()["error"]["message"]


def test_an_error_of_the_engines_own_reaches_the_sdk(client, model):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=model, messages=QUESTION, max_tokens=0)
    assert caught.value.param == "max_tokens"
    assert "max_tokens must be at least 1" in caught.value.message


def test_an_error_of_the_engines_own_passes_through_as_it_came(http, model, admin):
    body = {"model": model, "messages": QUESTION, "max_tokens": -1}
    direct = httpx.post(f"{admin.workers()[0]['url']}/v1/chat/completions", json=body)
    routed = http.post("/v1/chat/completions", json=body)
    assert (routed.status_code, routed.content) == (direct.status_code, direct.content)
    assert direct.status_code == 400


def test_a_body_over_the_limit_is_too_large(client, model, too_long_text):
    with pytest.raises(openai.APIStatusError) as caught:
        client.completions.create(model=model, prompt=too_long_text)
    assert (caught.value.status_code, caught.value.code) == (413, "request_too_large")
    assert str(len(too_long_text) - 1) in caught.value.message


def test_the_wrong_method_is_named(client):
    with pytest.raises(openai.APIStatusError) as caught:
        client.get("/chat/completions", cast_to=object)
    assert (caught.value.status_code, caught.value.code) == (405, "method_not_allowed")
    assert "GET" in caught.value.message
    assert "POST" in caught.value.response.headers["allow"]


def test_a_path_that_no_engine_knows_is_not_found(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.post("/no-such-endpoint", body={}, cast_to=object)
    assert "no-such-endpoint" in caught.value.message


def test_a_path_outside_the_api_is_not_found(http):
    response = http.get("/no-such-page")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "unknown_url"


def test_the_client_can_go_on_after_an_error(client, model):
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="no-such-model", messages=QUESTION)
    assert client.chat.completions.create(model=model, messages=QUESTION, max_tokens=1).choices
