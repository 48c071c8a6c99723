"""Eight abusers at once beside an honest chat, an agent and an index that grows: what do the honest ones notice?

    python tests/optin/marathon_abuse.py [--minutes 60] [--seed 1]

First a sixth of the time without abusers, then the rest with them, then a minute after them. The abusers: uploads,
stores, huge conversations, hostile documents, slow readers, revoked and wrong keys, requests to a model whose
runner is killed, and malformed or expensive bodies; meanwhile the clock jumps and the disk is filled now and then.
Fails if an honest request is wrong, if the 99th percentile of its time to the first token or of its gaps between
tokens is more than 250 ms above the undisturbed one, if the abusers together send fewer than 50 requests a second,
or if memory, descriptors or disk space do not come back. Linux only; a C compiler moves the clock, and the disk is
a small one in memory where `unshare` can make one.
"""

import argparse
import asyncio
import contextlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter, defaultdict
from pathlib import Path

import httpx2
import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.optin.marathon import BUNDLED, on_a_disk_of_its_own
from tests.optin.marathon_liars import SLOW_TEMPLATE, deep
from tests.optin.marathon_world import World

AFTER_S = 60
P99_MS, RATE = 250.0, 50.0
LONG_S, SHOWN = 1.0, 12
MB_LEFT, DESCRIPTORS_LEFT, DISK_MB_LEFT = 150, 20, 20
STORY = "Once upon a time there was a small dog who"
VICTIM = "victim.gguf"
TOOL = {
    "type": "function",
    "function": {
        "name": "note",
        "description": "Write a note",
        "parameters": {"type": "object", "properties": {"text": {"type": "string", "maxLength": 20}},
                       "required": ["text"], "additionalProperties": False},
    },
}  # fmt: skip


# ---------------------------------------------------------------------- abusers, in a process of their own


