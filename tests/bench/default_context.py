"""The default context of models on the recorded machines, and what would fit: a table in Markdown.

    python tests/bench/default_context.py [--record]

Only headers are used; nothing is loaded. `32k fits` if weights, buffers, the reserve and an F16 cache of 32k fit;
`8-bit` if only an 8-bit cache of 32k fits. A specialist would choose the largest power of two up to 64k whose F16
cache fits at the same place, or 32k with an 8-bit cache if 32k needs it. `--record` writes the table to
tests/bench/results.
"""

import argparse
from collections.abc import Callable, Iterator
from typing import NamedTuple

from devices.memory_ledger import Ledger
from devices.recording import RecordedHost
from devices.report import recorded_report
from devices.types import Machine
from engine.message_catalog import sentence
from engine.placement.history import PlacementHistory
from engine.placement.shape import ModelShape
from engine.placement.steps import place
from engine.placement.types import Placement, PlacementLimits
from engine.runner.protocol import LoadSettings
from tests.bench.recording import FOLDER, record
from tests.support.machines.machines import machines
from tests.support.models.published_shapes import MODELS, published

NAMES = ("1.7B", "8B", "30B-A3B", "gpt-oss-20b", "gpt-oss-120b")
SHAPES = {"1.7B": published("qwen3", 28, 2048, 2048, 1024, 16, 6144, 151_936, context=131_072), **MODELS}
K = 1024


class Row(NamedTuple):
    """One machine and one model. `fits`: whether 32k of F16 cache would fit."""

    machine: str
    model: str
    n_ctx: int
    device: str
    fits: str
    specialist: str
    offered: bool
    reason: str


def placed_on(machine: Machine, shape: ModelShape) -> Callable[[PlacementLimits], Placement]:
    """A function that places a model there."""

    def placed(overrides: PlacementLimits) -> Placement:
        settings = LoadSettings(
            path="/models/m.gguf", n_ctx=8 * K, kv_cells=32 * K, n_parallel=4, max_ctx=shape.context_train
        )
        return place(shape, settings, overrides, machine, Ledger(lambda: machine), PlacementHistory(None))

    return placed


def row(machine_name: str, machine: Machine, name: str) -> Row | None:
    """The row of a model; None if its weights do not fit there."""
    placed = placed_on(machine, SHAPES[name])
    usual = placed(PlacementLimits(max_ctx=64 * K))
    if not usual.fits or usual.streaming is not None:
        return None

    def same(other: Placement) -> bool:
        place_of = other.device, other.settings.n_gpu_layers, other.settings.cpu_expert_layers
        return place_of == (usual.device, usual.settings.n_gpu_layers, usual.settings.cpu_expert_layers)

    plain = {size: placed(PlacementLimits(n_ctx=size, n_parallel=1)) for size in (8 * K, 16 * K, 32 * K, 64 * K)}
    eight = placed(PlacementLimits(n_ctx=32 * K, n_parallel=1, type_k="q8_0"))
    largest = max((size for size, found in plain.items() if found.fits and same(found)), default=0)
    only_eight = largest < 32 * K and eight.fits and same(eight)
    fits = "fits" if largest >= 32 * K else "8-bit" if only_eight else "elsewhere" if plain[32 * K].fits else "no"
    reasons = [sentence(r) for r in usual.reasons if r.kind.startswith("context_")]
    offered = any(r.kind == "context_8_bit" for r in usual.reasons)
    best = "32k, 8-bit" if only_eight else f"{largest // K}k"
    return Row(machine_name, name, usual.settings.n_ctx, usual.device, fits, best, offered, "; ".join(reasons))


def rows() -> Iterator[Row]:
    """All rows."""
    for machine_name, recording in machines().items():
        machine = recorded_report(RecordedHost(recording))
        yield from (found for name in NAMES if (found := row(machine_name, machine, name)) is not None)


def main() -> None:
    """Print the table, and record it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true")
    given = parser.parse_args()
    found = list(rows())
    lines = ["| machine | model | default | where | 32k | a specialist | reason |", "|---|---|---|---|---|---|---|"]
    lines += [
        f"| {r.machine} | {r.model} | {r.n_ctx // K}k | {r.device} | {r.fits} | {r.specialist} | {r.reason} |"
        for r in found
    ]
    short = sum(r.fits == "fits" and r.n_ctx < 32 * K for r in found)
    eight, offered = (sum(r.fits == "8-bit" for r in found), sum(r.fits == "8-bit" and r.offered for r in found))
    lines += [
        "",
        f"{len(found)} rows whose weights fit. {short} have room for 32k of F16 cache and get less.",
        f"Only an 8-bit cache gives 32k in {eight}; {offered} of them say so.",
    ]
    print("\n".join(lines))
    if given.record:
        title = (
            "# Default contexts on recorded machines\n\nWritten by `tests/bench/default_context.py --record`.\n\n"
        )
        (FOLDER / "default_context.md").write_text(title + "\n".join(lines) + "\n", encoding="utf-8")
        at = {"machines": len({r.machine for r in found}), "models": len(NAMES)}
        record("default_context", "rows with room for 32k that get less", short, "rows", n=len(found), **at)
        record("default_context", "rows that say that 8 bits give 32k", offered, f"of {eight} rows", n=eight, **at)


if __name__ == "__main__":
    main()
