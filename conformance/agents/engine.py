"""A scripted engine for agents: one tool call, then text, on /v1/messages and /v1/responses.

    python3 engine.py PORT RECORD

Every request is appended to RECORD as a line of JSON: path, headers that name a session or a protocol, body, and how
it ended. A prompt that asks to "count slowly" is answered with a stream that never ends, for clients that leave. Standard
library only.
"""

import itertools
import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MODEL = "warm-model"
SHELLS = {"Bash", "shell", "shell_command", "exec_command", "local_shell"}
KEPT_HEADERS = ("user-agent", "x-claude-code-session-id", "session_id", "session-id", "conversation_id", "x-app",
                "upgrade", "openai-beta", "x-client-request-id", "thread_id", "thread-id")
numbers = itertools.count(1)
record_lock = threading.Lock()


def texts(value):
    """All strings below a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts(inner)


def last_turns(body):
    """What came after the assistant's last words."""
    turns = body.get("messages", body.get("input", []))
    if isinstance(turns, str):
        return [turns]
    for place in range(len(turns) - 1, -1, -1):
        turn = turns[place]
        if turn.get("role") == "assistant" or turn.get("type") == "function_call":
            return turns[place + 1:]
    return turns


def shell_of(body):
    for tool in body.get("tools") or []:
        if tool.get("name") in SHELLS:
            return tool
    return None


def is_result(turns):
    return any("tool_result" in json.dumps(turn) or turn.get("type") == "function_call_output"
               for turn in turns if isinstance(turn, dict))


class Engine(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        if self.headers.get("upgrade"):
            self.note(None, "upgrade")
        if self.path.startswith("/v1/models"):
            return self.whole({"object": "list", "data": [{"id": MODEL, "object": "model", "max_model_len": 200000}]})
        self.whole({"status": "ok"}, 200 if self.path in ("/health", "/version") else 404)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}")
        path = self.path.split("?")[0]
        if path == "/v1/messages/count_tokens":
            return self.whole({"input_tokens": len(json.dumps(body)) // 4})
        if path not in ("/v1/messages", "/v1/responses"):
            return self.whole({"error": {"message": "no such path"}}, 404)
        ended = "broken"
        try:
            is_endless = "count slowly" in " ".join(texts(last_turns(body)))
            answer = self.answer(path, body, is_endless)
            if body.get("stream"):
                self.stream(answer, is_endless)
            else:
                self.whole(answer.document)
            ended = "whole"
        except OSError:
            ended = "left"
        finally:
            self.note(body, ended)

    def answer(self, path, body, is_endless):
        kind = Messages if path == "/v1/messages" else Responses
        shell = shell_of(body)
        if shell is None or is_endless or is_result(last_turns(body)):
            return kind(body).text("The command has printed what it should.")
        return kind(body).call(shell)

    def note(self, body, ended):
        headers = {name: self.headers[name] for name in KEPT_HEADERS if self.headers.get(name)}
        line = json.dumps({"path": self.path, "headers": headers, "ended": ended, "body": body})
        with record_lock, open(self.server.record, "a") as file:
            file.write(line + "\n")

    def whole(self, document, status=200):
        content = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def stream(self, answer, is_endless):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        events = list(answer.events())
        if is_endless:
            # Everything before the first text, then text until the client leaves.
            place = next(at for at, event in enumerate(events) if "delta" in event["type"])
            for event in events[:place]:
                self.event(event)
            for _ in range(600):
                self.event(events[place])
                time.sleep(0.1)
        for event in events:
            self.event(event)
        self.wfile.write(b"0\r\n\r\n")

    def event(self, event):
        data = f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()


class Messages:
    """An answer of Anthropic's API."""

    def __init__(self, body):
        tokens = len(json.dumps(body)) // 4
        self.document = {"id": f"msg_{next(numbers)}", "type": "message", "role": "assistant", "model": MODEL,
                         "content": [], "stop_reason": None, "stop_sequence": None,
                         "usage": {"input_tokens": tokens, "output_tokens": 5}}

    def text(self, text):
        self.delta = {"type": "text_delta", "text": text}
        return self.finish({"type": "text", "text": text}, "end_turn")

    def call(self, tool):
        arguments = {"command": "echo warm", "description": "Print a word"}
        self.delta = {"type": "input_json_delta", "partial_json": json.dumps(arguments)}
        block = {"type": "tool_use", "id": f"toolu_{next(numbers)}", "name": tool["name"], "input": arguments}
        return self.finish(block, "tool_use")

    def finish(self, block, reason):
        self.document.update(content=[block], stop_reason=reason)
        return self

    def events(self):
        empty = {**self.document, "content": [], "stop_reason": None}
        block = dict(self.document["content"][0])
        block["text" if block["type"] == "text" else "input"] = "" if block["type"] == "text" else {}
        yield {"type": "message_start", "message": empty}
        yield {"type": "content_block_start", "index": 0, "content_block": block}
        yield {"type": "content_block_delta", "index": 0, "delta": self.delta}
        yield {"type": "content_block_stop", "index": 0}
        delta = {"stop_reason": self.document["stop_reason"], "stop_sequence": None}
        yield {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 5}}
        yield {"type": "message_stop"}


class Responses:
    """An answer of OpenAI's Responses API."""

    def __init__(self, body):
        tokens = len(json.dumps(body)) // 4
        self.delta = None
        self.document = {"id": f"resp_{next(numbers)}", "object": "response", "status": "completed", "model": MODEL,
                         "output": [], "usage": {"input_tokens": tokens, "output_tokens": 5,
                                                 "total_tokens": tokens + 5,
                                                 "input_tokens_details": {"cached_tokens": 0},
                                                 "output_tokens_details": {"reasoning_tokens": 0}}}

    def text(self, text):
        self.delta = text
        part = {"type": "output_text", "text": text, "annotations": []}
        self.document["output"] = [{"type": "message", "id": f"msg_{next(numbers)}", "role": "assistant",
                                    "status": "completed", "content": [part]}]
        return self

    def call(self, tool):
        command = {"cmd": "echo warm"} if tool["name"] == "exec_command" else {"command": "echo warm"}
        if tool["name"] == "shell":
            command = {"command": ["echo", "warm"]}
        self.document["output"] = [{"type": "function_call", "id": f"fc_{next(numbers)}",
                                    "call_id": f"call_{next(numbers)}", "name": tool["name"],
                                    "arguments": json.dumps(command), "status": "completed"}]
        return self

    def events(self):
        item = self.document["output"][0]
        yield {"type": "response.created", "response": {**self.document, "status": "in_progress", "output": []}}
        yield {"type": "response.output_item.added", "output_index": 0, "item": item}
        if self.delta:
            yield {"type": "response.output_text.delta", "item_id": item["id"], "output_index": 0,
                   "content_index": 0, "delta": self.delta}
        yield {"type": "response.output_item.done", "output_index": 0, "item": item}
        yield {"type": "response.completed", "response": self.document}


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Engine)
    server.record = sys.argv[2]
    print(f"listening on {server.server_address[1]}", flush=True)
    server.serve_forever()
