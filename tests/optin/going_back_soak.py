"""Random conversations with models whose state cannot be truncated: the text equals that of a separate request.

    python tests/optin/going_back_soak.py [--seconds 60] [--seed 1] [--models "Qwen 3.5" LFM2 ...]

Tiny models have random weights in 32 bits. Two concurrent clients, then one, send prompts that continue, shorten
or depart from earlier ones, cancel requests at any moment, and force, allow or forbid draft tokens, with a small
store and disk. Every answer is compared, token by token, with that of a second runner without a cache. Exits with
1 if one differs.
"""

import argparse
import asyncio
import contextlib
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from engine.runner.process import RunnerProcess
from engine.runner.protocol import LoadSettings
from tests.support.models.architectures import ARCHITECTURES, write_architecture
from tests.support.runner_calls import EXACT, FEW, WORDS, collect

MODELS = ("Qwen 3.5", "Qwen 3.5 MoE", "LFM2", "Nemotron-H", "Jamba", "Falcon H1", "Mamba 2", "Gemma 2")
LONGEST = 850
TEXTS = 12
MIB = 1 << 20


class Talk:
    """Clients of one model, and the results of their requests."""

    def __init__(self, runner: RunnerProcess, plain: RunnerProcess, seed: int) -> None:
        self.runner, self.plain = runner, plain
        self.rng = random.Random(seed)
        self.texts = [self._words(self.rng.randrange(20, 500)) for _ in range(5)]
        self.known: dict[tuple[int, ...], list[int]] = {}
        self.counts: Counter[str] = Counter()

    async def client(self, until: float) -> None:
        """One request after another."""
        while time.monotonic() < until:
            prompt, count = self._prompt(), self.rng.randrange(1, 60)
            if self.rng.random() < 0.25:
                await self._leave(prompt, count)
                continue
            guess = self.rng.choice((True, None, False))
            ids, timings = await collect(self.runner, prompt, max_tokens=count, sampling=FEW, speculate=guess)
            self.counts["guessed"] += timings.draft_tokens
            self.counts["guessed right"] += timings.draft_accepted
            same = ids == await self._alone(prompt, count)
            self.counts["equal" if same else "DIFFERENT"] += 1
            if self.rng.random() < 0.6 and len(prompt) + count < LONGEST:
                self.texts.append(prompt + ids)
            if len(self.texts) > TEXTS:
                self.texts.pop(self.rng.randrange(len(self.texts)))
            if self.rng.random() < 0.3:
                await asyncio.sleep(self.rng.uniform(0, 0.5))

    def _words(self, count: int) -> list[int]:
        return [self.rng.choice((*WORDS, 50, 60)) for _ in range(count)]

    def _prompt(self) -> list[int]:
        prompt = list(self.rng.choice(self.texts))
        if self.rng.random() < 0.3:
            prompt = prompt[: self.rng.randrange(5, len(prompt) + 1)]
        return [*prompt, *self._words(self.rng.choice((0, 1, 3, 40)))][:LONGEST]

    async def _leave(self, prompt: list[int], count: int) -> None:
        request = asyncio.create_task(collect(self.runner, prompt, max_tokens=count, sampling=FEW))
        await asyncio.sleep(self.rng.uniform(0.002, 0.4))
        request.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await request
        self.counts["left"] += 1

    async def _alone(self, prompt: list[int], count: int) -> list[int]:
        key = tuple(prompt)
        if key not in self.known:
            options = {"sampling": FEW, "speculate": False, "cache_prompt": False, "max_tokens": 60}
            self.known[key] = (await collect(self.plain, prompt, **options))[0]
        return self.known[key][:count]


async def started(path: str, **options) -> RunnerProcess:
    """A runner in 32 bits, where only a mistake makes a difference."""
    small = {"n_ctx": 1024, "kv_cells": 3072, "n_parallel": 3, "n_ubatch": 64, "n_batch": 256, "n_threads": 1}
    runner = await RunnerProcess.start("llama", path)
    await runner.load(LoadSettings(path=path, **EXACT, **small, **options))
    return runner


async def talk(name: str, seconds: float, seed: int) -> bool:
    """Send requests to one model; True if every answer was correct."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(write_architecture(Path(folder) / "model.gguf", ARCHITECTURES[name]))
        store = {"cache_ram_bytes": 4 * MIB, "cache_disk_bytes": 16 * MIB, "cache_dir": folder}
        plain = await started(path)
        runner = await started(path, max_rollback=4, **store)
        try:
            clients = Talk(runner, plain, seed)
            begun = time.monotonic()
            await asyncio.gather(*(clients.client(begun + seconds * 2 / 3) for _ in range(2)))
            await clients.client(begun + seconds)
        finally:
            await runner.stop()
            await plain.stop()
    print(f"{name}: {dict(sorted(clients.counts.items()))}", flush=True)
    return clients.counts["DIFFERENT"] == 0 and clients.counts["equal"] > 0


def main() -> int:
    """Every model in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--models", nargs="*", choices=sorted(ARCHITECTURES), default=MODELS)
    options = parser.parse_args()
    good = [asyncio.run(talk(name, options.seconds, options.seed)) for name in options.models]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
