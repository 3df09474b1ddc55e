#!/usr/bin/env python3
"""Reports what an engine's prefix cache holds to Warmroute, where ZeroMQ events are not available.

Attach it to vLLM by starting vLLM through it; nothing needs to be installed or patched:

    python warmroute_reporter.py --url http://router:29000/events --worker http://10.0.0.7:8000 -- \\
        python -m vllm.entrypoints.openai.api_server --model ...

It wraps the block pool's take_events(), collects stores and evictions for 100 ms and posts them as JSON from a thread of
its own; the engine never waits. Posts are numbered. One that fails is sent again, one that the router missed is asked for
by the router (409 with the number it expects), and where too much is missing a snapshot of everything held is sent, in
several posts where it is large. What waits is bounded: beyond that it is dropped and a snapshot follows. It speaks for one
data-parallel rank. With several routers, give --url once for each: every router gets every event, independently of the
others. Needs Python 3.9 and nothing else.

Another engine's block manager is attached by hand:

    reporter = Reporter("http://router:29000/events", worker="http://10.0.0.7:8000")
    reporter.stored(block_hashes=[...], parent=None, token_ids=[...], block_size=16)
    reporter.removed(block_hashes=[...]); reporter.cleared()
"""

import argparse
import array
import atexit
import importlib.abc
import importlib.machinery
import json
import os
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid

BATCH_S = 0.1
WAITING_EVENTS_MAX = 100_000
KEPT_POSTS_MAX = 64
POST_BYTES_MAX = 8 << 20  # about; the router takes four times as much
TIMEOUT_S = 5.0
RETRY_S_MAX = 5.0


