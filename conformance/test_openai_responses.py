"""The responses endpoint."""


def ask(client, model, **options):
    return client.responses.create(model=model, input="What is in the cache?", **options)


def test_a_response_comes_back_whole(client, model):
    response = ask(client, model, max_output_tokens=8)
    assert response.object == "response"
    assert response.output_text
    assert response.usage.output_tokens == 8
    assert response.usage.total_tokens == response.usage.input_tokens + 8


def test_a_response_cut_at_its_limit_says_it_is_incomplete(client, model):
    response = ask(client, model, max_output_tokens=4)
    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"


def test_instructions_count_as_prompt(client, model):
    without = ask(client, model, max_output_tokens=2)
    with_them = ask(client, model, max_output_tokens=2, instructions="Answer in the manner of a station clock.")
    assert with_them.usage.input_tokens > without.usage.input_tokens


def test_a_streams_events_come_in_order(client, model):
    events = list(ask(client, model, max_output_tokens=6, stream=True))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.incomplete"
    assert kinds.index("response.output_item.added") < kinds.index("response.output_text.delta")
    assert kinds.index("response.output_text.done") < kinds.index("response.output_item.done")
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_a_streams_deltas_add_up_to_its_text(client, model):
    events = list(ask(client, model, max_output_tokens=16, stream=True))
    deltas = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert deltas == events[-1].response.output_text
    assert deltas == ask(client, model, max_output_tokens=16).output_text
