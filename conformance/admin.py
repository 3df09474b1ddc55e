"""The gateway's admin listener, as the tests read it."""

import time

import httpx
from prometheus_client.parser import text_string_to_metric_families

DEADLINE_S = 10
LOOK_EVERY_S = 0.02


class Admin:
    def __init__(self, url):
        self.http = httpx.Client(base_url=url, timeout=DEADLINE_S)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.http.close()

    def get(self, path):
        return self.http.get(path)

    def workers(self):
        return self.get("/workers").raise_for_status().json()["workers"]

    def config(self):
        return self.get("/config").raise_for_status().json()

    def samples(self):
        text = self.get("/metrics").raise_for_status().text
        return [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    def total(self, name, **labels):
        """The sum of all samples of this name that carry these labels."""
        return sum(s.value for s in self.samples() if s.name == name and labels.items() <= s.labels.items())

    def in_flight(self):
        return sum(worker["in_flight"] for worker in self.workers())


def running_in(worker_url):
    """How many requests an engine itself says it is working on, or has waiting."""
    text = httpx.get(f"{worker_url}/metrics", timeout=DEADLINE_S).raise_for_status().text
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting")
    families = text_string_to_metric_families(text)
    return sum(s.value for family in families for s in family.samples if s.name in names)


def eventually(claim):
    """Whether the claim comes true before the deadline; a test's result never hangs on how long that takes."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        if claim():
            return True
        time.sleep(LOOK_EVERY_S)
    return claim()
