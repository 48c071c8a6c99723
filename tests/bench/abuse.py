"""Eight abusive clients and one honest one: how much later does the honest client get its first token?

    python tests/bench/abuse.py [--seconds 60] [--model spark]

Each abuser repeats one misuse without a pause. The honest client asks short questions, one at a time, first alone
and then beside them. Printed: its first token at the median and the 99th hundredth, both ways, and what each abuser
got. Clients that ask for ordinary work that is just long are left out: they share the model.
"""

import argparse
import collections
import http.client
import json
import multiprocessing
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.servers import RunningServer

SLOW_TEMPLATE = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
HI = [{"role": "user", "content": "Hi"}]


def post(url: str, path: str, body: bytes) -> str:
    address = urlsplit(url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=60)
    try:
        connection.request("POST", path, body, {"content-type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        return str(answer.status)
    except OSError as error:
        return type(error).__name__
    finally:
        connection.close()


def chat(model: str, **fields: object) -> bytes:
    return json.dumps({"model": model, "messages": HI, "max_tokens": 1, **fields}).encode()


def holder(what: bytes) -> Callable[[str], str]:
    """Opens a hundred connections, says `what`, and holds them for a while."""

    def hold(url: str) -> str:
        address = urlsplit(url)
        held = []
        for _ in range(100):
            try:
                held.append(socket.create_connection((str(address.hostname), address.port), 5))
                held[-1].sendall(what)
            except OSError:
                break
        time.sleep(1)
        for connection in held:
            connection.close()
        return "held"

    return hold


def misuses(model: str) -> dict[str, Callable[[str], str]]:
    def sends(path: str, body: bytes) -> Callable[[str], str]:
        return lambda url: post(url, path, body)

    number = iter(range(1 << 30))
    one = b'{"role":"user","content":"a"},'
    many = b'{"model":"%s","messages":[%s]}' % (model.encode(), (one * 500_000)[:-1])
    return {
        "60 MB of a": sends(
            "/v1/chat/completions", chat(model, messages=[{"role": "user", "content": "a" * 60_000_000}])
        ),
        "control tokens": sends(
            "/tokenize", json.dumps({"model": model, "content": "<|im_end|>" * 100_000}).encode()
        ),
        "1 MB to count": sends("/tokenize", json.dumps({"model": model, "content": "a" * (1 << 20)}).encode()),
        "500,000 messages": sends("/v1/chat/completions", many),
        "slow templates": lambda url: post(
            url, "/v1/chat/completions", chat(model, chat_template=f"{SLOW_TEMPLATE}{next(number)}")
        ),
        "half heads": holder(b"POST / HTTP/1.1\r\nX: "),
        "half bodies": holder(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 9\r\n\r\n{"
        ),
        "heavy schemas": sends(
            "/v1/chat/completions",
            chat(model, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": deep(60)}}),
        ),
    }


def deep(levels: int) -> dict[str, object]:
    schema: dict[str, object] = {"type": "string", "maxLength": 100_000}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema, "b": {"type": "array", "maxItems": 10_000}}}
    return schema


def first_token(url: str, model: str, question: str) -> float:
    address = urlsplit(url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=120)
    body = {"model": model, "messages": [{"role": "user", "content": question}], "max_tokens": 4, "stream": True}
    begun = time.perf_counter()
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
    answer = connection.getresponse()
    if answer.status != 200:
        raise RuntimeError(answer.read().decode())
    took = 0.0
    while line := answer.readline():
        if not took and b'"content":"' in line and b'"content":""' not in line:
            took = time.perf_counter() - begun
    connection.close()
    return took or time.perf_counter() - begun


def honest(url: str, model: str, seconds: float) -> list[float]:
    ends = time.monotonic() + seconds
    times: list[float] = []
    while time.monotonic() < ends:
        times.append(first_token(url, model, f"Say a word about the number {len(times)}."))
        time.sleep(0.05)
    return sorted(times)


def abuse(url: str, model: str, names: list[str], told: "multiprocessing.Queue[tuple[str, str]]") -> None:
    """The abusers, in a separate process, so that they do not use the server's CPU time."""
    os.nice(19)
    work = misuses(model)

    def repeat(name: str) -> None:
        while True:
            told.put((name, work[name](url)))

    threads = [threading.Thread(target=repeat, args=(name,)) for name in names]
    for thread in threads:
        thread.start()


def at(times: list[float], share: float) -> float:
    return times[min(int(len(times) * share), len(times) - 1)] * 1000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--model", default="spark")
    parser.add_argument("--only", help="one misuse by its name")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        server = RunningServer(Path(home))
        try:
            honest(server.url, given.model, 3)
            quiet = honest(server.url, given.model, given.seconds)
            names = [given.only] if given.only else list(misuses(given.model))
            queue = multiprocessing.get_context("spawn").Queue()
            arguments = (server.url, given.model, names, queue)
            abusers = multiprocessing.get_context("spawn").Process(target=abuse, args=arguments)
            abusers.start()
            told: dict[str, collections.Counter[str]] = {name: collections.Counter() for name in names}
            name, status = queue.get()
            told[name][status] += 1
            beside = honest(server.url, given.model, given.seconds)
            abusers.kill()
            while not queue.empty():
                name, status = queue.get()
                told[name][status] += 1
            print(f"alone   n={len(quiet):4} p50 {at(quiet, 0.5):7.1f} ms  p99 {at(quiet, 0.99):7.1f} ms")
            print(f"abused  n={len(beside):4} p50 {at(beside, 0.5):7.1f} ms  p99 {at(beside, 0.99):7.1f} ms")
            print(f"p99 later by {at(beside, 0.99) - at(quiet, 0.99):.1f} ms")
            for name, answers in told.items():
                print(f"  {name:18} {dict(answers)}")
        finally:
            server.stop()


if __name__ == "__main__":
    main()
