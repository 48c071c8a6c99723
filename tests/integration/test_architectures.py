"""The matrix of architectures: each runs in real runners, and docs/dev/architectures.md lists the results.

The reference is plain decoding of one sequence (tests/support/models/plain_decode.py). Weights and caches are f32
and flash attention is off, so that only the order of sums differs. An answer counts as equal if it matches token by
token up to the first position where the reference's two best logits are so close that the batch shape may decide.
The committed table must equal the one that this test generates; to write it again:

    TESSERA_WRITE_DOCS=1 python -m pytest tests/integration/test_architectures.py
"""

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import pytest

from devices.process_memory import process_memory
from engine.core.errors import BadModelFile
from engine.core.types import Constraint, Delta, GenerationRequest, SamplingParams
from engine.placement.dry_run import dry_run
from engine.placement.estimate import estimate
from engine.placement.placer import read_shape
from engine.placement.types import DryRun
from engine.runner.llama.memory_probe import sizes
from engine.runner.load_limits import STEADY_ROWS
from engine.runner.process import RunnerProcess
from engine.runner.protocol import LoadSettings
from tests.support.models.architectures import ARCHITECTURES, write_architecture
from tests.support.runner_calls import answered
from tests.support.servers import wait_for

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "dev" / "architectures.md"
# Best logits this close may swap with the batch shape. Measured: log-archive.md, architectures (up to 0.0012).
TIE = 0.005
COUNT = 16
AFTER = [7, 8, 9]
SYSTEM = list(range(100, 260))
PROMPTS = [SYSTEM + list(range(300 + 10 * i, 340 + 10 * i)) for i in range(4)]
# Together they fill nearly all cells, so that caches and scratch memory of that size are touched.
FULL = [[(7 * i + 13 * j) % 380 + 5 for j in range(200)] for i in range(4)]
# A prompt's last tokens may be computed again: the checkpoint of a state is before them.
NEARLY_ALL = 0.85
# Of the 144 tokens of a row, at least this many must have been compared before ties.
ENOUGH = 100
MIB = 1 << 20


@dataclass
class Seen:
    """Results of one architecture; keeps a description of the first failed comparison of each kind."""

    kind: str = ""
    problems: dict[str, str] = field(default_factory=dict)
    compared: int = 0
    marks: dict[str, str] = field(default_factory=dict)

    def check(self, column: str, reason: str, *, holds: bool) -> None:
        """Record a problem; a column is good if all its checks hold."""
        if not holds:
            self.problems.setdefault(column, reason)

    def same(self, column: str, ids: list[int], reference: list[tuple[int, float]]) -> None:
        """Compare an answer with the reference."""
        for i, ((expected, lead), token) in enumerate(zip(reference, ids, strict=True)):
            if token != expected:
                self.check(column, f"token {i} is {token}, not {expected} (lead {lead:.3f})", holds=lead < TIE)
                return
            self.compared += 1


async def collect(runner, prompt, **options):
    request = GenerationRequest(
        prompt=prompt,
        sampling=SamplingParams(temperature=0),
        **{"max_tokens": COUNT, "ignore_eos": True, **options},
    )
    answer = await answered(runner, request)
    return answer.ids, answer.done.usage.cached_tokens


def settings(path, cache_dir, **options):
    """Settings as in serving: states that support rollback have copies for it."""
    return LoadSettings(
        max_rollback=2 if read_shape(str(path)).rolls_back else 0,
        path=str(path),
        n_ctx=512,
        kv_cells=1024,
        n_threads=1,
        n_ubatch=64,
        n_batch=128,
        cache_ram_bytes=64 * MIB,
        cache_disk_bytes=64 * MIB,
        cache_dir=str(cache_dir),
        type_k="f32",
        type_v="f32",
        flash_attn="off",
        **options,
    )


async def started(load):
    runner = await RunnerProcess.start("llama", load.path)
    try:
        facts = await runner.load(load)
    except BaseException:
        await runner.stop()
        raise
    return runner, facts


async def whole_log(runner):
    """llama.cpp's log of a load, which comes through another pipe than the answer and may come after it."""

    def is_whole():
        return any(line.startswith("set_abort_callback") for line in runner.stderr_tail)

    await asyncio.to_thread(wait_for, is_whole, what="the log")
    return "\n".join(runner.stderr_tail)


