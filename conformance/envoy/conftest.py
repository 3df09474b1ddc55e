import contextlib

import httpx
import pytest

from world import TIMEOUT_S, Engine, Envoy, Picker, eventually


class World:
    """What a test has started."""

    def __init__(self, stack):
        self.stack = stack

    def keep(self, process):
        self.stack.callback(process.kill)
        return process

    def engines(self, count=2):
        return [self.keep(Engine()) for _ in range(count)]

    def start(self, engines, *flags, change=lambda parts: None, workers=None):
        """A picker with these flags and an Envoy that knows it. `workers`: the picker's, if they are not all engines."""
        picker = self.keep(Picker(engines if workers is None else workers, *flags))
        envoy = self.keep(Envoy(engines, picker, change))
        eventually("the picker is healthy", envoy.picker_is_healthy)
        return picker, envoy

    def client(self, envoy, http2=False):
        return self.stack.enter_context(httpx.Client(base_url=envoy.url, timeout=TIMEOUT_S, http1=not http2, http2=http2))


@pytest.fixture
def world():
    with contextlib.ExitStack() as stack:
        yield World(stack)


@pytest.fixture(scope="module")
def shared():
    """For tests that leave everything as they found it."""
    with contextlib.ExitStack() as stack:
        world = World(stack)
        engines = world.engines()
        yield world, engines, *world.start(engines)
