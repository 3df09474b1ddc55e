"""Runs Claude Code and Codex against a gateway and checks what engines and clients saw. Standard library only."""

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL, DEMO_MODEL = "warm-model", "llama-3.1-8b"
TIMEOUT_S = 180
FIRST, SECOND = "Print the word warm.", "Once more, please."
SLOW = "Please count slowly."


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def eventually(what, happened):
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        found = happened()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError(f"it never happened: {what}")


class World:
    """Engines, a gateway and a home folder for the clients."""

    def __init__(self, args):
        self.args, self.processes = args, []
        self.folder = tempfile.mkdtemp(prefix="warmroute-agents-")
        self.work = os.path.join(self.folder, "work")
        os.mkdir(self.work)
        self.records = []
        if args.demo:
            self.port, self.admin = self.start_demo()
        else:
            urls = args.engines or [self.start_engine(number) for number in (1, 2)]
            self.port, self.admin = free_port(), free_port()
            self.start([args.binary, "serve", *urls, "--host", "127.0.0.1", "--port", str(self.port), "--admin-port",
                        str(self.admin)], "gateway.log")
        eventually("a worker serves the model", lambda: any(
            model["id"] == args.model for model in (self.get(self.port, "/v1/models") or {}).get("data", [])))

    def start(self, command, log):
        output = open(os.path.join(self.folder, log), "w")
        self.processes.append(subprocess.Popen(command, stdout=output, stderr=output))

    def start_demo(self):
        """The ports of the demo's gateway and of its admin listener."""
        demo = subprocess.Popen([self.args.binary, "demo", "--keep", "--engines", "2"], stdout=subprocess.PIPE, text=True,
                                stderr=subprocess.DEVNULL)
        self.processes.append(demo)
        said = json.loads(demo.stdout.readline())
        return [int(said[name].rsplit(":", 1)[1]) for name in ("listening", "admin")]

    def start_engine(self, number):
        port, record = free_port(), os.path.join(self.folder, f"engine-{number}.jsonl")
        open(record, "w").close()
        self.records.append(record)
        self.start([sys.executable, os.path.join(HERE, "engine.py"), str(port), record], f"engine-{number}.log")
        return f"http://127.0.0.1:{port}"

    def text(self, port, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as page:
            return page.read().decode()

    def get(self, port, path):
        try:
            return json.loads(self.text(port, path))
        except OSError:
            return None

    def seen(self, path):
        """Requests of one API that the engines saw: number of the engine and the request."""
        for number, record in enumerate(self.records, 1):
            with open(record) as lines:
                for line in lines:
                    request = json.loads(line)
                    if request["path"].split("?")[0] == path and request["body"]:
                        yield number, request

    def stop(self):
        for process in self.processes:
            process.kill()
            process.wait()
        shutil.rmtree(self.folder)


class ClaudeCode:
    name, path, session = "claude-code", "/v1/messages", "x-claude-code-session-id"

    def command(self, world, prompt, turn):
        client = os.path.join(world.args.clients, "claude")
        go_on = ["--continue"] if turn else []
        return [client, "-p", prompt, *go_on, "--allowedTools", "Bash", "--output-format", "json"], {
            "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{world.port}", "ANTHROPIC_AUTH_TOKEN": "none",
            "ANTHROPIC_MODEL": world.args.model, "ANTHROPIC_SMALL_FAST_MODEL": world.args.model,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1",
        }

    def is_answered(self, output):
        return any(json.loads(line).get("subtype") == "success" for line in output.splitlines()
                   if line.startswith("{"))


class Codex:
    name, path, session = "codex", "/v1/responses", "session-id"

    def __init__(self, websockets="false"):
        self.websockets = websockets

    def command(self, world, prompt, turn):
        client = os.path.join(world.args.clients, "codex")
        provider = (f'model_providers.warm={{name="warm",base_url="http://127.0.0.1:{world.port}/v1",'
                    f'wire_api="responses",env_key="WARM_KEY",supports_websockets={self.websockets}}}')
        go_on = ["resume", "--last"] if turn else []
        return [client, "exec", *go_on, "--skip-git-repo-check", "--json",
                "--dangerously-bypass-approvals-and-sandbox", "-m", world.args.model, "-c", "model_provider=warm",
                "-c", provider, prompt], {"WARM_KEY": "none"}

    def is_answered(self, output):
        return '"turn.completed"' in output


def start(world, client, prompt, turn=0):
    command, more = client.command(world, prompt, turn)
    environment = {name: os.environ[name] for name in ("PATH", "LANG", "TERM") if name in os.environ}
    environment.update(more, HOME=world.folder)
    return subprocess.Popen(command, env=environment, cwd=world.work, stdin=subprocess.DEVNULL, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)


def ask(world, client, prompt, turn=0):
    process = start(world, client, prompt, turn)
    output, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0 and client.is_answered(output), f"{client.name}: {output}"
    return output


def turns_of(request):
    return request["body"].get("messages") or request["body"].get("input")


def check_conversation(world, client):
    """Two prompts with a tool call each: four requests of one session, on one engine, each longer than the last."""
    for turn, prompt in enumerate((FIRST, SECOND)):
        ask(world, client, prompt, turn)
    if not world.records:
        return "answered"
    seen = list(world.seen(client.path))
    engines = {engine for engine, _ in seen}
    sessions = {request["headers"].get(client.session) for _, request in seen}
    lengths = [len(turns_of(request)) for _, request in seen]
    assert len(seen) == 4, f"{len(seen)} requests"
    assert len(engines) == 1, f"the conversation was spread over {engines}"
    assert len(sessions) == 1 and None not in sessions, f"sessions {sessions}"
    assert lengths == sorted(set(lengths)), f"turns {lengths}"
    assert all(request["ended"] == "whole" and request["body"].get("stream") for _, request in seen)
    return f"4 streamed requests with 2 tool calls on one engine, {lengths} turns"


def check_caches(world):
    """What was predicted of the engines' caches, and what they found."""
    metrics = world.text(world.admin, "/metrics")

    def total(name):
        rows = [line for line in metrics.splitlines() if line.split("{")[0].split(" ")[0] == f"warmroute_{name}_tokens_total"]
        return sum(float(row.rsplit(" ", 1)[1]) for row in rows)

    views = sorted({worker["view"] for worker in world.get(world.admin, "/workers")["workers"]})
    found = total("cached")
    assert found, "nothing was found in any cache"
    return f"views {views}; {found:.0f} cached tokens, of which {total('missed'):.0f} were not predicted; {total('stale'):.0f} predicted and not found"


def check_prefixes(world):
    """Nothing within a conversation of either client breaks its prefix."""
    page = world.get(world.admin, "/prefixes")
    assert page, "the gateway has no page /prefixes"
    broken = [found for model in page["models"] for found in model["breaks"]]
    compared = sum(model["compared"] for model in page["models"])
    assert compared and not broken, f"{compared} compared: {json.dumps(broken, indent=1)}"
    return f"{compared} prompts compared, none broken"


def check_cancel(world, client):
    """A client that is ended in the middle of a stream ends the request on the engine."""
    before = len(list(world.seen(client.path)))
    process = start(world, client, SLOW)
    running = eventually("the stream runs", lambda: [
        worker for worker in (world.get(world.admin, "/workers") or {}).get("workers", []) if worker.get("in_flight")]
        or process.poll() is not None)
    assert running is not True, f"{client.name} ended: {process.stdout.read()}"
    began = time.monotonic()
    # Codex is a script that starts the client.
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    new = eventually("the engine sees the end", lambda: list(world.seen(client.path))[before:])
    ends = {request["ended"] for _, request in new}
    assert "left" in ends, f"{client.name}: {ends}"
    return f"the engine saw it after {time.monotonic() - began:.1f} s"


def check_websocket(world):
    """Codex asks for a WebSocket first. It is told at once that there is none, and goes on by HTTP without retries."""
    output = ask(world, Codex(websockets="true"), FIRST)
    assert "Reconnecting" not in output and "405" not in output, output
    return "one refusal, then HTTP"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", required=True)
    parser.add_argument("--clients", required=True)
    parser.add_argument("--engines", nargs="*", default=[])
    parser.add_argument("--demo", action="store_true", help="talk to `warmroute demo --keep`")
    parser.add_argument("--model")
    parser.add_argument("--fixtures", help="write what the clients sent, shortened, into this folder")
    args = parser.parse_args()
    args.model = args.model or (DEMO_MODEL if args.demo else MODEL)
    world, failed = World(args), 0
    checks = [(client.name + ": conversation", lambda client=client: check_conversation(world, client))
              for client in (ClaudeCode(), Codex())]
    checks.append(("prefixes", lambda: check_prefixes(world)))
    if not world.records:
        checks.append(("caches", lambda: check_caches(world)))
    if world.records:
        checks += [(client.name + ": cancel", lambda client=client: check_cancel(world, client))
                   for client in (ClaudeCode(), Codex())]
    checks.append(("codex: websocket", lambda: check_websocket(world)))
    try:
        for name, check in checks:
            try:
                print(f"ok      {name}: {check()}", flush=True)
            except (AssertionError, subprocess.TimeoutExpired) as problem:
                failed += 1
                print(f"FAILED  {name}: {problem}", flush=True)
        if args.fixtures:
            import fixture
            for client in (ClaudeCode(), Codex()):
                fixture.write(args.fixtures, client.name, [request for _, request in world.seen(client.path)])
    finally:
        world.stop()
    print(f"{len(checks) - failed} passed, {failed} failed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
