"""A gateway, engines that do as they are told, and clients."""

import contextlib
import http.client
import http.server
import json
import signal
import subprocess
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

PROMPT = "hush-prompt"
SECRET = "hush-header"
MODEL = "m"


class Engine:
    """An engine that keeps the headers of what it gets. `mode`: ok, a status, break, slow."""

    def __init__(self):
        self.mode, self.headers = "ok", []
        self.release = threading.Event()
        engine = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                models = {"object": "list", "data": [{"id": MODEL, "object": "model"}]}
                self.reply(200, json.dumps(models if self.path == "/v1/models" else {}).encode())

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])) or b"{}")
                engine.headers.append({name.lower(): value for name, value in self.headers.items()})
                if isinstance(engine.mode, int):
                    return self.reply(engine.mode, b'{"error":{"message":"told to"}}')
                usage = {"prompt_tokens": 40, "completion_tokens": 3, "total_tokens": 43,
                         "prompt_tokens_details": {"cached_tokens": 16}}
                if not body.get("stream"):
                    return self.reply(200, json.dumps({"object": "chat.completion", "usage": usage, "choices": []}).encode())
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.send_header("transfer-encoding", "chunked")
                self.end_headers()
                self.event({"choices": [{"index": 0, "delta": {"content": "one"}}]})
                if engine.mode == "break":
                    return self.connection.close()
                if engine.mode == "slow":
                    engine.release.wait(20)
                self.event({"choices": [], "usage": usage})
                self.chunk(b"data: [DONE]\n\n")
                self.wfile.write(b"0\r\n\r\n")

            def event(self, value):
                self.chunk(b"data: " + json.dumps(value).encode() + b"\n\n")

            def chunk(self, data):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                self.wfile.flush()

            def reply(self, status, body):
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self):
        self.release.set()
        self.server.shutdown()
        self.server.server_close()


class Gateway:
    def __init__(self, binary, urls, *flags, env=None):
        self.log = tempfile.TemporaryFile(mode="w+")
        command = [binary, "serve", *urls, "--host", "127.0.0.1", "--port", "0", "--admin-port", "0", *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True, env=env)
        line = self.process.stdout.readline()
        assert line, f"the gateway did not start: {self.logged()}"
        announced = json.loads(line)
        self.url, self.admin = announced["listening"], announced["admin"]

    def logged(self):
        self.log.seek(0)
        return self.log.read()

    def metric(self, result):
        page = urllib.request.urlopen(f"{self.admin}/metrics", timeout=10).read().decode()
        lines = [line for line in page.splitlines() if line.startswith(f'warmroute_trace_spans_total{{result="{result}"}}')]
        return int(float(lines[0].split()[-1])) if lines else None

    def get(self, path):
        return urllib.request.urlopen(f"{self.admin}{path}", timeout=10).read().decode()

    def stop(self):
        """Stops the gateway. Returns how long that took."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        return time.monotonic() - began

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@contextlib.contextmanager
def world(*things):
    """Closes everything at the end."""
    try:
        yield things
    finally:
        for thing in reversed(things):
            thing.close()


def connect(gateway):
    host, port = gateway.url.removeprefix("http://").split(":")
    return http.client.HTTPConnection(host, int(port), timeout=30)


def body_of(stream=True, **more):
    messages = [{"role": "user", "content": f"{PROMPT} " * 40}]
    return json.dumps({"model": MODEL, "messages": messages, "stream": stream, **more})


def send(gateway, request_id, path="/v1/chat/completions", body=None, method="POST", **headers):
    """Status and body of an answer."""
    connection = connect(gateway)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body_of() if body is None else body, {"x-request-id": request_id, **named})
    answer = connection.getresponse()
    try:
        content = answer.read()
    except http.client.IncompleteRead as broken:
        content = broken.partial
    connection.close()
    return answer.status, content


def folder():
    return tempfile.TemporaryDirectory()


__all__ = ["Engine", "Gateway", "MODEL", "PROMPT", "Path", "SECRET", "body_of", "connect", "folder", "send", "world"]
