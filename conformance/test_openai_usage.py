"""What the engine counted reaches the client: cached tokens, and tools that took part in the prompt."""

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "departures",
            "description": "The next departures from a station, with their delay in minutes.",
            "parameters": {"type": "object", "properties": {"station": {"type": "string"}}},
        },
    }
]


def ask(client, model, text, **options):
    messages = [{"role": "user", "content": text}]
    return client.chat.completions.create(model=model, messages=messages, max_tokens=2, **options)


def cached(usage):
    """Engines leave the field out when nothing was cached."""
    return (usage.prompt_tokens_details and usage.prompt_tokens_details.cached_tokens) or 0


def test_a_repeated_prompt_is_cached_the_second_time(client, model, fresh_text):
    first, second = (ask(client, model, fresh_text).usage for _ in range(2))
    assert cached(first) == 0
    assert 0 < cached(second) < second.prompt_tokens
    assert second.prompt_tokens - cached(second) <= 16, "more than the last block was computed again"


def test_a_repeated_prompt_goes_where_it_was(client, model, fresh_text):
    create = client.chat.completions.with_raw_response.create
    messages = [{"role": "user", "content": fresh_text}]
    answers = [create(model=model, messages=messages, max_tokens=1) for _ in range(3)]
    assert len({answer.headers["x-warmroute-worker"] for answer in answers}) == 1


def test_a_streams_last_chunk_reports_cached_tokens(client, model, fresh_text):
    ask(client, model, fresh_text)
    stream = ask(client, model, fresh_text, stream=True, stream_options={"include_usage": True})
    assert cached(list(stream)[-1].usage) > 0


def test_the_next_turn_of_a_conversation_finds_the_turn_before(client, model, fresh_text):
    first = ask(client, model, fresh_text)
    turns = [
        {"role": "user", "content": fresh_text},
        {"role": "assistant", "content": first.choices[0].message.content},
        {"role": "user", "content": "And then?"},
    ]
    second = client.chat.completions.create(model=model, messages=turns, max_tokens=2)
    assert cached(second.usage) >= first.usage.prompt_tokens - 32


def test_a_response_reports_cached_tokens(client, model, fresh_text):
    usages = [client.responses.create(model=model, input=fresh_text, max_output_tokens=1).usage for _ in range(2)]
    assert usages[0].input_tokens_details.cached_tokens == 0
    assert usages[1].input_tokens_details.cached_tokens > 0


def test_tools_reach_the_engine(client, model, fresh_text):
    without = ask(client, model, fresh_text).usage.prompt_tokens
    with_them = ask(client, model, fresh_text, tools=TOOLS, tool_choice="auto").usage.prompt_tokens
    assert with_them > without


def test_a_tools_result_reaches_the_engine(client, model, fresh_text):
    call = {"id": "call_1", "type": "function", "function": {"name": "departures", "arguments": '{"station":"Bern"}'}}
    turns = [
        {"role": "user", "content": fresh_text},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "12:04 to Basel, on time"},
    ]
    answer = client.chat.completions.create(model=model, messages=turns, tools=TOOLS, max_tokens=2)
    assert answer.usage.prompt_tokens > ask(client, model, fresh_text, tools=TOOLS).usage.prompt_tokens
