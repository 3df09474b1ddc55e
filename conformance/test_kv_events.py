"""A publisher like vLLM's, over the real libzmq: its replay socket drops what its peer has not read yet."""

import json
import os
import subprocess
import threading

import httpx
import msgspec
import pytest
import zmq

from admin import eventually

# As many batches as vLLM remembers, with the blocks of 1,024 prompt tokens each.
BATCHES = 10_000
BLOCKS = 64
END = b"\xff" * 8


def payload(seq):
    names = [seq * BLOCKS + block for block in range(BLOCKS)]
    events = [["BlockRemoved", [name - BLOCKS * 10 for name in names]] if seq >= 10 else ["AllBlocksCleared"],
              ["BlockStored", names, None, list(range(16 * BLOCKS)), 16, None]]
    return msgspec.msgpack.encode([1e9 + seq, events])


class Publisher:
    def __init__(self):
        self.context = zmq.Context()
        self.events = self.context.socket(zmq.PUB)
        self.replays = self.context.socket(zmq.ROUTER)
        self.ports = [socket.bind_to_random_port("tcp://127.0.0.1") for socket in (self.events, self.replays)]
        self.memory = [payload(seq) for seq in range(BATCHES)]
        self.requests = []
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                client, _, start = self.replays.recv_multipart()
            except zmq.ContextTerminated:
                return
            self.requests.append(int.from_bytes(start, "big"))
            for seq in range(self.requests[-1], BATCHES):
                self.replays.send_multipart([client, b"", b"", seq.to_bytes(8, "big"), self.memory[seq]])
            self.replays.send_multipart([client, b"", b"", END, b""])


@pytest.fixture
def started():
    processes = []

    def start(*arguments):
        process = subprocess.Popen([os.environ["CONFORMANCE_BINARY"], *arguments], stdout=subprocess.PIPE, text=True)
        processes.append(process)
        return json.loads(process.stdout.readline())

    yield start
    for process in processes:
        process.kill()
        process.wait()


def test_a_long_replay_arrives_whole(started, tmp_path):
    publisher = Publisher()
    config, model = tmp_path / "warmroute.toml", str(tmp_path / "model")
    engine = started("engine", "--port", "0", "--events", "tcp://127.0.0.1:0", "--write-model", model)
    events, replay = (f"tcp://127.0.0.1:{port}" for port in publisher.ports)
    config.write_text(f'[[workers]]\nurl = "{engine["listening"]}"\nkv-events = {{ endpoint = "{events}", replay = "{replay}" }}\n')
    gateway = started("serve", "--config", str(config), "--model-path", model, "--port", "0", "--admin-port", "0")
    with httpx.Client(base_url=gateway["admin"]) as admin:
        worker = lambda: admin.get("/workers").raise_for_status().json()["workers"][0]
        assert eventually(lambda: worker()["view"] == "reported"), worker()
        # Counters follow the view twice a second.
        stream = lambda: worker()["events"]["stream"]
        assert eventually(lambda: stream()["batches"] == BATCHES), (stream(), publisher.requests)
        assert (stream()["lost"], stream()["gaps"]) == (0, 0), (stream(), publisher.requests)
