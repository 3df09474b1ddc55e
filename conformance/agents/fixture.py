"""Shortens recorded requests to fixtures: the clients' structure with other words, and no names of a machine or a user.

Equal texts stay equal and different ones different, so that prompts share and part where the real ones do.
"""

import hashlib
import json
import os

# Fields whose strings are part of a protocol and not of a prompt.
KEPT = {"type", "role", "name", "model", "tool_choice", "effort", "ttl", "summary", "status", "include"}
IDS = {"id", "call_id", "tool_use_id", "prompt_cache_key"}
TOOLS_MAX = 4
WORDS_MAX = 30
SYLLABLES = ["ba", "de", "fi", "go", "lu", "ma", "ne", "pi", "ro", "su", "ta", "ve", "wi", "xo", "ya", "zu"]
ATTRIBUTION = "x-anthropic-billing-header"


class Shortener:
    def __init__(self):
        self.ids = {}

    def id(self, text):
        return self.ids.setdefault(text, f"id-{len(self.ids) + 1}")

    def words(self, text):
        """Other words, as many as the text has, up to a limit."""
        if text.startswith(ATTRIBUTION):
            return text
        wanted, words, digest = min(len(text.split()), WORDS_MAX), [], text.encode()
        while len(words) < wanted:
            digest = hashlib.sha256(digest).digest()
            pairs = zip(digest[::2], digest[1::2])
            words += [SYLLABLES[a % 16] + SYLLABLES[a // 16] + SYLLABLES[b % 16] for a, b in pairs]
        return " ".join(words[:wanted])

    def value(self, key, value):
        if isinstance(value, dict):
            return {name: self.value(name, inner) for name, inner in value.items()}
        if isinstance(value, list):
            return [self.value(key, inner) for inner in value]
        if not isinstance(value, str) or key in KEPT:
            return value
        return self.id(value) if key in IDS else self.words(value)

    def tool(self, tool):
        kept = {name: tool[name] for name in ("type", "name") if name in tool}
        if "description" in tool:
            kept["description"] = self.words(tool["description"])
        schema = "input_schema" if "input_schema" in tool else "parameters"
        return {**kept, schema: {"type": "object", "properties": {}}} if schema in tool else kept

    def request(self, request):
        body = dict(request["body"])
        body.pop("client_metadata", None)
        body.pop("metadata", None)
        body["tools"] = [self.tool(tool) for tool in body.get("tools", [])[:TOOLS_MAX]]
        short = {name: self.value(name, value) if name != "tools" else value for name, value in body.items()}
        session = next((value for name, value in request["headers"].items() if "session" in name), "")
        return {"path": request["path"].split("?")[0], "session": self.id(session), "body": short}


def write(folder, name, requests):
    shortener = Shortener()
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, f"{name}.jsonl"), "w") as file:
        for request in requests:
            if request["ended"] == "whole":
                file.write(json.dumps(shortener.request(request)) + "\n")
