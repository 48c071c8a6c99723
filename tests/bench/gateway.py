"""Measures Tessera's overhead as a gateway: time to the first token, and CPU time per forwarded token.

`python -m tests.bench.gateway [streams] [tokens] [tok_s]`, from the project's root. The upstream is a process of
its own that writes chunks at a fixed pace with its clock in each; the gateway is a real server process; the client
reads raw bytes. The first token is also timed straight from the upstream, in turns with the road through the
gateway: the difference of the medians is what the gateway adds.
"""

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx2
import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tests.support.servers import RunningServer

HOST = "127.0.0.1"
ROUNDS = 200
REST_S = 3


class Paced(asyncio.Protocol):
    """An upstream that answers every POST with `tokens` chunks, `tok_s` a second."""

    def connection_made(self, transport):
        self.transport, self.data = transport, b""

    def data_received(self, data):
        self.data += data
        head, mark, body = self.data.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
        if not mark or len(body) < length:
            return
        self.data = b""
        if head.startswith(b"GET"):
            listed = json.dumps(
                {"object": "list", "data": [{"id": "m", "owned_by": "vllm", "max_model_len": 4096}]}
            )
            self.transport.write(
                b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(listed), listed.encode())
            )
            return
        self.task = asyncio.ensure_future(self.stream(json.loads(body)))

    async def stream(self, body):
        write = self.transport.write
        write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        count, pace = body["max_tokens"], float(body["messages"][-1]["content"])

        def send(delta, finish="null"):
            line = b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":'
            line += b'[{"index":0,"delta":%s,"logprobs":null,"finish_reason":%s}]}\n\n' % (delta, finish.encode())
            write(b"%x\r\n%s\r\n" % (len(line), line))

        next_at = time.monotonic()
        for _ in range(count):
            send(b'{"content":"@@%.6f;"}' % time.time())
            next_at += 1 / pace
            if (wait := next_at - time.monotonic()) > 0:
                await asyncio.sleep(wait)
        send(b"{}", '"stop"')
        write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")


async def upstream():
    server = await asyncio.get_running_loop().create_server(Paced, HOST, 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def stream(port, model, tokens, pace):
    """Seconds from sending to the first token, and the delays of each, over a separate connection."""
    reader, writer = await asyncio.open_connection(HOST, port)
    body = {
        "model": model,
        "stream": True,
        "max_tokens": tokens,
        "messages": [{"role": "user", "content": str(pace)}],
    }
    data = json.dumps(body).encode()
    sent = time.time()
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n")
    writer.write(b"Content-Length: %d\r\n\r\n%s" % (len(data), data))
    delays, first = [], 0.0
    while line := await reader.readline():
        for told in line.split(b"@@")[1:]:
            first = first or time.time() - sent
            delays.append(time.time() - float(told[: told.index(b";")]))
        if b"[DONE]" in line:
            break
    writer.close()
    return first, delays


def cpu_s(process):
    """By nanoseconds where the kernel tells: its ticks of 10 ms are forty tokens of a lone stream."""
    exact = [path.read_text().split()[0] for path in Path(f"/proc/{process.pid}/task").glob("*/schedstat")]
    times = process.cpu_times()
    return sum(map(int, exact)) / 1e9 if exact else times.user + times.system


async def measure(gateway, straight_port, count, tokens, pace):
    port, process = int(gateway.url.rpartition(":")[2]), psutil.Process(gateway.process.pid)
    straight, through = [], []
    for _ in range(ROUNDS):
        straight.append((await stream(straight_port, "m", 1, 1e6))[0])
        through.append((await stream(port, "up/m", 1, 1e6))[0])
    medians = [statistics.median(times) * 1e3 for times in (straight, through)]
    print(
        f"first token: {medians[0]:.2f} ms straight, {medians[1]:.2f} through, {medians[1] - medians[0]:.2f} added"
    )
    before = cpu_s(process)
    await asyncio.sleep(REST_S)
    print(f"at rest: {(cpu_s(process) - before) / REST_S * 1e3:.1f} ms of CPU a second")
    for many in (1, count):
        before, began = cpu_s(process), time.monotonic()
        found = await asyncio.gather(*(stream(port, "up/m", tokens, pace) for _ in range(many)))
        used, delays = cpu_s(process) - before, sorted(d for _, ds in found for d in ds)
        half, late = (delays[len(delays) * share // 100] * 1e3 for share in (50, 99))
        print(
            f"{many:3} streams of {tokens} tokens at {pace}/s: {used / len(delays) * 1e6:5.1f} us of CPU a token, "
            f"delay p50 {half:.2f} ms, p99 {late:.2f} ms, {time.monotonic() - began:.1f} s"
        )


def main():
    if sys.argv[1:] == ["upstream"]:
        asyncio.run(upstream())
        return
    count, tokens, pace = (int(a) for a in (*sys.argv[1:], *("16", "1000", "100")[len(sys.argv) - 1 :]))
    paced = subprocess.Popen([sys.executable, __file__, "upstream"], stdout=subprocess.PIPE, text=True)
    with tempfile.TemporaryDirectory() as home:
        gateway = None
        try:
            port = int(paced.stdout.readline())
            gateway = RunningServer(Path(home))
            key = {"authorization": f"Bearer {gateway.token}"}
            with httpx2.Client(base_url=gateway.url, headers=key, timeout=60) as http:
                http.put("/tessera/v1/upstreams/up", json={"url": f"http://{HOST}:{port}"}).raise_for_status()
                rule = {"model": "up/*", "upstream": "up"}
                http.put("/tessera/v1/upstream-rules", json=rule).raise_for_status()
            asyncio.run(measure(gateway, port, count, tokens, pace))
        finally:
            paced.kill()
            if gateway is not None:
                gateway.stop()


if __name__ == "__main__":
    main()
