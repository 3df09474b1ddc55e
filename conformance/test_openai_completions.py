"""The older completions endpoint, which engines still serve."""

PROMPT = "Once upon a time"


def test_a_completion_comes_back_whole(client, model):
    answer = client.completions.create(model=model, prompt=PROMPT, max_tokens=6)
    assert answer.object == "text_completion"
    assert answer.choices[0].text
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 6


def test_a_stream_says_what_the_plain_completion_says(client, model):
    plain = client.completions.create(model=model, prompt=PROMPT, max_tokens=20).choices[0].text
    chunks = list(client.completions.create(model=model, prompt=PROMPT, max_tokens=20, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == plain
    assert chunks[-1].choices[0].finish_reason == "length"


def test_a_stop_word_ends_a_completion_before_it(client, model):
    whole = client.completions.create(model=model, prompt=PROMPT, max_tokens=40).choices[0].text
    stop = whole.split()[3]
    answer = client.completions.create(model=model, prompt=PROMPT, max_tokens=40, stop=stop)
    assert answer.choices[0].text == whole[: whole.index(stop)]
    assert answer.choices[0].finish_reason == "stop"


def test_several_prompts_get_a_choice_each(client, model):
    answer = client.completions.create(model=model, prompt=["one", "two"], max_tokens=3)
    assert sorted(choice.index for choice in answer.choices) == [0, 1]
    assert answer.usage.completion_tokens == 6


def test_a_prompt_may_be_token_ids(client, model):
    answer = client.completions.create(model=model, prompt=[1, 2, 3, 4, 5, 6, 7], max_tokens=2)
    assert answer.usage.prompt_tokens == 7
