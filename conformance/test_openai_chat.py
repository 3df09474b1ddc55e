"""Chat completions, plain and streamed."""

QUESTION = [{"role": "user", "content": "How warm is the route?"}]


def ask(client, model, **options):
    return client.chat.completions.create(model=model, messages=QUESTION, **options)


def text_of(chunks):
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def test_an_answer_comes_back_whole(client, model):
    answer = ask(client, model, max_tokens=8)
    assert answer.object == "chat.completion"
    assert answer.model == model
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_max_tokens_ends_an_answer(client, model):
    answer = ask(client, model, max_tokens=5)
    assert answer.usage.completion_tokens == 5
    assert answer.choices[0].finish_reason == "length"


def test_max_completion_tokens_ends_an_answer_too(client, model):
    answer = ask(client, model, max_completion_tokens=6)
    assert answer.usage.completion_tokens == 6


def test_a_stop_word_ends_an_answer_before_it(client, model):
    whole = ask(client, model, max_tokens=40).choices[0].message.content
    stop = whole.split()[3]
    answer = ask(client, model, max_tokens=40, stop=[stop])
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.content == whole[: whole.index(stop)]


def test_n_gives_as_many_choices(client, model):
    answer = ask(client, model, max_tokens=4, n=3)
    assert sorted(choice.index for choice in answer.choices) == [0, 1, 2]
    assert answer.usage.completion_tokens == 12


def test_a_stream_brings_the_role_then_the_text_then_the_reason_it_ended(client, model):
    chunks = list(ask(client, model, max_tokens=12, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices[0].finish_reason == "length"
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_stream_says_what_the_plain_answer_says(client, model):
    plain = ask(client, model, max_tokens=24).choices[0].message.content
    assert text_of(ask(client, model, max_tokens=24, stream=True)) == plain


def test_a_stream_arrives_in_pieces_and_not_at_the_end(http, model):
    body = {"model": model, "messages": QUESTION, "max_tokens": 40, "stream": True}
    with http.stream("POST", "/v1/chat/completions", json=body) as response:
        reads = [read for read in response.iter_raw() if read]
    assert len(reads) > 10, "40 tokens came in a handful of reads: something held them back"


def test_a_stream_ends_with_done_and_nothing_after(http, model):
    body = {"model": model, "messages": QUESTION, "max_tokens": 4, "stream": True}
    with http.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        events = [line for line in response.iter_lines() if line]
    assert all(event.startswith("data: ") for event in events)
    assert events[-1] == "data: [DONE]"
    assert events.count("data: [DONE]") == 1


def test_a_streams_choices_are_told_apart_by_their_index(client, model):
    chunks = list(ask(client, model, max_tokens=6, n=2, stream=True))
    ended = sorted(c.index for chunk in chunks for c in chunk.choices if c.finish_reason)
    assert ended == [0, 1]


def test_include_usage_adds_one_last_chunk_without_choices(client, model):
    chunks = list(ask(client, model, max_tokens=7, stream=True, stream_options={"include_usage": True}))
    *before, last = chunks
    assert last.choices == []
    assert last.usage.completion_tokens == 7
    assert all(chunk.usage is None for chunk in before)


def test_a_stream_whose_client_did_not_ask_for_usage_has_none(client, model):
    chunks = list(ask(client, model, max_tokens=3, stream=True))
    assert all(chunk.usage is None and chunk.choices for chunk in chunks)


def test_the_sdks_own_stream_reader_puts_the_answer_together(client, model):
    whole = ask(client, model, max_tokens=40).choices[0].message.content
    stop = whole.split()[3]  # The reader raises on an answer that was cut at its length.
    with client.chat.completions.stream(model=model, messages=QUESTION, max_tokens=40, stop=stop) as stream:
        kinds = [event.type for event in stream]
        choice = stream.get_final_completion().choices[0]
    assert "content.delta" in kinds and "content.done" in kinds
    assert (choice.message.content, choice.finish_reason) == (whole[: whole.index(stop)], "stop")
