"""Where the gateway is, and one client of each SDK.

`run` starts the gateway and hands over the JSON line with which it announced itself. No client retries: a test must see
the first answer, not the third.
"""

import json
import os
import uuid

import anthropic
import httpx
import openai
import pytest

from admin import Admin

TIMEOUT_S = 20


@pytest.fixture(scope="session")
def announced():
    line = os.environ.get("CONFORMANCE_ANNOUNCED")
    if not line:
        pytest.exit("start these tests with conformance/run", returncode=2)
    return json.loads(line)


@pytest.fixture(scope="session")
def url(announced):
    return announced["listening"]


@pytest.fixture(scope="session")
def admin(announced):
    with Admin(announced["admin"]) as admin:
        yield admin


@pytest.fixture(scope="session")
def model(admin):
    return admin.workers()[0]["model"]


@pytest.fixture
def client(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=TIMEOUT_S) as client:
        yield client


@pytest.fixture
def claude(url):
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=TIMEOUT_S) as client:
        yield client


@pytest.fixture
def http(url):
    """For what no SDK would send."""
    with httpx.Client(base_url=url, timeout=TIMEOUT_S) as client:
        yield client


@pytest.fixture
def fresh_text():
    """A prompt of a few hundred tokens that no cache has seen."""
    return f"{uuid.uuid4()} " + "and the story goes on from there. " * 40


@pytest.fixture(scope="session")
def too_long_text(admin):
    """Makes a body larger than the gateway's limit, whatever that is."""
    return "x" * (admin.config()["requests"]["max-payload-size"] + 1)