async def observe(path, cache_dir, reference, process):
    """Check all columns for a model that generates."""
    seen = Seen()
    load = settings(path, cache_dir)
    runner, _ = await started(load)
    try:
        log = await whole_log(runner)
        first = await collect(runner, PROMPTS[0])
        seen.same("alone", first[0], reference[0])
        together = await asyncio.gather(*(collect(runner, p) for p in PROMPTS))
        for (ids, _), expected in zip(together, reference, strict=False):
            seen.same("batch", ids, expected)
        turn = PROMPTS[0] + [token for token, _ in reference[0]] + AFTER
        second, cached = await collect(runner, turn)
        seen.same("turn", second, reference[4])
        seen.check("turn", f"{cached} of {len(turn)} cached", holds=cached > NEARLY_ALL * len(turn))
        again, cached = await collect(runner, PROMPTS[3])
        seen.same("prefix", again, reference[3])
        # A repeatable request reuses whole steps; other architectures reuse everything that is cached.
        taken = cached == len(SYSTEM) // STEADY_ROWS * STEADY_ROWS or cached >= len(SYSTEM) - 1
        seen.check("prefix", f"{cached} of {len(SYSTEM)} cached", holds=taken)
        await cancel(runner)
        after, _ = await collect(runner, PROMPTS[2])
        seen.same("cancel", after, reference[2])
        stats = await runner.stats()
        seen.check("cancel", f"{stats.active} still run", holds=stats.active == 0)
        await asyncio.gather(*(collect(runner, prompt, max_tokens=1) for prompt in FULL))
        # The first constrained answer loads a library and a token table, which the prediction includes.
        await collect(runner, PROMPTS[0], max_tokens=1, constraint=Constraint(kind="regex", source=".*"))
        fit(seen, load, log, process, (await runner.stats()).cache_ram_bytes, process_memory(runner.pid))
    finally:
        await runner.stop()
    runner, _ = await started(load)
    try:
        ids, cached = await collect(runner, turn)
        seen.same("restored", ids, reference[4])
        seen.check("restored", f"{cached} of {len(turn)} cached", holds=cached > NEARLY_ALL * len(turn))
    finally:
        await runner.stop()
    return seen


async def cancel(runner):
    """Cancel one request during generation and one during prefill."""
    for event_type, prompt in ((Delta, PROMPTS[1]), (object, PROMPTS[1][::-1] * 2)):
        request = GenerationRequest(prompt=prompt, max_tokens=300, ignore_eos=True)
        generation = runner.generate(request)
        async for event in generation:
            if isinstance(event, event_type):
                break
        await generation.aclose()


def fit(seen, load, log, process, kept_bytes, held):
    """Compare the memory prediction with llama.cpp's own figures, and the total with the process."""
    shape = read_shape(load.path)
    plain = msgspec.structs.replace(load, cache_ram_bytes=0)
    formula = estimate(shape, plain, frozenset())
    told = sizes(log)
    for name, key in (("kv", "kv_bytes"), ("recurrent", "recurrent_bytes")):
        predicted, real = formula.part_bytes(name), told[key]
        seen.check("fit", f"{name}: {predicted} predicted, {real} real", holds=abs(predicted - real) < 0.02 * MIB)
    if held is not None:
        whole = msgspec.structs.replace(process, **{k: told[k] for k in DryRun.__struct_fields__ if k in told})
        need = estimate(shape, plain, frozenset(), dry_run=whole).resident_bytes + kept_bytes
        error = (need - held.rss_bytes) / held.rss_bytes
        seen.check("fit", f"process: {need} predicted, {held.rss_bytes} real", holds=abs(error) < 0.1)
    sliding = any(layer.sliding and layer.key_values for layer in shape.layers)
    full = any(layer.key_values and not layer.sliding for layer in shape.layers)
    parts = (
        (
            full,
            "latent attention"
            if any(not la.value_values and la.key_values for la in shape.layers)
            else "attention",
        ),
        (sliding, "sliding windows"),
        (shape.recurrent, "states"),
    )
    seen.kind = " + ".join(name for present, name in parts if present)


COLUMNS = {
    "fit": "fit",
    "alone": "alone",
    "batch": "batch of 4",
    "prefix": "same beginning",
    "turn": "next turn",
    "cancel": "cancel",
    "restored": "restart",
}
# Concurrent runners: each mostly waits for its child process.
AT_ONCE = 3
INTRODUCTION = """# Architectures

Written by `tests/integration/test_architectures.py`, which runs a tiny model with random weights of each
architecture in a real runner. It compares every answer, token by token, with a decode of the same sequence alone,
and fails if a row becomes worse than this table.

- **fit**: the bytes of caches and states predicted from the header equal llama.cpp's, and the predicted memory of
  the process is within a tenth of the measured one.
- **alone**, **batch of 4**: one request, and four concurrent ones that share a prefix.
- **same beginning**: another question after the same system prompt takes that prefix from the cache.
- **next turn**: a prompt that continues an answered one takes nearly all of it from the cache.
- **cancel**: one request is cancelled during its answer, another during its prefill; later requests are right.
- **restart**: the next turn in a new process takes its prefix from disk.

"""
HEADS = ("model family", "`general.architecture`", "memory", *COLUMNS.values())
AFTERWORD = """
Encoders have no cache. Their vectors in a batch of four equal those of a single request (to 1e-5). Models with an
encoder and a decoder are refused when they are loaded.

States (recurrent layers) and sliding windows cannot be cut to a shorter prefix; they are restored from checkpoints,
see [runner.md](runner.md). With flash attention or an F16 cache the kernels round more, so a batch may choose the
other token if two logits are close; log-archive.md has the figures.
"""


