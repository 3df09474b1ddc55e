"""Tests of the reporter against a router that fails, forgets and falls behind: python3 test_warmroute_reporter.py"""

import http.server
import json
import threading
import time
import unittest

import warmroute_reporter as wr


class Router:
    """POST /events as the router has it: numbered posts, 409 with the number that is expected, snapshots."""

    def __init__(self):
        self.source, self.next, self.held, self.failing, self.posts = None, None, {}, 0, []
        router = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_POST(self):
                post = json.loads(self.rfile.read(int(self.headers["content-length"])))
                status, body = router.take(post)
                body = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/events"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, post):
        if self.failing > 0:
            self.failing -= 1
            return 503, {}
        self.posts.append(post)
        known = self.source == post["source"] and self.next is not None
        expected = self.next if known else 0
        if not post["reset"] and post["seq"] < expected:
            return 200, {"next_seq": expected}
        if not post["reset"] and post["seq"] > expected:
            return 409, {"expected": expected}
        if post["reset"] or not known:
            self.held = {}
        self.source, self.next = post["source"], post["seq"] + 1
        for event in post["events"]:
            if event["type"] == "AllBlocksCleared":
                self.held.clear()
            for name in event.get("block_hashes", []):
                step = 1 if event["type"] == "BlockStored" else -1
                self.held[name] = self.held.get(name, 0) + step
        self.held = {name: count for name, count in self.held.items() if count > 0}
        return 200, {"next_seq": self.next}


class ReporterTest(unittest.TestCase):
    def setUp(self):
        self.router = Router()
        self.reporter = wr.Reporter(self.router.url, "http://w", batch_s=0.01)

    def tearDown(self):
        self.reporter.close()
        self.router.server.shutdown()
        self.router.server.server_close()

    def store(self, *names):
        self.reporter.stored(list(names), None, list(range(2 * len(names))), 2)

    def until_held(self, *names):
        end = time.monotonic() + 10
        while sorted(self.router.held) != sorted(names):
            self.assertLess(time.monotonic(), end, f"{self.router.held} is not {names}")
            time.sleep(0.005)

    def test_stores_and_evictions_arrive_counted(self):
        self.store(1, 2)
        self.store(2)
        self.reporter.removed([1])
        self.reporter.removed([2])
        self.until_held(2)

    def test_a_router_that_fails_for_a_while_misses_nothing(self):
        self.router.failing = 3
        self.store(1)
        self.until_held(1)
        self.store(2)
        self.until_held(1, 2)

    def test_a_new_router_gets_a_snapshot(self):
        self.store(1, 2)
        self.until_held(1, 2)
        self.router.source, self.router.next, self.router.held = None, None, {}
        self.reporter.removed([1])
        self.store(3)
        self.until_held(2, 3)
        snapshot = self.router.posts[-1]
        self.assertTrue(snapshot["reset"])
        by_name = {event["block_hashes"][0]: event for event in snapshot["events"][1:]}
        self.assertEqual((by_name[2]["token_ids"], by_name[2]["parent_block_hash"]), ([2, 3], 1))

    def test_every_router_gets_every_event_although_one_fails(self):
        other = Router()
        other.failing = 10**9
        both = wr.Reporters([self.router.url, other.url], "http://w", batch_s=0.01)
        both.add([{"type": "BlockStored", "block_hashes": [1, 2], "parent_block_hash": None, "token_ids": [1, 2, 3, 4],
                   "block_size": 2}])
        both.add([{"type": "BlockRemoved", "block_hashes": [2]}])
        self.until_held(1)
        other.failing = 0
        first, self.router = self.router, other
        self.until_held(1)
        self.router = first
        both.close()
        other.server.shutdown()
        other.server.server_close()

    def test_too_much_waiting_becomes_a_snapshot(self):
        self.router.failing = 10**9
        self.store(1)
        time.sleep(0.05)
        for name in range(2, 50):
            self.store(name)
        limit, wr.WAITING_EVENTS_MAX = wr.WAITING_EVENTS_MAX, 5
        try:
            for name in range(2, 50):
                self.reporter.removed([name])
        finally:
            wr.WAITING_EVENTS_MAX = limit
        self.router.failing = 0
        self.until_held(1)
        self.assertGreaterEqual(self.reporter.snapshots, 1)

    def test_a_large_snapshot_comes_in_several_posts(self):
        self.store(*range(20))
        self.until_held(*range(20))
        self.router.source, self.router.next, self.router.held = None, None, {}
        limit, wr.POST_BYTES_MAX = wr.POST_BYTES_MAX, 1_000
        try:
            self.store(20)
            self.until_held(*range(21))
        finally:
            wr.POST_BYTES_MAX = limit
        snapshot = [post["reset"] for post in self.router.posts]
        self.assertEqual(snapshot.count(True), 1)
        self.assertGreater(len(snapshot) - snapshot.index(True), 8)

    def test_evictions_are_merged_and_bytes_are_hex(self):
        events = [{"type": "BlockRemoved", "block_hashes": [n], "medium": "GPU"} for n in range(3)]
        self.assertEqual(wr.merge(events), [{"type": "BlockRemoved", "block_hashes": [0, 1, 2], "medium": "GPU"}])

        class BlockRemoved:
            block_hashes, medium, group_idx = [b"\x01\xff"], "GPU", None

        self.assertEqual(wr.event_of(BlockRemoved()), {"type": "BlockRemoved", "block_hashes": ["01ff"], "medium": "GPU"})

    def test_a_block_pool_is_attached_once_for_all_its_events(self):
        class Cleared:
            pass

        Cleared.__name__ = "AllBlocksCleared"

        class Pool:
            def __init__(self):
                self.enable_kv_cache_events = False

            def take_events(self):
                return [Cleared()] if self.enable_kv_cache_events else []

        wr.attach(Pool, lambda: self.reporter)
        self.store(1)
        self.until_held(1)
        self.assertEqual(len(Pool().take_events()), 1)
        self.until_held()


if __name__ == "__main__":
    unittest.main()
