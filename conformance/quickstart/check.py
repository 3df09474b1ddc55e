"""Runs the commands of docs/quickstart.md. Started by `run`.

Each section is a world of its own: its background commands run until the section ends. Ports are replaced by free ones, so
that nothing else on the machine matters. What cannot run here is checked as far as it can be:

  vllm, sglang     an engine of `warmroute engine` with the same port, model and events takes its place; JSON values are read
  docker           arguments behind the image are checked as options of `warmroute`
  toml, yaml       `warmroute check` reads the file; the service's command is checked as options
  systemctl        the unit that the page enables starts the command that the page checks
"""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

BINARY = sys.argv[1]
ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "quickstart.md"
PORTS = ["30000", "29000", "8000", "8001", "5557", "5657", "5757", "5857"]
DEADLINE_S = 30


class Unkept(Exception):
    """A command of the page does not work; the text says why."""


def free_ports(count):
    taken = [socket.socket() for _ in range(count)]
    for one in taken:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in taken]
    for one in taken:
        one.close()
    return ports


class Section:
    """A section of the page: its commands, its background processes, its ports."""

    def __init__(self, title):
        self.title, self.processes = title, []
        self.ports = dict(zip(PORTS, map(str, free_ports(len(PORTS)))))
        self.folder = Path(tempfile.mkdtemp())
        self.files = {}

    def with_own_ports(self, text):
        return re.sub(rf"(?<![\d.])({'|'.join(PORTS)})(?!\d)", lambda match: self.ports[match[1]], text)

    def start(self, words):
        """Starts a command in the background, and waits until its port is open."""
        log = open(self.folder / f"{len(self.processes)}.log", "w+")
        process = subprocess.Popen(words, stdout=log, stderr=log, cwd=self.folder)
        self.processes.append(process)
        port = self.ports["30000"] if "serve" in words else words[words.index("--port") + 1]
        deadline = time.monotonic() + DEADLINE_S
        while not is_open(int(port)):
            if process.poll() is not None or time.monotonic() > deadline:
                log.seek(0)
                raise Unkept(f"{shlex.join(words)}: {log.read().strip()}")
            time.sleep(0.02)
        if "serve" in words:
            self.await_ready()

    def await_ready(self):
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                return urllib.request.urlopen(f"http://127.0.0.1:{self.ports['29000']}/readyz", timeout=5).read()
            except OSError:
                if time.monotonic() > deadline:
                    raise Unkept("no worker is ready") from None
                time.sleep(0.02)

    def close(self):
        for process in self.processes:
            process.send_signal(signal.SIGKILL)
            process.wait()
        shutil.rmtree(self.folder)


def is_open(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def run(words, section, **more):
    done = subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE_S, cwd=section.folder, **more)
    if done.returncode != 0:
        raise Unkept(f"{shlex.join(words)}: exit {done.returncode}: {(done.stdout + done.stderr).strip()}")
    return done.stdout


def warmroute(words, section, in_background):
    """`warmroute` itself."""
    words = [section.files.get(word, word) for word in words]
    command = words[1]
    if command == "serve":
        words += ["--port", section.ports["30000"], "--admin-port", section.ports["29000"], "--host", "127.0.0.1"]
    if command in ("status", "top"):
        words += ["--admin", f"http://127.0.0.1:{section.ports['29000']}"]
    if in_background:
        return section.start([BINARY, *words[1:]])
    printed = run([BINARY, *words[1:]], section)
    if not printed.strip():
        raise Unkept(f"{shlex.join(words)} prints nothing")
    return None


def engine(words, section, in_background):
    """An engine of others. A simulated one takes its place."""
    if not in_background:
        raise Unkept(f"{words[0]} would never end: it needs &")
    known = {"--port", "--kv-events-config", "--enable-prompt-tokens-details", "--enable-cache-report", "--model-path"}
    strange = [word for word in words if word.startswith("--") and word not in known]
    if strange:
        raise Unkept(f"{words[0]}: nothing here says that it has {strange}")
    model = words[2] if words[0] == "vllm" else words[words.index("--model-path") + 1]
    events = json.loads(words[words.index("--kv-events-config") + 1])
    ours = [BINARY, "engine", "--port", words[words.index("--port") + 1], "--model", model]
    ours += ["--events", events["endpoint"].replace("*", "127.0.0.1")]
    if "replay_endpoint" in events:
        ours += ["--replay", events["replay_endpoint"].replace("*", "127.0.0.1")]
    section.start(ours)


