"""The clients and jobs of a marathon, and the requirements for every answer."""

import asyncio
import contextlib
import json
import time
from collections import Counter

import httpx2

from tests.optin.random_requests import Shot, complete, draw_shot, golden_prompts, prose, refusal
from tests.support.servers import ROOT

# Seconds without a byte after which a request counts as endless: ticks of this process, because a machine may
# sleep.
STUCK_TICKS = 300
# How long after a fault an answer may still report it.
ECHO_S = 120.0
NUM_KNOWN = 6


class Traffic:
    """Draws requests, sends them, checks the answers. `open`: running ones, with the tick of the last byte."""

    def __init__(self, world, models, poisoned):
        self.world, self.rng, self.models, self.poisoned = world, world.rng, models, poisoned
        self.golden = golden_prompts(NUM_KNOWN)
        self.known, self.counts, self.open = {}, Counter(), {}
        self.tick, self.running, self.sent = 0, True, 0
        self.faults = []  # [name, begun, ended or None, breaks connections]
        self.client = httpx2.AsyncClient(timeout=None, limits=httpx2.Limits(max_connections=None))

    @property
    def url(self):
        return f"http://127.0.0.1:{self.world.port}"

    def disturbed(self, since, *, connection=False):
        """Whether a fault was active between `since` and now; if requested, one that breaks connections."""
        return any(
            (breaks or not connection) and (ended is None or ended > since - ECHO_S)
            for _, _, ended, breaks in self.faults
        )

    # ------------------------------------------------------------------ clients

    async def users(self, number, pause_s):
        await asyncio.gather(*(self._user(pause_s) for _ in range(number)))

    async def _user(self, pause_s):
        while self.running:
            await asyncio.sleep(self.rng.uniform(0, 2 * pause_s))
            await self.world.up.wait()
            if self.rng.random() < 0.12:
                await self.ask_known()
                continue
            shot = draw_shot(self.rng, "spark", self.poisoned, self.golden)
            if self._model() != "spark":
                shot = self._short()
            number, begun = self.sent, time.monotonic()
            self.sent += 1
            self.open[number] = [shot, self.tick]
            try:
                await self._send(number, shot, begun)
            except httpx2.TransportError as error:
                self._broken(shot.kind, error, begun)
            except Exception as error:
                self.world.blame(f"{shot.kind} {shot.path}: {error!r} {str(shot.body)[:300]}")
            finally:
                del self.open[number]

    def _model(self):
        """Mostly the small one: the real one takes a hundred times as long."""
        return self.rng.choices(self.models, [9, 1][: len(self.models)])[0]

    def _short(self):
        """A question to the real model that ends in bounded time on a busy machine."""
        body = {"model": self.models[1], "max_tokens": 8, "stream": self.rng.random() < 0.5}
        if self.rng.random() < 0.5:
            return Shot(
                "completion", "/v1/completions", {**body, "prompt": prose(self.rng, 1, 12)}, stream=body["stream"]
            )
        talk = [{"role": "user", "content": prose(self.rng, 1, 12)}]
        return Shot("chat", "/v1/chat/completions", {**body, "messages": talk}, stream=body["stream"])

    def _broken(self, kind, error, begun):
        if self.disturbed(begun, connection=True):
            self.counts["connection cut by a fault"] += 1
        else:
            self.world.blame(f"{kind}: the connection broke without a fault: {error!r}")

    async def _send(self, number, shot, begun):
        self.counts[shot.kind] += 1
        content = shot.body if isinstance(shot.body, bytes) else json.dumps(shot.body).encode()
        headers = {"content-type": "application/json"}
        request = self.client.build_request("POST", self.url + shot.path, content=content, headers=headers)
        if shot.leave_after == -1:
            with contextlib.suppress(TimeoutError, httpx2.HTTPError):
                async with asyncio.timeout(self.rng.uniform(0.0, 0.3)):
                    await self.client.send(request)
            return
        response = await self.client.send(request, stream=True)
        got = bytearray()
        try:
            async for piece in response.aiter_raw():
                got += piece
                self.open[number][1] = self.tick
                if shot.leave_after is not None and len(got) > shot.leave_after:
                    return
                if shot.slow:
                    await asyncio.sleep(0.05)
        finally:
            await response.aclose()
        self._judge(shot, response.status_code, bytes(got), begun)

    def _judge(self, shot, status, body, begun):
        said = refusal(body) if status != 200 else None
        if status == 200 and shot.stream:
            errors = [line for line in body.splitlines() if b'"error"' in line]
            said = next(filter(None, (refusal(line.removeprefix(b"data: ")) for line in errors)), None)
        if status != 200 and said is None:
            self._wrong(shot, status, f"no known form: {body[:300]!r}")
        elif shot.expect == "refused":
            if not 400 <= status < 500 and not self.disturbed(begun):
                self._wrong(shot, status, said or body[:200])
        elif shot.expect == "poison" and said is not None and "not a number" in said:
            self.counts["poison told"] += 1
        elif said is not None:
            if "internal error" in said or not self.disturbed(begun):
                self._wrong(shot, status, said)
            self.counts["ended by a fault, told"] += 1
        elif shot.leave_after is None and (wrong := complete(shot, body)):
            self._wrong(shot, status, wrong)

    def _wrong(self, shot, status, what):
        if shot.expect == "any" and status < 500 and "no known form" not in str(what):
            return
        self.world.blame(f"{shot.kind} {shot.path}: status {status}: {what} {str(shot.body)[:400]}")

    # ------------------------------------------------------------------ known answers

    def _known_body(self, model, index):
        prompt = self.golden[index] if model == "spark" else ("Once upon a time", "The capital of France is")[index]
        return {"model": model, "prompt": prompt, "max_tokens": 8, "temperature": index % 2 * 0.9,
                "seed": 5, "logprobs": 2, "deterministic": True}  # fmt: skip

    async def learn(self):
        """The answers before anything else runs."""
        for model in self.models:
            for index in range(NUM_KNOWN if model == "spark" else 2):
                url = f"{self.url}/v1/completions"
                answer = await self.client.post(url, json=self._known_body(model, index))
                if answer.status_code != 200:
                    raise RuntimeError(f"{model} does not answer before any fault: {answer.text[:400]}")
                told, got = _deterministic(answer.json())
                self.known[model, index] = {told["fingerprint"]: got}

    async def ask_known(self):
        """One of them again: the same text and the same bits."""
        wanted = self._model()
        model, index = self.rng.choice(sorted(key for key in self.known if key[0] == wanted))
        number, begun = self.sent, time.monotonic()
        self.sent += 1
        self.open[number] = ["known answer", self.tick]
        try:
            answer = await self.client.post(f"{self.url}/v1/completions", json=self._known_body(model, index))
            if answer.status_code != 200:
                said = refusal(answer.content) or ""
                if "internal error" in said or not self.disturbed(begun):
                    self.world.blame(f"known answer of {model}: {answer.status_code} {answer.text[:300]}")
                return
            told, got = _deterministic(answer.json())
            self.counts["known answers compared"] += 1
            if not told["promised"]:
                self.world.blame(f"a deterministic answer is not promised: {model} {index}: {told}")
            known = self.known[model, index]
            if told["fingerprint"] not in known:  # a reported change, such as weights rewritten after a tuning
                self.counts["known answers under other settings, told"] += 1
            first = known.setdefault(told["fingerprint"], got)
            if got != first:
                self.world.blame(f"a deterministic answer changed: {model} {index}: {first} then {got}")
        except httpx2.TransportError as error:
            self._broken("known answer", error, begun)
        finally:
            del self.open[number]

    async def well(self, limit_ticks=180):
        """After a fault: a plain question is answered. Returns the seconds, or None and the reason."""
        begun, last = self.tick, ""
        while self.tick - begun < limit_ticks:
            with contextlib.suppress(httpx2.TransportError, TimeoutError):
                body = {"model": self.models[0], "prompt": "Hi", "max_tokens": 1}
                answer = await self.client.post(f"{self.url}/v1/completions", json=body, timeout=60)
                if answer.status_code == 200:
                    return self.tick - begun, ""
                last = answer.text[:300]
            await asyncio.sleep(0.5)
        return None, last

    # ------------------------------------------------------------------ jobs

    async def manage(self, method, path, **more):
        headers = {"authorization": f"Bearer {self.world.told()['token']}"}
        return await self.client.request(
            method, f"{self.url}/tessera/v1{path}", headers=headers, timeout=60, **more
        )

    async def jobs(self):
        """One job after another, some paused, resumed or cancelled; each ends, even if the server did."""
        while self.running:
            await asyncio.sleep(self.rng.uniform(2, 10))
            await self.world.up.wait()
            begun = time.monotonic()
            try:
                await self._job()
            except (httpx2.TransportError, FileNotFoundError) as error:
                self._broken("job", error, begun)
            except (KeyError, ValueError) as error:
                if not self.disturbed(begun):
                    self.world.blame(f"job: {error!r}")

    async def _job(self):
        rng = self.rng
        measured = {"model": "spark", "lengths": [16], "parallel": [1], "repeats": 1, "tokens": 4}
        spark = str(ROOT / "assets" / "models" / "spark-f16.gguf")
        kinds = {
            "quantize": ("/quantize", {"model": "spark", "budget_bytes": 5_000_000, "tier": "instant"}),
            "measure": ("/bench", measured),
            "tune": ("/autotune", {"model": "spark", "lengths": [32], "limit_s": 5}),
            "verify": ("/models/spark/verify", {}),
            "import a file": ("/models/import", {"path": spark}),
            "import a folder": ("/models/import", {"path": str(ROOT / "tests" / "data" / "spark-hf")}),
            "pull": ("/models/pull", {"model": "org/Spark-GGUF:F16"}),
            "collection": ("", {}),
        }
        kind = rng.choice(sorted(kinds))
        if kind == "collection":
            await self._collection()
            return
        path, body = kinds[kind]
        begun = time.monotonic()
        answer = await self.manage("POST", path, json=body)
        if answer.status_code != 202:
            if answer.status_code == 500 or (answer.status_code >= 500 and not self.disturbed(begun)):
                self.world.blame(f"job {kind}: {answer.status_code} {answer.text[:300]}")
            return
        self.counts[f"job: {kind}"] += 1
        job, hand = answer.json()["id"], rng.random()
        if hand < 0.3:
            await asyncio.sleep(rng.uniform(0, 2))
            await self.manage("POST", f"/jobs/{job}/{'cancel' if hand < 0.15 else 'pause'}")
        await self._to_its_end(kind, job, begun)

    async def _to_its_end(self, kind, job, begun):
        since, said = self.tick, ""
        while self.running:
            await asyncio.sleep(1)
            await self.world.up.wait()
            with contextlib.suppress(httpx2.TransportError, ValueError, FileNotFoundError):
                told = await self.manage("GET", f"/jobs/{job}")
                said = told.text[:400]
                if told.status_code == 404 and self.disturbed(begun):
                    self.counts["job list lost to a damaged file"] += 1
                    return
                found = told.json()
                if found["state"] in {"done", "failed", "cancelled"}:
                    await self._ended(kind, found, begun)
                    return
                if found["state"] == "paused":
                    await self.manage("POST", f"/jobs/{job}/resume")
            if self.tick - since > 2 * STUCK_TICKS:
                self.world.blame(f"job {kind} has no end: {said}")
                await self.manage("POST", f"/jobs/{job}/cancel")
                return

    async def _ended(self, kind, found, begun):
        self.counts[f"job {found['state']}"] += 1
        error = found.get("error") or {}
        if found["state"] == "failed" and (error.get("code") == "bug" or not self.disturbed(begun)):
            self.world.blame(f"job {kind} failed: {error}")
        if found["state"] == "done" and kind in {"quantize", "import a file", "import a folder", "pull"}:
            await self._remove(found["result"]["model"])

    async def _remove(self, model):
        if model in self.models:
            return
        await self.manage("DELETE", f"/models/{model}")
        await self.manage("DELETE", "/trash")

    async def _collection(self):
        place = self.world.folder / "documents"
        place.mkdir(exist_ok=True)
        for index in range(4):
            (place / f"{index}.md").write_text(f"# {index}\n\n" + prose(self.rng, 50, 200))
        begun = time.monotonic()
        made = await self.manage("POST", "/collections", json={"name": "c", "sources": [str(place)]})
        if made.status_code != 201:
            if made.status_code == 500 or not self.disturbed(begun):
                self.world.blame(f"collection: {made.status_code} {made.text[:300]}")
            return
        path = f"/collections/{made.json()['id']}"
        self.counts["job: collection"] += 1
        for _ in range(60):
            if (await self.manage("GET", path)).json().get("state") == "ready":
                break
            await asyncio.sleep(1)
        found = await self.manage("POST", f"{path}/search", json={"query": "memory of the server"})
        if found.status_code != 200 and not self.disturbed(begun):
            self.world.blame(f"collection search: {found.status_code} {found.text[:300]}")
        await self.manage("DELETE", path)


def _deterministic(answer):
    """The guarantees of an answer, and its text with the bits."""
    choice = answer["choices"][0]
    return answer["tessera"]["deterministic"], (choice["text"], choice["logprobs"]["token_logprobs"])
