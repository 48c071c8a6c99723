"""Others that lie or misuse, as faults of a marathon: hubs, MCP servers, upstreams, clients."""

import asyncio
import sys
import time

from tests.bench.abuse import misuses


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
    """Two misuses of the benchmark, for some seconds."""
    works = misuses("spark")
    until = time.monotonic() + 8
    for name in world.rng.sample(sorted(works), 2):
        while time.monotonic() < until:
            await asyncio.to_thread(works[name], traffic.url)
        until += 8
