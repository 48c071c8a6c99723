"""What the server adds to a token: CPU per streamed token, latency with 64 streams, memory of idle connections.

`python -m tests.bench.server_overhead [streams] [tok_s] [tokens]`, from the root of the project. The model is
tests/support/fakes/fake_runner.py, so nothing but the server's own work is measured: a real server process, a real
runner process that only makes up tokens, and a client that reads raw bytes. The runner writes its clock into each
token, so added latency is the time of arrival minus that.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
HOST = "127.0.0.1"
SERVER = """
import sys
sys.path.insert(0, {root!r})
from pathlib import Path
from tests.support.fakes.scripted import ScriptedServer
server = ScriptedServer(Path({home!r}))
print(server.port, flush=True)
sys.stdin.readline()
server.stop()
"""


class Stream:
    """One streaming client. `delays` are seconds from the runner's clock to here."""

    def __init__(self) -> None:
        self.delays: list[float] = []
        self.tokens = 0

    async def run(self, port: int, path: str, body: dict[str, object]) -> None:
        reader, writer = await asyncio.open_connection(HOST, port)
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data)
        while line := await reader.readline():
            at = line.find(b"@@")
            if at >= 0 and b".done" not in line and b".completed" not in line:
                self.delays.append(time.time() - float(line[at + 2 : line.index(b";", at)]))
                self.tokens += 1
        writer.close()


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


async def streams(port: int, server: psutil.Process, count: int, path: str, body: dict[str, object]) -> str:
    clients = [Stream() for _ in range(count)]
    before, began = cpu_s(server), time.monotonic()
    await asyncio.gather(*(c.run(port, path, body) for c in clients))
    used, wall = cpu_s(server) - before, time.monotonic() - began
    tokens = sum(c.tokens for c in clients)
    delays = [d for c in clients for d in c.delays]
    late = f"p50 {quantile(delays, 0.5) * 1e3:.1f} ms, p99 {quantile(delays, 0.99) * 1e3:.1f} ms"
    cost = f"{used / tokens * 1e6:5.0f} us of CPU a token"
    return f"{path:24} {count:3} streams: {tokens} tokens in {wall:.1f} s, {cost}, added latency {late}"


async def idle(port: int, server: psutil.Process, count: int) -> str:
    before = server.memory_info().rss
    open_ones = [await asyncio.open_connection(HOST, port) for _ in range(count)]
    await asyncio.sleep(1)
    for _, writer in open_ones:
        writer.write(f"GET /health HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
    for reader, _ in open_ones:
        await reader.readuntil(b"\r\n\r\n")
    after = server.memory_info().rss
    for _, writer in open_ones:
        writer.close()
    return f"{count} idle connections: {(after - before) / 1e6:.1f} MB"


async def measure(port: int, server: psutil.Process, count: int, tokens: int) -> None:
    chat = {"model": "spark", "messages": [{"role": "user", "content": "x"}], "stream": True, "max_tokens": tokens}
    text = {"model": "spark", "prompt": "x", "stream": True, "max_tokens": tokens}
    anthropic = {**chat}
    items = {"model": "spark", "input": "x", "stream": True, "max_output_tokens": tokens, "store": False}
    await Stream().run(port, "/v1/chat/completions", {**chat, "max_tokens": 3})
    for path, body in (
        ("/v1/completions", text),
        ("/v1/chat/completions", chat),
        ("/v1/messages", anthropic),
        ("/api/chat", chat | {"options": {"num_predict": tokens}}),
        ("/v1/responses", items),
    ):
        print(await streams(port, server, 1, path, body), flush=True)
        print(await streams(port, server, count, path, body), flush=True)
    print(await idle(port, server, 1000), flush=True)


def main() -> None:
    count, tok_s, tokens = (int(a) for a in (*sys.argv[1:], *("64", "100", "300")[len(sys.argv) - 1 :]))
    with tempfile.TemporaryDirectory() as home:
        program = SERVER.format(root=str(ROOT), home=str(Path(home) / "home"))
        child = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TESSERA_FAKE_TOK_S": str(tok_s), "TESSERA_FAKE_CLOCK": "1", "TESSERA_HOME": home},
        )
        try:
            assert child.stdout is not None
            assert child.stdin is not None
            port = int(child.stdout.readline())
            print(f"{count} streams at {tok_s} tok/s, {tokens} tokens each; load average {os.getloadavg()[0]:.1f}")
            asyncio.run(measure(port, psutil.Process(child.pid), count, tokens))
            child.stdin.write("\n")
            child.stdin.flush()
            child.wait(20)
        finally:
            child.kill()


if __name__ == "__main__":
    main()