class Reporter:
    """Collects events and posts them. All methods may be called from any thread and return at once."""

    def __init__(self, url, worker, rank=None, token=None, batch_s=BATCH_S):
        query = {"worker": worker} if rank is None else {"worker": worker, "rank": rank}
        self._url = url + ("&" if "?" in url else "?") + urllib.parse.urlencode(query)
        self._token, self._rank, self._batch_s = token, rank, batch_s
        self._source = uuid.uuid4().hex
        self._lock = threading.Lock()  # what waits: held for an append only, the engine must not wait
        self._waiting = []
        self._mirror_lock = threading.Lock()  # what is held, and what is to be posted of it
        self._mirror, self._overflown = {}, False
        self._kept, self._seq, self._snapshot_end = {}, 0, 0
        self.posts = self.bytes = self.snapshots = self.failures = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="warmroute-reporter", daemon=True)
        self._thread.start()

    def stored(self, block_hashes, parent, token_ids, block_size, **more):
        """Blocks became reusable; `more` are vLLM's other fields of BlockStored."""
        self.add([dict(more, type="BlockStored", block_hashes=block_hashes, parent_block_hash=parent,
                       token_ids=token_ids, block_size=block_size)])

    def removed(self, block_hashes, **more):
        """Blocks were evicted."""
        self.add([dict(more, type="BlockRemoved", block_hashes=block_hashes)])

    def cleared(self):
        """The whole cache was emptied."""
        self.add([{"type": "AllBlocksCleared"}])

    def add(self, events):
        """Events in the JSON form of POST /events, in order."""
        with self._lock:
            self._waiting.extend(events)
            is_full = len(self._waiting) > WAITING_EVENTS_MAX
        if is_full:
            # The sender is stuck. The mirror still has to follow; what is posted instead is a snapshot.
            with self._mirror_lock:
                self._take_waiting()
                self._overflown = True

    def close(self, timeout_s=2.0):
        """Posts what is waiting and ends."""
        self._ended.set()
        self._thread.join(timeout_s)

    def _run(self):
        retry_s = 0.0
        while True:
            ended = self._ended.wait(max(self._batch_s, retry_s))
            try:
                self._collect()
                self._send_kept()
                retry_s = 0.0
            except (OSError, urllib.error.URLError, ValueError) as error:
                self.failures += 1
                retry_s = min(RETRY_S_MAX, max(2 * retry_s, self._batch_s))
                if self.failures in (1, 10, 100) or self.failures % 1000 == 0:
                    print(f"warmroute_reporter: {self._url}: {error} ({self.failures} failures)", file=sys.stderr)
            if ended:
                return

    def _take_waiting(self):
        """What waits, reflected in the order in which it came: the mirror's lock is held."""
        with self._lock:
            events, self._waiting = self._waiting, []
        for event in events:
            self._reflect(event)
        return events

    def _collect(self):
        with self._mirror_lock:
            events = self._take_waiting()
            piled = sum(seq >= self._snapshot_end for seq in self._kept)
            if self._overflown or piled >= KEPT_POSTS_MAX:
                self._keep_snapshot()
            elif events:
                self._keep(merge(events))

    def _keep_snapshot(self):
        """Everything, instead of what was to be posted."""
        self._kept.clear()
        self._overflown = False
        self._keep(self._snapshot(), reset=True)
        self._snapshot_end = self._seq

    def _keep(self, events, reset=False):
        for part in parts(events):
            self._keep_post(part, reset)
            reset = False

    def _keep_post(self, events, reset):
        post = {"source": self._source, "seq": self._seq, "ts": time.time(), "reset": reset, "events": events}
        if self._rank is not None:
            post["rank"] = self._rank
        self._kept[self._seq] = json.dumps(post, separators=(",", ":")).encode()
        self._seq += 1
        self.snapshots += reset

    def _send_kept(self):
        """Posts in order. The router says what it expects next; everything below is known there."""
        while self._kept:
            seq = min(self._kept)
            expected = self._post(self._kept[seq])
            if expected > seq:
                for done in [kept for kept in self._kept if kept < expected]:
                    del self._kept[done]
            elif expected not in self._kept:
                # It lacks posts that are gone here, or it is a new router: everything, once.
                with self._mirror_lock:
                    self._keep_snapshot()

    def _post(self, body):
        request = urllib.request.Request(self._url, body, {"content-type": "application/json"})
        if self._token:
            request.add_header("authorization", f"Bearer {self._token}")
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                reply = json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code != 409:
                raise
            reply = json.load(error)
        self.posts += 1
        self.bytes += len(body)
        return int(reply["next_seq" if "next_seq" in reply else "expected"])

    def _reflect(self, event):
        """Keeps what a snapshot needs: each held block with its parent and tokens."""
        kind = event["type"]
        if kind == "AllBlocksCleared":
            self._mirror.clear()
        elif kind == "BlockRemoved":
            for name in event["block_hashes"]:
                held = self._mirror.get((event.get("group_idx"), event.get("medium"), name))
                if held is not None:
                    held[0] -= 1
                    if held[0] == 0:
                        del self._mirror[(event.get("group_idx"), event.get("medium"), name)]
        elif kind == "BlockStored":
            self._reflect_stored(event)

    def _reflect_stored(self, event):
        size, parent = event["block_size"], event["parent_block_hash"]
        keys = event.get("extra_keys") or []
        rest = {k: v for k, v in event.items() if k not in ("block_hashes", "parent_block_hash", "token_ids", "extra_keys")}
        rest = tuple(sorted(rest.items()))
        for at, name in enumerate(event["block_hashes"]):
            held = self._mirror.get((event.get("group_idx"), event.get("medium"), name))
            if held is None:
                tokens = array.array("I", event["token_ids"][at * size:(at + 1) * size])
                key = keys[at] if at < len(keys) else None
                self._mirror[(event.get("group_idx"), event.get("medium"), name)] = [1, parent, tokens, key, rest]
            else:
                held[0] += 1
            parent = name

    def _snapshot(self):
        events = [{"type": "AllBlocksCleared"}]
        for (_, _, name), (count, parent, tokens, key, rest) in self._mirror.items():
            event = dict(rest, block_hashes=[name], parent_block_hash=parent, token_ids=list(tokens))
            if key is not None:
                event["extra_keys"] = [key]
            events.extend([event] * count)
        return events


class Reporters:
    """One reporter for each of several routers, so that a slow or restarted router does not affect the others."""

    def __init__(self, urls, *args, **kwargs):
        self.each = [Reporter(url, *args, **kwargs) for url in urls]

    def add(self, events):
        for reporter in self.each:
            reporter.add(events)

    def close(self):
        for reporter in self.each:
            reporter.close()


def merge(events):
    """Evictions come one by one; neighbours of one kind become one event."""
    merged = []
    for event in events:
        last = merged[-1] if merged else None
        if event["type"] != "BlockRemoved":
            merged.append(event)
        elif (last is not None and last["type"] == "BlockRemoved"
                and all(event.get(k) == last.get(k) for k in ("medium", "group_idx"))):
            last["block_hashes"].extend(event["block_hashes"])
        else:
            merged.append(dict(event, block_hashes=list(event["block_hashes"])))
    return merged


