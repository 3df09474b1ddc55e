"""Kills a vLLM in the middle of streams and compares the answers with those without the kill.

The model has no trained weights, so its text is noise. Sampling is restricted to whole words, whose text is tokenized
again as it was generated; a trained model says such text by itself.
"""

import argparse
import http.client
import json
import pathlib
import tempfile
import urllib.request

from world import Engine, Gateway, until

WORDS = " router request replica cache prefix longest whose holds sends the of to it".split(" ")[1:]
# Enough that the engine is still at work when the client has read its first events and the kill arrives.
TOKENS = 1400
KILL_AFTER = 20


def post(url, path, body):
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


def whole_words(engine):
    """Ids of words that are one token, with the space before them."""
    tokenize = lambda text: post(engine.url, "/tokenize", {"model": "tiny", "prompt": text, "add_special_tokens": False})["tokens"]
    ids = [tokenize(" " + word) for word in WORDS]
    return [one[0] for one in ids if len(one) == 1]


class Stream:
    """A stream as its client sees it. After `kill_after` events, `kill` gets the worker's URL."""

    def __init__(self, gateway, path, body, kill_after=None, kill=None):
        connection = http.client.HTTPConnection(gateway.url.removeprefix("http://"), timeout=120)
        body = {"model": "tiny", "stream": True, "temperature": 0, "max_tokens": TOKENS,
                "stream_options": {"include_usage": True}, **body}
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        response = connection.getresponse()
        self.worker = response.headers["x-warmroute-worker"]
        self.text, self.ids, self.roles, self.finish, self.usage, self.done, events = "", set(), 0, None, None, 0, 0
        while line := response.readline():
            data = line.decode().strip().removeprefix("data: ")
            if not line.startswith(b"data: "):
                continue
            if data == "[DONE]":
                self.done += 1
                continue
            event = json.loads(data)
            if "error" in event or "id" not in event:
                raise SystemExit(f"the stream failed: {data}")
            self.ids.add(event["id"])
            for choice in event["choices"]:
                delta = choice.get("delta", {})
                self.text += delta.get("content") or choice.get("text") or ""
                self.roles += "role" in delta
                self.finish = choice.get("finish_reason") or self.finish
            self.usage = event.get("usage") or self.usage
            events += 1
            if events == kill_after:
                kill(self.worker)
        connection.close()

    def seen(self):
        counts = [self.usage[name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")]
        return {"text": self.text, "ids": len(self.ids), "roles": self.roles, "finish": self.finish, "usage": counts,
                "done": self.done}


def main():
    arguments = argparse.ArgumentParser()
    for name in ("binary", "venv", "model"):
        arguments.add_argument(f"--{name}", required=True)
    args = arguments.parse_args()
    logs = pathlib.Path(tempfile.mkdtemp(prefix="survive-"))
    print(f"logs: {logs}")
    engines = [Engine(args, logs, f"engine{n}", 400) for n in range(2)]
    gateway = None
    try:
        [engine.start() for engine in engines]
        [engine.ready(900) for engine in engines]
        gateway = Gateway(args.binary, logs, "gateway", "--continue-streams", "--worker-urls", *[one.url for one in engines])
        ready = lambda: [worker["state"] for worker in gateway.workers().values()] == ["ready"] * 2
        allowed = {"allowed_token_ids": whole_words(engines[0])}
        requests = [
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Where does it go?"}], **allowed}),
            # The CPU worker of vLLM 0.32.0 dies when the first prompt that it gets has only four tokens.
            ("/v1/completions", {"prompt": "A router sends each request to the replica whose cache holds " * 3, **allowed}),
        ]
        for number, (path, body) in enumerate(requests):
            until("both engines are ready", ready, 900)
            whole = Stream(gateway, path, body)
            dying = []

            def kill(url):
                victim = next(engine for engine in engines if engine.url == url)
                victim.kill()
                dying.append(victim)

            broken = Stream(gateway, path, body, kill_after=KILL_AFTER, kill=kill)
            continued = gateway.metric("warmroute_stream_continuations_total")
            if whole.seen() != broken.seen() or continued != number + 1:
                raise SystemExit(f"{path}: {whole.seen()}\n{broken.seen()}\n{continued} continued")
            print(f"{path}: kill -9 after {KILL_AFTER} events, the same {len(whole.text)} characters, usage {whole.seen()['usage']}")
            if number + 1 < len(requests):
                dying[0].start()
                dying[0].ready(900)
    finally:
        [process.kill() for process in [*engines, gateway] if process]
    print("streams survive their engine")


main()
