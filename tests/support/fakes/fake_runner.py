"""A scripted runner: it speaks the runner protocol as a real child process, without a model.

`python fake_runner.py FOLDER`: each request uses the next line of the newest FOLDER/script*.jsonl, a reply such as
`{"pieces": ["Hel", "lo"], "delay_s": 0.01, "finish": "stop"}`, and is recorded in FOLDER/requests.jsonl. If no line
is left, it repeats "fake " `max_tokens` times (at TESSERA_FAKE_TOK_S tokens per second, if set). A reply with
`"again": "busy"` is also the reply to each next request whose prompt has that text near its end.
"""

import asyncio
import json
import os
import sys
import time
from pathlib import Path

import msgspec
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from engine.core.types import Delta, Done, ModelFacts, Started, Timings, Usage
from engine.runner import protocol
from engine.runner.orphans import die_with_parent
from engine.runner.protocol import Channel, claim_stdio

_NEAR_END_CHARS = 300  # the last message and the mark of the answer that follows


class FakeRunner:
    def __init__(self, channel: Channel, folder: Path) -> None:
        self.channel = channel
        self.folder = folder
        self.used = 0
        self.script = ""
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.tok_s = float(os.environ.get("TESSERA_FAKE_TOK_S", "0"))
        self.clock = "TESSERA_FAKE_CLOCK" in os.environ  # for benchmarks: each token states its time of generation
        self.outbox: list[tuple[int, object]] = []

    def reply(self, prompt: str) -> dict[str, object] | None:
        try:
            script = max(self.folder.glob("script*.jsonl"))
            lines = script.read_text("utf-8").splitlines()
        except ValueError:
            return None
        died = script.with_suffix(".used")  # the script made an earlier runner exit
        if script.name != self.script:
            self.script, self.used = script.name, int(died.read_text()) if died.exists() else 0
        again = json.loads(lines[self.used - 1]).get("again") if 0 < self.used <= len(lines) else None
        if again and again in prompt[-_NEAR_END_CHARS:]:
            return json.loads(lines[self.used - 1])
        if self.used >= len(lines):
            return None
        self.used += 1
        return json.loads(lines[self.used - 1])

    async def run(self) -> None:
        self.channel.send(protocol.Hello(version=protocol.VERSION, engine="fake", pid=os.getpid()))
        loop = asyncio.get_running_loop()
        beating = loop.create_task(self.beat())
        while True:
            message = await loop.run_in_executor(None, self.channel.receive)
            if message is None or isinstance(message, protocol.Shutdown):
                beating.cancel()
                return
            self.handle(message)

    async def beat(self) -> None:
        while True:
            await asyncio.sleep(protocol.HEARTBEAT_S)
            self.channel.send(protocol.Heartbeat(step_s=0.0))

    def handle(self, message: protocol.ToRunner) -> None:
        if isinstance(message, protocol.Load):
            self.load(message.settings)
        elif isinstance(message, protocol.Submit):
            self.tasks[message.id] = asyncio.get_running_loop().create_task(self.answer(message))
        elif isinstance(message, protocol.Cancel):
            task = self.tasks.pop(message.id, None)
            if task is not None:
                task.cancel()
        elif isinstance(message, protocol.Tokenize):
            self.note(message)
            self.channel.send(protocol.Tokens(id=message.id, token_ids=list(message.text.encode())))
        elif isinstance(message, protocol.Detokenize):
            self.note(message)
            self.channel.send(protocol.Pieces(id=message.id, pieces=[bytes([t % 256]) for t in message.token_ids]))
        elif isinstance(message, protocol.Embed):
            self.embed(message)
        elif isinstance(message, protocol.StatsQuery):
            self.channel.send(
                protocol.Stats(
                    id=message.id, steps=0, prompt_tokens=0, generated_tokens=0, cached_tokens=0,
                    active=len(self.tasks), waiting=0, kv_cells_used=0, kv_cells_total=1, rss_bytes=1,
                )
            )  # fmt: skip

    def load(self, settings: protocol.LoadSettings) -> None:
        time.sleep(float(os.environ.get("TESSERA_FAKE_LOAD_S", "0")))
        template = self.folder / "template.jinja"
        trained, fim = self.folder / "n_ctx_train", self.folder / "fim.json"
        n_ctx_train = int(trained.read_text()) if trained.exists() else settings.n_ctx
        self.channel.send(protocol.Progress(phase="weights", fraction=1.0))
        facts = ModelFacts(
            architecture="fake", description="fake", n_params=1, size_bytes=1, n_vocab=256, n_ctx=settings.n_ctx,
            n_ctx_train=n_ctx_train, n_parallel=settings.n_parallel, n_embd=4, bos="", eos="",
            chat_template=template.read_text("utf-8") if template.exists() else None, add_bos=False,
            fim=json.loads(fim.read_text()) if fim.exists() else {},
            metadata={}, backend="fake",
        )  # fmt: skip
        self.channel.send(protocol.Loaded(facts=facts))

    def note(self, message: protocol.Tokenize | protocol.Detokenize | protocol.Embed) -> None:
        """Record a request other than a generation."""
        with (self.folder / "others.jsonl").open("a") as file:
            file.write(msgspec.json.encode(msgspec.structs.replace(message, id=0)).decode() + "\n")

    def embed(self, message: protocol.Embed) -> None:
        self.note(message)
        rows = []
        for item in message.inputs:
            size = len(item)
            row = [size / 10] if message.query is not None else [1.0, size, 0.0, 0.0]
            rows.append(np.asarray(row, "<f4").tobytes())
        width = 1 if message.query is not None else 4
        counts = [len(i) for i in message.inputs]
        self.channel.send(protocol.Embedded(id=message.id, width=width, vectors=rows, token_counts=counts))

    async def answer(self, message: protocol.Submit) -> None:
        request = message.request
        with (self.folder / "requests.jsonl").open("a") as file:
            file.write(msgspec.json.encode(request).decode() + "\n")
        prompt_tokens = len(request.prompt)
        if prompt_tokens >= 1 << 20:
            facts = {"prompt_tokens": prompt_tokens, "context_tokens": 1 << 20}
            self.channel.send(
                protocol.Fault(id=message.id, code="context_length_exceeded", message="", facts=facts)
            )
            return
        self.emit(message.id, Started(prompt_tokens=prompt_tokens, cached_tokens=0))
        reply = self.reply(request.prompt) or {"pieces": ["fake "] * (request.max_tokens or 4), "finish": "length"}
        if reply.get("die"):
            (self.folder / self.script).with_suffix(".used").write_text(str(self.used))
            os._exit(int(reply["die"]))
        delay = float(reply.get("delay_s", 1 / self.tok_s if self.tok_s else 0))
        sent, finish = 0, str(reply.get("finish", "stop"))
        due = time.monotonic()
        for piece in reply["pieces"]:
            if delay:
                due += delay
                await asyncio.sleep(max(0.0, due - time.monotonic()))
            text = f"@@{time.time():.6f};" if self.clock else piece
            self.emit(message.id, Delta(text=text, token_ids=(sent,)))
            sent += 1
        if code := reply.get("fault"):
            self.flush()
            self.channel.send(protocol.Fault(id=message.id, code=str(code), message="it broke"))
            return
        usage = Usage(prompt_tokens=prompt_tokens, completion_tokens=sent)
        self.emit(
            message.id, Done(finish_reason=finish, usage=usage, timings=Timings(ttft_s=0.001, decode_s=0.001))
        )
        self.tasks.pop(message.id, None)

    def emit(self, request_id: int, event: object) -> None:
        """Send all events of one event-loop iteration in one frame, like a step of the real engine."""
        if not self.outbox:
            asyncio.get_running_loop().call_soon(self.flush)
        self.outbox.append((request_id, event))

    def flush(self) -> None:
        items, self.outbox = self.outbox, []
        self.channel.send(protocol.Events(items=items))


if __name__ == "__main__":
    die_with_parent(int(sys.argv[2]))
    asyncio.run(FakeRunner(claim_stdio(), Path(sys.argv[1])).run())
    os._exit(0)