def curl(words, section, in_background):
    if shutil.which("curl"):
        answer = run([*words, "--fail-with-body"], section)
    else:
        url = next(word for word in words if word.startswith("http://"))
        body = words[words.index("-d") + 1].encode() if "-d" in words else None
        request = urllib.request.Request(url, body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as response:
            answer = f"{response.headers}\n{response.read().decode()}"
    if '"object"' not in answer:
        raise Unkept(f"{shlex.join(words)}: {answer}")
    if "-si" in words and "x-warmroute-worker" not in answer.lower():
        raise Unkept(f"the headers do not name the worker: {answer}")


def check_options(words, section):
    """Checks the arguments of `serve` without serving."""
    if words[0] != "serve":
        raise Unkept(f"`{words[0]}` is not what an image runs")
    run([BINARY, "check", *words[1:]], section, env={**os.environ, "WARMROUTE_ADMIN_TOKEN": "change-me"})


def docker(words, section, in_background):
    if words[1] == "build":
        if not (ROOT / "Dockerfile").is_file():
            raise Unkept("there is no Dockerfile")
    else:
        check_options(words[words.index("warmroute") + 1:], section)


def systemd(words, section, in_background):
    unit = (ROOT / "deploy" / "warmroute.service").read_text()
    if "warmroute serve --config /etc/warmroute/warmroute.toml" not in unit or "warmroute" not in words:
        raise Unkept("the unit does not read the file of the page")


COMMANDS = {"warmroute": warmroute, "vllm": engine, "python": engine, "curl": curl, "docker": docker,
            "systemctl": systemd, "journalctl": systemd}


def commands_of(block):
    """The commands of a block: words, and whether `&` ends them."""
    for line in block.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words:
            yield (words[:-1], True) if words[-1] == "&" else (words, False)


def take_block(language, text, section):
    if language == "sh":
        for words, in_background in commands_of(section.with_own_ports(text)):
            if words[0] not in COMMANDS:
                raise Unkept(f"nothing here knows how to run {words[0]}")
            COMMANDS[words[0]](words, section, in_background)
            yield shlex.join(words)
    elif language == "toml":
        file = section.folder / "warmroute.toml"
        file.write_text(section.with_own_ports(text))
        section.files["/etc/warmroute/warmroute.toml"] = str(file)
        yield "the configuration"
    elif language == "yaml":
        (line,) = re.findall(r"command: (\[.*\])", text)
        check_options(json.loads(line), section)
        yield "the service's command"
    else:
        raise Unkept(f"a block in {language}")


def installs_are_there(text):
    """What the table of the section Install names is in the repository."""
    for path in ["deploy/wheel", "deploy/deb", "crates/cli/Cargo.toml", "Dockerfile"]:
        if not (ROOT / path).exists():
            raise Unkept(f"{path} is not there")
    for named in re.findall(r"`(deploy/\w+)`", text):
        if not os.access(ROOT / named, os.X_OK):
            raise Unkept(f"{named} cannot be run")


def main():
    began = time.monotonic()
    text = PAGE.read_text()
    installs_are_there(text)
    count = 0
    for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        section = Section(part.splitlines()[0])
        try:
            for language, block in re.findall(r"^```(\w+)\n(.*?)^```", part, re.DOTALL | re.MULTILINE):
                for done in take_block(language, block, section):
                    count += 1
                    print(f"ok  {section.title}: {done[:100]}", flush=True)
        except (Unkept, subprocess.TimeoutExpired) as error:
            sys.exit(f"docs/quickstart.md, {section.title}: {error}")
        finally:
            section.close()
    if count < 15:
        sys.exit(f"docs/quickstart.md: only {count} commands were found")
    print(f"{count} commands work, after {time.monotonic() - began:.1f} s")


main()
