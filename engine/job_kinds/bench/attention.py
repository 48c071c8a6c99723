"""Measures the speed of plain and flash attention on this CPU for one head geometry, with the real kernels.

Which one is faster depends on the CPU, its threads and the heads: llama.cpp divides flash attention into tiles that
fit some geometries and not others (log-archive.md, engine). A dummy-weight model with one layer, mostly attention,
measures it.
"""

import asyncio
from pathlib import Path
from typing import Final

import msgspec

from devices.atomic_file import scratch_folder
from engine.job_kinds.bench import dummy_model, shapes
from engine.job_kinds.bench.measure import Timed, loaded_meter
from engine.job_kinds.bench.run import bench_settings
from engine.placement.cpu_choices import DENSE_UBATCH, with_plain
from engine.placement.history import AttentionSpeed, AttentionTimes, Heads
from engine.runner.protocol import LoadSettings

DECODED: Final = 16
TURNS: Final = 8
# Maximum ratio between the two halves of the runs; a larger one means other load on the CPU.
STEADY: Final = 1.1
# A short chat, and one in which attention takes most of the time on the CPUs measured so far.
LENGTHS: Final = (512, 2048)
# Width of the other weights: as small as llama.cpp's blocks allow.
WIDTH: Final = 256
# Two runners with a model of some megabytes.
RUNNERS_BYTES: Final = 300 << 20
VOCABULARY: Final = 1024


def stand_in(heads: Heads) -> shapes.Dimensions:
    """A dense model with one layer with these heads, and almost nothing else."""
    return shapes.Dimensions(
        "llama", 1, WIDTH, heads.queries, heads.keys, heads.width, WIDTH, VOCABULARY, tied=True
    )


def fused_settings(path: Path, threads: int) -> LoadSettings:
    """Load settings of the dummy-weight model, with flash attention."""
    settings = LoadSettings(
        path=str(path), n_threads=threads, n_threads_batch=threads, use_mmap=False, flash_attn="on"
    )
    return bench_settings(settings, LENGTHS, (1,), DECODED)


def memory_bytes(heads: Heads) -> int:
    """Memory of both runners: interpreters, libraries, and the scores of plain attention twice."""
    return RUNNERS_BYTES + 2 * 4 * heads.queries * (max(LENGTHS) + DECODED + 64) * DENSE_UBATCH


async def measure_attention(heads: Heads, *, threads: int, scratch: Path) -> AttentionSpeed | None:
    """Minimum seconds per layer with both methods, in alternating runs; None if the halves disagree.

    `scratch`: a folder with 50 MB of free space. Raises: StandInFailed, BadModelFile, RunnerDied.
    """
    with scratch_folder(scratch) as folder:
        path = folder / "attention.gguf"
        await asyncio.to_thread(
            dummy_model.write_in_child,
            path,
            probe=stand_in(heads),
            mix="F16",
            on_progress=lambda _done, _total: None,
        )
        fused = fused_settings(path, threads)
        points = []
        plain = with_plain(fused, experts=False)
        async with (
            loaded_meter(fused, DECODED, LENGTHS[0]) as one,
            loaded_meter(plain, DECODED, LENGTHS[0]) as other,
        ):
            for length in LENGTHS:
                turns = [_turn(length, await one.timed(length), await other.timed(length)) for _ in range(TURNS)]
                point = steady(turns)
                if point is None:
                    return None
                points.append(point)
    return AttentionSpeed(tuple(points))


def steady(turns: list[AttentionTimes]) -> AttentionTimes | None:
    """Minimum of each time, because other load only adds time; None if the halves of the runs disagree."""
    one, other = (_fastest(turns[half::2]).plain_to_fused for half in (0, 1))
    return _fastest(turns) if max(one, other) <= STEADY * min(one, other) else None


def _fastest(turns: list[AttentionTimes]) -> AttentionTimes:
    columns = zip(*(msgspec.structs.astuple(turn) for turn in turns), strict=True)
    return AttentionTimes(*(min(column) for column in columns))


def _turn(length: int, fused: Timed, plain: Timed) -> AttentionTimes:
    return AttentionTimes(
        length,
        length / fused.prefill_tok_s,
        length / plain.prefill_tok_s,
        1 / fused.decode_tok_s,
        1 / plain.decode_tok_s,
    )
