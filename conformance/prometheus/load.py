"""Traffic that gives every metric something to say: shared prompts, streams, a worker that fails, clients that err."""

import json
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

REQUESTS = 400
AT_ONCE = 16
SYSTEM_PROMPTS = 40
TIMEOUT_S = 20

# One answer in so many is asked for with a body that is no JSON.
BROKEN_EVERY = 20


def post(url, body):
    """Returns the status."""
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            answer.read()
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def chat(model, number):
    system = f"You are assistant number {number % SYSTEM_PROMPTS}. " * 200
    messages = [{"role": "system", "content": system}, {"role": "user", "content": f"Question {number}?"}]
    body = {"model": model, "messages": messages, "max_tokens": 64, "stream": number % 2 == 0}
    return json.dumps(body).encode()


def break_a_worker(worker_url):
    """Two of its answers are cut before they begin: too few to make it unhealthy, enough for retries."""
    fault = {"kind": "reset", "after_tokens": 0, "times": 2}
    return post(f"{worker_url}/fault", json.dumps(fault).encode())


def send(url, model):
    """Returns the statuses of the good requests and those of the broken ones."""

    def one(number):
        is_broken = number % BROKEN_EVERY == 0
        return is_broken, post(f"{url}/v1/chat/completions", b"{" if is_broken else chat(model, number))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(one, range(REQUESTS)))
    return [status for is_broken, status in answers if not is_broken], [
        status for is_broken, status in answers if is_broken
    ]
