"""Predicted and measured memory of loaded models, recorded in tests/bench/results.

    python -m tests.bench.memory_prediction [--contexts 2048 8192 32768] [--kv f16 q8_0] [--plain] [--only ...]

Writes each shape, predicts, loads it in a real runner, fills its cells with four sequences, and prints the
system's figure. A context of 32k takes a minute or more on two cores.
"""

import argparse
import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path

from devices.detect import inventory
from devices.host_real import RealHost
from devices.process_memory import process_memory
from engine.core.types import Constraint, GenerationRequest
from engine.placement.cpu_choices import DENSE_UBATCH
from engine.placement.dry_run import dry_run
from engine.placement.estimate import estimate
from engine.placement.placer import read_shape
from engine.placement.types import MemoryEstimate
from engine.runner.process import RunnerProcess
from engine.runner.protocol import LoadSettings
from tests.bench.recording import record
from tests.support.models.shapes import SHAPES, scaled, write_shape

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
# Tokens each sequence generates, and cells it leaves free for them.
ANSWER, ROOM = 8, 10
# Bytes of weights near those of small real models, so that the process itself does not hide the errors.
LARGER = {"big-vocab": {"embd": 512, "layers": 6}}


@dataclass(frozen=True)
class Row:
    """One load: the prediction, the resident set after a full context, and the error as a share of it."""

    name: str
    n_ctx: int
    kv_type: str
    need: MemoryEstimate
    measured_bytes: int

    @property
    def error_frac(self) -> float:
        """Positive: too much was predicted."""
        return (self.need.resident_bytes - self.measured_bytes) / self.measured_bytes


def measure(
    path: str, n_ctx: int, kv_type: str, n_parallel: int = 4, *, plain: bool = False, repack: bool = True
) -> Row:
    """Predict, load, fill the context, compare.

    `plain`: attention and ubatch as chosen for a CPU; `repack` False: weights as in the file.
    """
    settings = LoadSettings(
        path=path,
        n_ctx=n_ctx,
        n_parallel=n_parallel,
        type_k=kv_type,
        type_v=kv_type,
        flash_attn="off" if plain else "on",
        n_ubatch=DENSE_UBATCH if plain else 512,
        repack=repack,
    )
    isa = frozenset(inventory(RealHost()).devices[0].isa)
    need = estimate(read_shape(path), settings, isa, dry_run=dry_run(settings))
    return Row(Path(path).stem, n_ctx, kv_type, need, asyncio.run(_filled(settings)))


async def _filled(settings: LoadSettings) -> int:
    runner = await RunnerProcess.start("llama", settings.path)
    try:
        await runner.load(settings, lambda _phase, _fraction: None)

        async def generate(length: int, step: int, answer: int = ANSWER) -> None:
            prompt = [(i * step) % 250 for i in range(length)]
            request = GenerationRequest(prompt=prompt, max_tokens=answer, ignore_eos=True)
            async for _ in runner.generate(request):
                pass

        # A whole ubatch: next to other answers a prompt is read in shorter steps, which use less of the buffers.
        await generate(min(settings.n_ubatch, settings.n_ctx - ROOM), 5, answer=1)
        share = settings.n_ctx // settings.n_parallel - ROOM
        await asyncio.gather(*(generate(share, 3 + 2 * i) for i in range(settings.n_parallel)))
        # The table of tokens for constrained output comes after the first answer; every runner holds it in the end.
        table = GenerationRequest(prompt=[1], max_tokens=1, constraint=Constraint(kind="regex", source="x"))
        async for _ in runner.generate(table):
            pass
        held = process_memory(runner.pid)
        assert held is not None
        return held.rss_bytes
    finally:
        await runner.stop()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contexts", type=int, nargs="+", default=[2048, 8192, 32768])
    parser.add_argument("--kv", nargs="+", default=["f16", "q8_0"])
    parser.add_argument("--only", nargs="+", default=["spark-f16", *SHAPES])
    parser.add_argument("--plain", action="store_true", help="Attention that is not fused.")
    options = parser.parse_args()
    cases = [(n_ctx, kv_type) for n_ctx in options.contexts for kv_type in options.kv]
    print("| model | context | cache | weights | kv | state | compute | process | predicted | measured | error |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        files = [str(ROOT / "assets/models/spark-f16.gguf")] if "spark-f16" in options.only else []
        for name in SHAPES:
            if name not in options.only:
                continue
            shape = scaled(name, **LARGER.get(name, {}))
            files.append(str(write_shape(Path(folder) / f"{name}.gguf", shape)))
        for path in files:
            for n_ctx, kv_type in cases:
                row = measure(path, n_ctx, kv_type, plain=options.plain)
                part = row.need.part_bytes
                sizes = [part(p) for p in ("weights", "kv", "recurrent", "compute", "overhead")]
                sizes += [row.need.resident_bytes, row.measured_bytes]
                cells = " | ".join(f"{size / MIB:.1f}" for size in sizes)
                at = {"model": row.name, "context": n_ctx, "cache": kv_type}
                record("memory_prediction", "error of predicted memory", round(100 * row.error_frac, 1), "%", **at)
                print(f"| {row.name} | {n_ctx} | {kv_type} | {cells} | {100 * row.error_frac:+.1f} % |", flush=True)


if __name__ == "__main__":
    main()