class Abusers:
    """Each method is one abuser: an endless loop. Prints the number of requests that were sent, each second."""

    def __init__(self, url, keys):
        self.url, self.counts, self.rng = url, Counter(), random.Random(1)
        self.key, self.gone = keys
        limits = httpx2.Limits(max_connections=None)
        self.client = httpx2.AsyncClient(base_url=url, timeout=30, limits=limits, headers=self._as(self.key))
        self.made = defaultdict(list)

    @staticmethod
    def _as(key):
        return {"authorization": f"Bearer {key}"}

    async def send(self, who, method, path, **more):
        """One request; its answer, or None if the server ended the connection."""
        self.counts[who] += 1
        try:
            return await self.client.request(method, path, **more)
        except (httpx2.TransportError, TimeoutError):
            self.counts[f"{who}: cut"] += 1
            await asyncio.sleep(0.05)
            return None

    async def uploads(self):
        while True:
            body = self.rng.randbytes(self.rng.choice((10, 10_000, 2_000_000)))
            answer = await self.send("uploads", "POST", "/v1/files", files={"file": ("x.bin", body)},
                                     data={"purpose": "user_data"})  # fmt: skip
            if answer is not None and answer.status_code == 200:
                self.made["files"].append(answer.json()["id"])
            if len(self.made["files"]) > 30:
                await self.send("uploads", "DELETE", f"/v1/files/{self.made['files'].pop(0)}")

    async def stores(self):
        while True:
            answer = await self.send("stores", "POST", "/v1/vector_stores", json={"name": "s"})
            if answer is not None and answer.status_code == 200:
                self.made["stores"].append(made := answer.json()["id"])
                await self.send("stores", "POST", f"/v1/vector_stores/{made}/search", json={"query": "x"})
            if len(self.made["stores"]) > 30:
                await self.send("stores", "DELETE", f"/v1/vector_stores/{self.made['stores'].pop(0)}")

    async def conversations(self):
        while True:
            item = {"type": "message", "role": "user", "content": "x" * self.rng.choice((10, 1000, 4_000_000))}
            answer = await self.send("conversations", "POST", "/v1/conversations", json={"items": [item] * 5})
            if answer is not None and answer.status_code == 200:
                path = f"/v1/conversations/{answer.json()['id']}/items"
                await self.send("conversations", "POST", path, json={"items": [item]})
            await asyncio.sleep(0.1)

    async def documents(self):
        while True:
            name, body = self.rng.choice(hostile_documents())
            answer = await self.send("documents", "POST", "/v1/files", files={"file": (name, body)},
                                     data={"purpose": "user_data"})  # fmt: skip
            if answer is None or answer.status_code != 200:
                continue
            file = answer.json()["id"]
            made = await self.send("documents", "POST", "/v1/vector_stores", json={"file_ids": [file]})
            await asyncio.sleep(3)
            if made is not None and made.status_code == 200:
                await self.send("documents", "DELETE", f"/v1/vector_stores/{made.json()['id']}")
            await self.send("documents", "DELETE", f"/v1/files/{file}")

    async def slow_readers(self):
        await asyncio.gather(*(self._slow_reader(number) for number in range(24)))

    async def _slow_reader(self, number):
        posted = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        heads = (b"POST / HTTP/1.1\r\nX: ", b"", posted + b"Content-Length: 900\r\n\r\n{")
        host, port = self.url.removeprefix("http://").split(":")
        while True:
            self.counts["slow readers"] += 1
            with contextlib.suppress(OSError, TimeoutError, httpx2.HTTPError):
                if number % 4:
                    reader, writer = await asyncio.open_connection(host, int(port))
                    writer.write(heads[number % 3])
                    await asyncio.wait_for(reader.read(1), 20)
                    writer.close()
                else:
                    body = {"model": "spark", "prompt": STORY, "max_tokens": 400, "stream": True}
                    async with self.client.stream("POST", "/v1/completions", json=body) as answer:
                        async for _ in answer.aiter_bytes(1):
                            await asyncio.sleep(0.5)
            await asyncio.sleep(0.2)

    async def bad_keys(self):
        paths = ("/v1/models", "/tessera/v1/keys", "/v1/files", "/api/tags", "/v1/responses/x", "/metrics")
        while True:
            key = self.gone if self.rng.random() < 0.5 else f"tsr_{self.rng.getrandbits(200):x}"
            path = self.rng.choice(paths)
            answer = await self.send("bad keys", "GET", path, headers=self._as(key))
            if answer is not None and answer.status_code == 200:
                print(json.dumps({"wrong": f"a wrong key reads {path}"}), flush=True)
            await asyncio.sleep(0.01)

    async def victims(self):
        while True:
            body = {"model": VICTIM, "prompt": "x", "max_tokens": 20}
            await self.send("killed runners", "POST", "/v1/completions", json=body)
            await asyncio.sleep(0.2)

    async def bodies(self):
        chat = {"model": "spark", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
        wrong = (
            b"[" * 100_000,
            b"{",
            b"\xff" * 1000,
            b'{"a":' * 50_000,
            b"null",
            b'{"model": 1}',
            b"x" * 3_000_000,
        )
        while True:
            hand = self.rng.random()
            if hand < 0.96:
                sent = {"content": self.rng.choice(wrong), "headers": {"content-type": "application/json"}}
            elif hand < 0.98:
                template = f"{SLOW_TEMPLATE}{self.rng.random()}"
                sent = {"json": {**chat, "chat_template": template}}
            else:
                form = {"type": "json_schema", "json_schema": {"name": "x", "schema": deep(40)}}
                sent = {"json": {**chat, "response_format": form, "seed": self.rng.getrandbits(20)}}
            path = self.rng.choice(
                ("/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat", "/tokenize")
            )
            answer = await self.send("bodies", "POST", path, **sent)
            if answer is not None and answer.status_code == 500:
                print(json.dumps({"wrong": f"500 at {path}: {answer.text[:300]}"}), flush=True)

    async def run(self):
        """All eight until standard input ends; then what they made is deleted."""
        works = [self.uploads, self.stores, self.conversations, self.documents, self.slow_readers, self.bad_keys,
                 self.victims, self.bodies]  # fmt: skip
        # Most wait for their answers; those of wrong keys are held back on purpose.
        tasks = [asyncio.create_task(work()) for work in (*works, *[self.bodies] * 15, *[self.bad_keys] * 24)]
        end = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
        while not end.done():
            await asyncio.wait([end], timeout=1)
            print(json.dumps({"counts": self.counts}), flush=True)
            for task in tasks:
                if task.done():
                    print(json.dumps({"wrong": f"an abuser broke: {task.exception()!r}"}), flush=True)
                    tasks.remove(task)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for kind in ("files", "vector_stores"):
            while True:
                answer = await self.client.get(f"/v1/{kind}", params={"limit": 100})
                listed = answer.json().get("data", [])
                if not listed:
                    break
                for each in listed:
                    await self.client.delete(f"/v1/{kind}/{each['id']}")


def hostile_documents():
    """Names and bytes of documents that are expensive to read."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("mimetype", "application/vnd.oasis.opendocument.text")
        archive.writestr("content.xml", b"<a>" + b" " * 80_000_000)
    sheet = io.BytesIO()
    with zipfile.ZipFile(sheet, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/worksheets/sheet1.xml", "<worksheet>" + '<row r="9"/>' * 500_000)
    return (
        ("bomb.odt", packed.getvalue()),
        ("rows.xlsx", sheet.getvalue()),
        ("deep.html", b"<div>" * 100_000 + b"x"),
        ("wide.csv", b"a," * 500_000),
        ("broken.pdf", b"%PDF-1.7\n" + b"1 0 obj <</Kids [1 0 R]>> endobj\n" * 20_000),
        ("brackets.json", b"[" * 500_000),
        ("mail.mbox", b"From x\nFrom: " + b"(" * 100_000 + b"\n\nx\n"),
    )


# ---------------------------------------------------------------------- honest ones


class Honest:
    """A chat, an agent and an index. Times are collected by phase: `times[phase, what]`."""

    def __init__(self, world, url, key):
        self.world, self.phase, self.is_disk_full = world, "quiet", False
        self.times, self.counts = defaultdict(list), Counter()
        self.longest = []  # (seconds, when, what) of the times above a second
        headers = {"authorization": f"Bearer {key}"}
        self.client = httpx2.AsyncClient(base_url=url, timeout=120, headers=headers)
        self.known = {}

    async def chat(self):
        """Streamed answers; a story that is told the same way each time."""
        number = 0
        while True:
            number += 1
            prompt = STORY if number % 5 == 0 else f"{STORY} had {number} bones"
            body = {"model": "spark", "prompt": prompt, "max_tokens": 24, "stream": True, "temperature": 0}
            body["deterministic"] = prompt == STORY
            begun, last, text, wrong = time.perf_counter(), None, "", ""
            try:
                async with self.client.stream("POST", "/v1/completions", json=body) as answer:
                    async for line in answer.aiter_lines():
                        if not line.startswith("data: {"):
                            continue
                        piece = json.loads(line[6:])
                        if "error" in piece:
                            wrong = line
                            break
                        said = "".join(choice["text"] for choice in piece["choices"])
                        if not said:
                            continue
                        now, text = time.perf_counter(), text + said
                        what = "first token" if last is None else "gap"
                        took = now - (last or begun)
                        self.times[self.phase, what].append(took)
                        if took > LONG_S:
                            self.longest.append(
                                (
                                    took,
                                    time.monotonic(),
                                    what + (", deterministic" if body["deterministic"] else ""),
                                )
                            )
                        last = now
                known = self.known.setdefault(prompt, text) if prompt == STORY and not wrong else text
                if wrong or not text or text != known:
                    self.world.blame(f"honest chat: {answer.status_code}: {wrong or text!r}, not {known!r}")
                self.counts["chats"] += 1
            except (httpx2.HTTPError, ValueError, KeyError) as error:
                self.world.blame(f"honest chat: {error!r}")
            await asyncio.sleep(0.1)

    async def agent(self):
        """A conversation of forced tool calls that grows."""
        talk = []
        while True:
            if len(talk) > 12:
                talk = []
            talk.append({"role": "user", "content": f"Note number {len(talk)}."})
            body = {
                "model": "spark",
                "messages": talk,
                "tools": [TOOL],
                "tool_choice": "required",
                "max_tokens": 60,
            }
            try:
                answer = await self.client.post("/v1/chat/completions", json=body)
                message = answer.json()["choices"][0]["message"]
                call = message["tool_calls"][0]
                json.loads(call["function"]["arguments"])
                talk += [{**message, "tool_calls": [call]},
                         {"role": "tool", "tool_call_id": call["id"], "content": "noted"}]  # fmt: skip
                self.counts["calls of tools"] += 1
            except (httpx2.HTTPError, KeyError, ValueError) as error:
                self.world.blame(f"honest agent: {error!r} {answer.text[:300]}")
                talk = []
            await asyncio.sleep(0.5)

    async def index(self, manage):
        """A folder that grows; each file is found by its words soon."""
        place = self.world.folder / "documents"
        place.mkdir()
        made = (await manage("POST", "/collections", json={"name": "own", "sources": [str(place)]})).json()
        path, number = f"/collections/{made['id']}", 0
        while True:
            number += 1
            begun = time.perf_counter()
            try:
                (place / f"{number}.md").write_text(f"# {number}\n\nThe word zebra{number} stands here. " * 20)
                await manage("POST", f"{path}/refresh")
                while not (await self._found(manage, path, f"zebra{number}")):
                    if time.perf_counter() - begun > 120:
                        if not self.is_disk_full:
                            self.world.blame(f"honest index: file {number} is not found after 120 s")
                        break
                    await asyncio.sleep(0.5)
                self.times[self.phase, "indexed"].append(time.perf_counter() - begun)
                self.counts["files indexed"] += 1
            except (httpx2.HTTPError, OSError, ValueError) as error:
                if not self.is_disk_full:
                    self.world.blame(f"honest index: {error!r}")
            await asyncio.sleep(3)

    async def _found(self, manage, path, word):
        answer = await manage("POST", f"{path}/search", json={"query": word})
        return word in answer.text.replace(f'"{word}"', "", 1) if answer.status_code == 200 else False


def at(values, part):
    """The value in milliseconds below which this part of them lies."""
    ordered = sorted(values)
    return 1000 * ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else float("nan")


def fill_up(path):
    """Write to a file until the disk is full."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(b"\0" * (1 << 20))


def p99(values):
    """The 99th percentile in milliseconds."""
    return at(values, 0.99)


class Run:
    """The phases, the faults and the measurements."""

    def __init__(self, options, folder):
        self.options, self.rng = options, random.Random(options.seed)
        self.world = World(folder, random.Random(options.seed + 1), "http://127.0.0.1:9")
        shutil.copy(BUNDLED, self.world.home / "models" / VICTIM)
        self.sent = Counter()
        self.tried = []  # (when, fault)

    async def manage(self, method, path, **more):
        headers = {"authorization": f"Bearer {self.world.told()['token']}"}
        url = f"http://127.0.0.1:{self.world.port}/tessera/v1{path}"
        return await self.owner.request(method, url, headers=headers, **more)

    async def run(self):
        world = self.world
        await world.start_server()
        async with httpx2.AsyncClient(timeout=120) as self.owner:
            keys = {}
            for name in ("honest", "abuser", "gone"):
                answer = await self.manage("POST", "/keys", json={"name": name, "scopes": ["chat"]})
                keys[name] = answer.json()["key"]
            await self.manage("DELETE", "/keys/gone")
            url = f"http://127.0.0.1:{world.port}"
            self.honest = honest = Honest(world, url, keys["honest"])
            tasks = [asyncio.create_task(w) for w in (honest.chat(), honest.agent(), honest.index(self.manage))]
            quiet_s = max(30.0, self.options.minutes * 10)
            await asyncio.sleep(quiet_s)
            before = self.measured()
            honest.phase = "abused"
            begun = time.monotonic()
            await self.abused(url, (keys["abuser"], keys["gone"]), self.options.minutes * 60 - quiet_s)
            self.abused_s = time.monotonic() - begun
            honest.phase = "after"
            await asyncio.sleep(AFTER_S)
            after = self.measured()
            for task in tasks:
                if task.done():
                    world.blame(f"an honest one broke: {task.exception()!r}")
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await world.end_server(signal.SIGTERM)
        self.judge(before, after)

    async def abused(self, url, keys, seconds):
        """The abusers in their process, and faults, for some seconds."""
        command = [sys.executable, __file__, "--abuse", url, *keys]
        process = await asyncio.create_subprocess_exec(
            *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, limit=1 << 20
        )
        reading = asyncio.create_task(self.read(process.stdout))
        faults = asyncio.create_task(self.faults())
        await asyncio.sleep(seconds)
        faults.cancel()
        await asyncio.gather(faults, return_exceptions=True)
        self.world.set_clock(0)
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), 120)
        except TimeoutError:
            self.world.blame("what the abusers made cannot be deleted within 120 s")
            process.kill()
        await reading

    async def read(self, stream):
        async for line in stream:
            told = json.loads(line)
            self.sent = Counter(told.get("counts", self.sent))
            if "wrong" in told:
                self.world.blame(f"abusers: {told['wrong']}")

    async def faults(self):
        """The runner of the victim dies, the clock jumps, the disk is full."""
        world = self.world
        while True:
            for fault in (self.kill_victim, self.jump, self.fill):
                await asyncio.sleep(self.rng.uniform(4, 10))
                self.tried.append((time.monotonic(), fault.__name__))
                await fault()
            with contextlib.suppress(OSError):
                (world.folder / "ballast").unlink(missing_ok=True)

    async def kill_victim(self):
        told = await self.manage("GET", "/stats", params={"once": "true"})
        for model in json.loads(told.text.split("data: ", 1)[1])["models"]:
            if "victim" in model["id"] and model.get("pid"):
                with contextlib.suppress(psutil.Error):
                    psutil.Process(model["pid"]).kill()

    async def jump(self):
        self.world.set_clock(self.rng.choice((3600, -86_400, 20 * 31_557_600, -20 * 31_557_600)))
        await asyncio.sleep(5)
        self.world.set_clock(0)

    async def fill(self):
        if not self.world.own_disk:
            return
        ballast = self.world.folder / "ballast"
        self.honest.is_disk_full = True
        try:
            await asyncio.to_thread(fill_up, ballast)  # the honest ones measure in this loop
            await asyncio.sleep(5)
        finally:
            ballast.unlink(missing_ok=True)
        await asyncio.sleep(5)
        self.honest.is_disk_full = False

    def measured(self):
        """Memory and descriptors of the server, and the disk space of its home."""
        process = psutil.Process(self.world.server.process.pid)
        self.sizes = Counter()  # without the prompt cache, which has its own limit
        for path in self.world.home.rglob("*"):
            with contextlib.suppress(OSError):
                if path.is_file() and path.suffix not in {".log", ".kv"}:
                    self.sizes[path.relative_to(self.world.home).as_posix()] = path.stat().st_size
        disk = self.sizes.total() / 1e6
        return {"MB": process.memory_info().rss / 1e6, "descriptors": process.num_fds(), "disk MB": disk}

    def judge(self, before, after):
        """Compare, and print."""
        honest, blame = self.honest, self.world.blame
        for what in ("first token", "gap"):
            quiet, abused = (p99(honest.times[phase, what]) for phase in ("quiet", "abused"))
            for phase in ("quiet", "abused", "after"):
                times = honest.times[phase, what]
                shown = ", ".join(f"p{100 * part:g} {at(times, part):.0f}" for part in (0.5, 0.9, 0.99))
                print(f"{what}, {phase}: {len(times)} times, {shown}, most {at(times, 1):.0f} ms")
            if not abused <= quiet + P99_MS:
                blame(f"{what}: p99 is {abused - quiet:.0f} ms above the undisturbed one ({P99_MS:.0f} allowed)")
        for took, when, what in sorted(honest.longest, reverse=True)[:SHOWN]:
            faults = [f"{name} {when - then:.1f} s before" for then, name in self.tried if then <= when][-2:]
            print(f"  {took:.1f} s: {what}; {', '.join(faults) or 'no fault before'}")
        requests = sum(count for who, count in self.sent.items() if ":" not in who)
        rate = requests / self.abused_s
        print(f"abusers: {rate:.0f} requests/s; {dict(self.sent)}")
        if rate < RATE:
            blame(f"the abusers sent {rate:.0f} requests a second, not {RATE:.0f}")
        limits = {"MB": MB_LEFT, "descriptors": DESCRIPTORS_LEFT, "disk MB": DISK_MB_LEFT}
        for what, limit in limits.items():
            print(f"{what}: {before[what]:.0f} before, {after[what]:.0f} after")
            if after[what] > before[what] + limit:
                blame(f"{what}: {after[what] - before[what]:.0f} more than before the abusers ({limit} allowed)")
        print(f"largest files: {self.sizes.most_common(6)}")
        print(
            f"honest: {dict(honest.counts)}; a file is found after {p99(honest.times['abused', 'indexed']):.0f} ms"
        )


def main():
    if sys.argv[1:2] == ["--abuse"]:
        os.nice(19)  # they represent other computers: their CPU time is not the server's
        asyncio.run(Abusers(sys.argv[2], sys.argv[3:5]).run())
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="marathon-"))
    if options.folder is None:
        on_a_disk_of_its_own(folder, __file__)
    run = Run(options, folder)
    try:
        asyncio.run(run.run())
    finally:
        run.world.close()
    print(json.dumps({"seed": options.seed, "found": len(run.world.found)}))
    return bool(run.world.found)


if __name__ == "__main__":
    raise SystemExit(main())