def page(rows):
    """The generated document."""
    lines = [f"| {' | '.join(HEADS)} |\n", "|---" * len(HEADS) + "|\n"]
    for name, architecture in ARCHITECTURES.items():
        seen = rows[name]
        cells = [seen.marks.get(c) or ("**no**" if c in seen.problems else "yes") for c in COLUMNS]
        lines.append(f"| {name} | `{architecture.arch}` | {seen.kind} | {' | '.join(cells)} |\n")
    return INTRODUCTION + "".join(lines) + AFTERWORD


async def observe_encoder(path, cache_dir, process):
    """Check an encoder: embeddings of a batch of four against each alone."""
    seen = Seen(kind="no cache", marks=dict.fromkeys(("prefix", "turn", "cancel", "restored"), "—"))
    load = settings(path, cache_dir, embeddings=True)
    runner, facts = await started(load)
    try:
        seen.check("alone", f"{facts.capabilities}", holds=facts.capabilities == ("embedding",))
        inputs = [f"w{i} w{i + 7} w{2 * i + 1} w{i + 90}" for i in range(4)]
        alone = [(await runner.embed([text])).vectors[0] for text in inputs]
        together = (await runner.embed(inputs)).vectors
        for one, other in zip(alone, together, strict=True):
            far = float(np.abs(np.frombuffer(one, "<f4") - np.frombuffer(other, "<f4")).max())
            seen.check("batch", f"vectors differ by {far}", holds=far < 1e-5)
        seen.check("batch", "all vectors are equal", holds=len(set(alone)) == len(alone))
        seen.compared = len(alone)
    finally:
        await runner.stop()
    return seen


def refused(path, cache_dir):
    """Check that a model that is not served fails to load with a reason."""
    seen = Seen(kind="encoder and decoder", marks=dict.fromkeys(COLUMNS, "—") | {"alone": "refused at load"})
    with pytest.raises(BadModelFile, match="an encoder and a decoder"):
        asyncio.run(started(settings(path, cache_dir)))
    return seen


async def observe_all(files, folder, references, process):
    """Check all rows, a few at a time."""
    turn = asyncio.Semaphore(AT_ONCE)

    async def one(name):
        async with turn:
            if name in references:
                reference = [[(token, lead) for token, lead in run] for run in references[name]]
                return await observe(files[name], folder / "cache" / files[name].stem, reference, process)
            return await observe_encoder(files[name], folder / "cache", process)

    names = [n for n, a in ARCHITECTURES.items() if a.arch != "t5"]
    return dict(zip(names, await asyncio.gather(*(one(n) for n in names)), strict=True))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_matrix(tmp_path):
    files = {n: write_architecture(tmp_path / f"{i}.gguf", a) for i, (n, a) in enumerate(ARCHITECTURES.items())}
    decoders = [n for n, a in ARCHITECTURES.items() if not a.encoder and a.arch != "t5"]
    jobs = [{"path": str(files[n]), "prompts": PROMPTS, "count": COUNT, "after": AFTER} for n in decoders]
    plain = subprocess.run(
        [sys.executable, "-m", "tests.support.models.plain_decode"],
        cwd=ROOT,
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        check=True,
    )
    references = dict(zip(decoders, json.loads(plain.stdout), strict=True))
    process = dry_run(msgspec.structs.replace(settings(files[decoders[0]], tmp_path), cache_ram_bytes=0))
    rows = asyncio.run(observe_all(files, tmp_path, references, process))
    rows["T5"] = refused(files["T5"], tmp_path)
    assert {name: seen.problems for name, seen in rows.items() if seen.problems} == {}
    assert {n: s.compared for n, s in rows.items() if n in references and s.compared < ENOUGH} == {}
    if os.environ.get("TESSERA_WRITE_DOCS"):
        PAGE.write_text(page(rows), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page(rows)


def test_the_matrix_is_wide():
    kinds = {a.arch for a in ARCHITECTURES.values()}
    assert len(kinds) >= 25


def test_a_wrong_answer_is_a_problem():
    """The comparison itself can fail: a clear lead must match, a tie need not."""
    seen = Seen()
    seen.same("alone", [1, 2, 9], [(1, 0.3), (2, 0.3), (3, TIE / 2)])
    assert seen.problems == {}
    assert seen.compared == 2
    seen.same("alone", [1, 9, 3], [(1, 0.3), (2, 0.3), (3, 0.3)])
    assert "token 1 is 9, not 2" in seen.problems["alone"]