def parts(events):
    """Events in posts that a router takes; no events are one post, too."""
    part, weight = [], 0
    for event in events:
        cost = 300 + 24 * len(event.get("block_hashes", ())) + 8 * len(event.get("token_ids", ()))
        if part and weight + cost > POST_BYTES_MAX:
            yield part
            part, weight = [], 0
        part.append(event)
        weight += cost
    yield part


def plain(value):
    """A field of vLLM's event as JSON has it; hashes of bytes in hex."""
    if isinstance(value, (bytes, bytearray)):
        return value.hex()
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


FIELDS = ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "lora_name", "medium", "extra_keys",
          "group_idx", "kv_cache_spec_kind")
ALWAYS = ("block_hashes", "parent_block_hash", "token_ids", "block_size")


def event_of(event):
    """A vLLM event as JSON."""
    kind = type(event).__name__
    fields = {name: plain(getattr(event, name)) for name in FIELDS if hasattr(event, name)}
    if kind != "BlockStored":
        fields = {name: value for name, value in fields.items() if value is not None}
    else:
        fields = {name: value for name, value in fields.items() if value is not None or name in ALWAYS}
        if not any(fields.get("extra_keys") or ()):
            fields.pop("extra_keys", None)
    return dict(fields, type=kind)


def attach(block_pool_class, make_reporter):
    """Wraps a BlockPool class as vLLM has it: the first pool that hands out events gets the reporter."""
    init, take = block_pool_class.__init__, block_pool_class.take_events
    reporters = {}

    def new_init(self, *args, **kwargs):
        init(self, *args, **kwargs)
        # Pools of offloaded blocks are not drained unless the engine asked for events.
        if getattr(self, "medium", "GPU") in (None, "GPU"):
            self.enable_kv_cache_events = True

    def new_take(self):
        events = take(self)
        if events:
            reporter = reporters.get("one") or reporters.setdefault("one", make_reporter())
            reporter.add([event_of(event) for event in events])
        return events

    block_pool_class.__init__, block_pool_class.take_events = new_init, new_take


class _Hook(importlib.abc.MetaPathFinder):
    """Attaches as soon as the engine's own process imports its block pool."""

    MODULE = "vllm.v1.core.block_pool"

    def find_spec(self, name, path, target=None):
        if name != self.MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            attach(module.BlockPool, _from_environment)

        spec.loader.exec_module = exec_module
        return spec


def _from_environment():
    env = os.environ
    rank = env.get("WARMROUTE_RANK") or None
    reporter = Reporters(env["WARMROUTE_EVENTS_URL"].split(), env["WARMROUTE_WORKER"], rank and int(rank),
                         env.get("WARMROUTE_TOKEN"), float(env.get("WARMROUTE_BATCH_S", BATCH_S)))
    atexit.register(reporter.close)
    return reporter


def main(module=__file__):
    """Starts the engine with a sitecustomize in front that arms this module in each of its processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, action="append",
                        help="a router's POST /events, e.g. http://router:29000/events; once for each router")
    parser.add_argument("--worker", required=True, help="the engine's URL as the router knows it")
    parser.add_argument("--rank", type=int, help="the data-parallel rank, where the engine has several")
    parser.add_argument("--token", help="the router's events-token (better: in the environment as WARMROUTE_TOKEN)")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- COMMAND that starts the engine")
    args = parser.parse_args()
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        parser.error("which command starts the engine?")
    place, name = os.path.split(os.path.splitext(os.path.abspath(module))[0])
    folder = tempfile.mkdtemp(prefix="warmroute-reporter-")
    with open(os.path.join(folder, "sitecustomize.py"), "w", encoding="utf-8") as file:
        file.write(f"import sys\nsys.path.insert(1, {place!r})\nimport {name}\n{name}.arm()\n")
    os.environ.update(WARMROUTE_EVENTS_URL=" ".join(args.url), WARMROUTE_WORKER=args.worker)
    if args.rank is not None:
        os.environ["WARMROUTE_RANK"] = str(args.rank)
    if args.token:
        os.environ["WARMROUTE_TOKEN"] = args.token
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
    os.execvp(command[0], command)


def arm():
    """Called in every process of the engine."""
    if "WARMROUTE_EVENTS_URL" in os.environ:
        sys.meta_path.insert(0, _Hook())


if __name__ == "__main__":
    main()
