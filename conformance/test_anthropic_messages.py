"""Messages, plain and streamed, through Anthropic's SDK."""

QUESTION = [{"role": "user", "content": "How warm is the route?"}]
TOOL = {
    "name": "departures",
    "description": "The next departures from a station.",
    "input_schema": {"type": "object", "properties": {"station": {"type": "string"}}},
}


def ask(claude, model, messages=QUESTION, **options):
    return claude.messages.create(model=model, messages=messages, max_tokens=8, **options)


def test_a_message_comes_back_whole(claude, model):
    message = ask(claude, model)
    assert (message.type, message.role, message.model) == ("message", "assistant", model)
    assert message.content[0].type == "text" and message.content[0].text
    assert message.stop_reason == "max_tokens"
    assert message.usage.output_tokens == 8


def test_a_stop_sequence_ends_a_message_and_is_named(claude, model):
    whole = claude.messages.create(model=model, messages=QUESTION, max_tokens=40).content[0].text
    stop = whole.split()[3]
    message = claude.messages.create(model=model, messages=QUESTION, max_tokens=40, stop_sequences=[stop])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)
    assert message.content[0].text == whole[: whole.index(stop)]


def test_a_system_prompt_reaches_the_engine(claude, model):
    system = "You are the clock of a small station and speak in times."
    assert ask(claude, model, system=system).usage.input_tokens > ask(claude, model).usage.input_tokens


def test_tools_reach_the_engine(claude, model):
    assert ask(claude, model, tools=[TOOL]).usage.input_tokens > ask(claude, model).usage.input_tokens


def test_content_may_come_in_blocks(claude, model):
    blocks = [{"role": "user", "content": [{"type": "text", "text": QUESTION[0]["content"]}]}]
    assert ask(claude, model, blocks).usage.input_tokens == ask(claude, model).usage.input_tokens


def test_tokens_are_counted_as_they_are_used(claude, model):
    counted = claude.messages.count_tokens(model=model, messages=QUESTION)
    assert counted.input_tokens == ask(claude, model).usage.input_tokens


def test_a_repeated_prompt_reports_what_was_read_from_the_cache(claude, model, fresh_text):
    messages = [{"role": "user", "content": fresh_text}]
    first, second = (ask(claude, model, messages).usage for _ in range(2))
    assert not first.cache_read_input_tokens
    assert second.cache_read_input_tokens > 0


def test_a_streams_events_come_in_order(claude, model):
    events = list(ask(claude, model, stream=True))
    kinds = [event.type for event in events if event.type != "ping"]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert events[0].message.usage.input_tokens > 0
    last_delta = next(event for event in events if event.type == "message_delta")
    assert last_delta.delta.stop_reason == "max_tokens"
    assert last_delta.usage.output_tokens == 8


def test_a_stream_says_what_the_plain_message_says(claude, model):
    plain = ask(claude, model).content[0].text
    with claude.messages.stream(model=model, messages=QUESTION, max_tokens=8) as stream:
        assert "".join(stream.text_stream) == plain
        assert stream.get_final_message().usage.output_tokens == 8
