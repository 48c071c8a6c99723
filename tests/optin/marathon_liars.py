"""Faults of a marathon caused by others that lie or misuse: hubs, MCP servers, upstreams, clients."""

import asyncio
import http.client
import json
import socket
import sys
import time
from collections.abc import Callable
from urllib.parse import urlsplit

SLOW_TEMPLATE = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
HI = [{"role": "user", "content": "Hi"}]


class Skipped(Exception):
    """This fault cannot be caused here, or its target does not exist."""


def hub_does(**faults):
    async def make(world, traffic):
        hub = world.hub
        for name, value in faults.items():
            setattr(hub.faults, name, list(value) if isinstance(value, tuple) else value)
        try:
            answer = await traffic.manage("POST", "/models/pull", json={"model": "org/Spark-GGUF:F16"})
            await asyncio.sleep(12)
            if answer.status_code == 202:
                await traffic.manage("POST", f"/jobs/{answer.json()['id']}/cancel")
        finally:
            hub.faults = type(hub.faults)()

    return make


async def hub_lies(world, traffic):
    """Bytes that do not match the announced hash: the download must not become a model."""
    file = world.hub.repos["org/Lie-GGUF"].files["lie-F16.gguf"]
    data = bytes(file.data)
    file.lie = world.rng.choice((b"\0" * len(data), data[:-5000], data + b"more", data[::-1]))
    answer = await traffic.manage("POST", "/models/pull", json={"model": "org/Lie-GGUF:F16"})
    if answer.status_code != 202:
        raise Skipped
    for _ in range(60):
        told = (await traffic.manage("GET", f"/jobs/{answer.json()['id']}")).json()
        if told["state"] not in {"queued", "running"}:
            break
        await asyncio.sleep(1)
    await traffic.manage("POST", f"/jobs/{answer.json()['id']}/cancel")
    assert told["state"] != "done", f"bytes that are not the promised ones became a model: {told}"


MCP_LIES = (
    "while True: time.sleep(1)",
    "while True: print('x' * 100_000, flush=True)",
    "sys.stdin.readline(); print(json.dumps({'jsonrpc': '2.0', 'id': 99, 'result': 'no'}), flush=True)",
    "sys.exit('\\x1b[2Jgone')",
    "sys.stdin.readline(); print('{' * 1_000_000, flush=True); time.sleep(99)",
    "sys.stdin.readline(); sys.stdout.buffer.write(b'\\xff\\xfe\\n' * 9999); sys.stdout.flush(); time.sleep(99)",
)


async def mcp_lies(world, traffic):
    from app.tools.mcp_config import McpServerConfig
    from app.tools.mcp_server import McpServer
    from app.tools.types import ToolRefused

    script = world.scratch / f"mcp{world.rng.getrandbits(30)}.py"
    script.write_text("import json, sys, time\n" + world.rng.choice(MCP_LIES))
    server = McpServer(McpServerConfig("evil", (sys.executable, str(script))), world.scratch)
    try:
        await asyncio.wait_for(asyncio.to_thread(server.start), 240)
        raise AssertionError("an MCP server that lies was taken for one that works")
    except ToolRefused as error:
        said = str(error)
    finally:
        await asyncio.to_thread(server.stop)
        script.unlink()
    assert "\x1b" not in said


async def upstream_is_cut(world, traffic):
    from tests.support.fakes.fake_upstream import MODEL, FakeUpstream

    far = FakeUpstream("vllm")
    try:
        made = await traffic.manage("PUT", "/upstreams/far", json={"url": f"{far.url}/v1", "kind": "vllm"})
        body = {"model": f"far/{MODEL}", "messages": [{"role": "user", "content": "long " * 50}], "stream": True}
        asked = asyncio.create_task(
            traffic.client.post(f"{traffic.url}/v1/chat/completions", json=body, timeout=120)
        )
        await asyncio.sleep(world.rng.uniform(0, 1))
    finally:
        await asyncio.to_thread(far.stop)
    answers = [await asked, await traffic.client.post(f"{traffic.url}/v1/chat/completions", json=body, timeout=120)]
    await traffic.manage("DELETE", "/upstreams/far")
    assert made.status_code < 500, made.text[:300]
    assert all("internal error" not in answer.text for answer in answers), [a.text[:300] for a in answers]


async def abusers(world, traffic):
    """Two misuses, for some seconds each."""
    works = misuses("spark")
    until = time.monotonic() + 8
    for name in world.rng.sample(sorted(works), 2):
        while time.monotonic() < until:
            await asyncio.to_thread(works[name], traffic.url)
        until += 8


def misuses(model: str) -> dict[str, Callable[[str], str]]:
    """Expensive or slow requests by name. Each is a function of the server's URL."""

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


def holder(start: bytes) -> Callable[[str], str]:
    """A function that opens a hundred connections, sends `start`, and closes them after a second."""

    def hold(url: str) -> str:
        address = urlsplit(url)
        connections = []
        for _ in range(100):
            try:
                connections.append(socket.create_connection((str(address.hostname), address.port), 5))
                connections[-1].sendall(start)
            except OSError:
                break
        time.sleep(1)
        for connection in connections:
            connection.close()
        return "closed"

    return hold


def deep(levels: int) -> dict[str, object]:
    schema: dict[str, object] = {"type": "string", "maxLength": 100_000}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema, "b": {"type": "array", "maxItems": 10_000}}}
    return schema
