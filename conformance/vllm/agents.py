"""Agents' conversations: tools, calls, results, thinking and reminders, as Claude Code and Codex send them.

A conversation is scripted: every request repeats it and adds to it, and none uses what the engine sampled.
"""

import http.client
import json
import random

TOOLS = [
    ("Bash", "Runs a \"command\" in a <shell> & returns its output.", {"command": {"type": "string"}, "timeout": {"type": "number", "default": 1.5}}),
    ("Read", "Reads a file.", {"path": {"type": "string"}, "offset": {"type": "integer"}}),
]


def schema(properties):
    return {"type": "object", "properties": properties, "required": [next(iter(properties))], "additionalProperties": False}


class Conversation:
    """Steps of a conversation, in words of no API."""

    def __init__(self, number, seed, words):
        self.rng = random.Random(f"{seed}/{number}")
        self.words, self.steps, self.calls = words, [], 0
        shared = random.Random(seed + number % 4)
        self.system = ["You are an agent. ", words(shared, 10) + "\n"]

    def user(self):
        self.steps.append(("user", self.words(self.rng, 8)))

    def act(self):
        """The assistant thinks, says something, and calls one or two tools; their results follow."""
        calls = []
        for _ in range(self.rng.randint(1, 2)):
            self.calls += 1
            arguments = {"command": self.words(self.rng, 3), "n": [1, 2.0, None, True], "e": {}}
            calls.append((f"call{self.calls:05}", "Bash", arguments))
        said = self.words(self.rng, 3) if self.rng.random() < 0.5 else ""
        self.steps.append(("act", self.words(self.rng, 4), said, calls))
        self.steps.append(("results", [(name, [self.words(self.rng, 4), self.words(self.rng, 2)][: self.rng.randint(1, 2)])
                                       for name, _, _ in calls]))

    def answer(self):
        self.steps.append(("answer", self.words(self.rng, 5)))

    def remind(self):
        self.steps.append(("reminder", f"<reminder>{self.words(self.rng, 2)}</reminder>"))


def messages(conversation):
    """The request of Anthropic's API."""
    history = []
    for kind, *step in conversation.steps:
        if kind == "user":
            history.append({"role": "user", "content": [{"type": "text", "text": step[0], "cache_control": {"type": "ephemeral"}}]})
        elif kind == "answer":
            history.append({"role": "assistant", "content": [{"type": "text", "text": step[0]}]})
        elif kind == "reminder":
            history.append({"role": "system", "content": step[0]})
        elif kind == "act":
            thought, said, calls = step
            blocks = [{"type": "thinking", "thinking": thought, "signature": "s"}]
            blocks += [{"type": "text", "text": said}] if said else []
            history.append({"role": "assistant", "content": blocks + [
                {"type": "tool_use", "id": name, "name": tool, "input": arguments} for name, tool, arguments in calls]})
        else:
            history.append({"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": name, "content": texts[0] if len(texts) == 1 else
                 [{"type": "text", "text": text} for text in texts]} for name, texts in step[0]]})
    attribution = f"x-anthropic-billing-header: cc_version=2; cch={random.random()};"
    return {
        "system": [{"type": "text", "text": text} for text in [attribution, *conversation.system]],
        "tools": [{"name": name, "description": about, "input_schema": schema(properties)} for name, about, properties in TOOLS],
        "messages": history, "max_tokens": 8, "metadata": {"user_id": "u"},
    }


def responses(conversation):
    """The request of OpenAI's Responses API."""
    items = []
    for kind, *step in conversation.steps:
        if kind in ("user", "reminder"):
            role = "user" if kind == "user" else "developer"
            items.append({"type": "message", "role": role, "content": [{"type": "input_text", "text": step[0]}]})
        elif kind == "answer":
            items.append({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": step[0]}]})
        elif kind == "act":
            thought, said, calls = step
            items.append({"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": thought}]})
            items += [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": said}]}] if said else []
            items += [{"type": "function_call", "call_id": name, "name": tool, "arguments": json.dumps(arguments)}
                      for name, tool, arguments in calls]
        else:
            items += [{"type": "function_call_output", "call_id": name, "output": texts[0] if len(texts) == 1 else
                       [{"type": "input_text", "text": text} for text in texts]} for name, texts in step[0]]
    return {
        "instructions": "".join(conversation.system), "input": items, "max_output_tokens": 8, "store": False, "prompt": None,
        "tools": [{"type": "function", "name": name, "description": about, "parameters": schema(properties), "strict": False}
                  for name, about, properties in TOOLS],
    }


# For 2 s the router also counts what it sent itself, in tokens estimated from bytes; then only what engines reported.
QUIET_S = 2.2

APIS = {"messages": ("/v1/messages", messages), "responses": ("/v1/responses", responses)}


def ask(gateway, api, conversation):
    """Sends the conversation so far; what was predicted, what was found, and the tokens of the prompt."""
    path, request = APIS[api]
    connection = http.client.HTTPConnection(gateway.url.removeprefix("http://"), timeout=120)
    connection.request("POST", path, json.dumps({"model": "tiny", **request(conversation)}), {"content-type": "application/json"})
    answer = connection.getresponse()
    headers, raw = answer.headers, answer.read()
    connection.close()
    if answer.status != 200:
        raise SystemExit(f"{api}: {answer.status}: {raw.decode()[:500]}")
    usage = json.loads(raw)["usage"]
    if api == "messages":
        cached = usage.get("cache_read_input_tokens") or 0
        tokens = usage["input_tokens"] + cached + (usage.get("cache_creation_input_tokens") or 0)
    else:
        cached, tokens = (usage.get("input_tokens_details") or {}).get("cached_tokens") or 0, usage["input_tokens"]
    predicted = headers["x-warmroute-cached-tokens"]
    return int(predicted) if predicted.isdigit() else None, cached, tokens, headers["x-warmroute-worker"]


def converse(gateway, number, api, seed, words, turns=3):
    """One conversation: each turn asks before and after the tools ran."""
    conversation, rows = Conversation(number, seed, words), []

    def request():
        predicted, cached, tokens, worker = ask(gateway, api, conversation)
        rows.append((api, len(rows), predicted, cached, tokens, worker))
        gateway.settle(QUIET_S)

    for turn in range(turns):
        conversation.user()
        request()
        conversation.act()
        # Claude Code's reminders come between messages; a developer's message would move to the front of the prompt.
        if api == "messages" and turn == 1:
            conversation.remind()
        request()
        conversation.answer()
    return rows
