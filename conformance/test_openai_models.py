"""The list of models, merged from the fleet."""

import openai
import pytest


def test_eight_engines_with_one_model_make_a_list_of_one(client, model, admin):
    assert len(admin.workers()) == 8
    assert [entry.id for entry in client.models.list()] == [model]


def test_a_listed_model_can_be_retrieved(client, model):
    entry = client.models.retrieve(model)
    assert (entry.id, entry.object) == (model, "model")


def test_a_model_that_nobody_serves_is_not_found(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("no-such-model")
    assert caught.value.code == "model_not_found"
    assert "no-such-model" in caught.value.message
