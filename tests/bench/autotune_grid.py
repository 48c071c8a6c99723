"""Compares autotune with an exhaustive grid, results and time, on dummy-weight models.

    python -m tests.bench.autotune_grid smollm2-135m:Q4_K_M --folder DIR [--length 128] [--out points.csv]

Autotune runs first, then every point of the grid is measured as long as autotune's last round measures; then the
grid's best five and autotune's choice take turns, so that a lucky point does not win. Interrupted, it goes on.
"""

import argparse
import asyncio
import csv
import itertools
import random
import statistics
import time
from contextlib import nullcontext
from pathlib import Path

import msgspec

from devices.types import Machine
from engine.core.paths import user_paths
from engine.job_kinds.autotune.journal import Journal
from engine.job_kinds.autotune.run import proof, rounds_for, trial, tune
from engine.job_kinds.autotune.space import dimensions, thread_counts, valid
from engine.job_kinds.bench import dummy_model
from engine.placement.measurements import TrialOutcome, TrialSize, TunableSettings, TuneReport, TuneTrial, knobs_of
from engine.placement.placer import Placer, read_shape
from engine.placement.resources import MachineState, open_resources
from engine.runner.protocol import LoadSettings

TURNS = 10


def grid(base: TunableSettings, machine: Machine, ubatches: list[int]) -> list[TunableSettings]:
    """Every combination of threads, repack, flash attention and cache type, ubatch and mmap."""
    attention = [("off", "f16"), ("on", "f16"), ("on", "q8_0")]
    found = []
    for n, repack, (flash, kv), ubatch, mmap in itertools.product(
        thread_counts(machine), (True, False), attention, ubatches, (True, False)
    ):
        knobs = msgspec.structs.replace(
            base, n_threads=n, repack=repack, flash_attn=flash, kv_type=kv, n_ubatch=ubatch, use_mmap=mmap
        )
        if valid(knobs):
            found.append(knobs)
    assert len(set(found)) == len(found)
    return found


async def measured(
    journal: Journal, settings: LoadSettings, knobs: TunableSettings, budget: TrialSize
) -> TrialOutcome:
    """A point, once."""
    recorded = journal.recorded(knobs, budget)
    if recorded is not None:
        return recorded
    journal.begin(knobs, budget)
    outcome = await trial(settings, knobs, budget, lambda _: nullcontext(), 300.0)
    journal.end(TuneTrial(knobs=knobs, budget=budget, outcome=outcome))
    return outcome


def tuned(settings: LoadSettings, machine: Machine, length: int, folder: Path, name: str) -> TuneReport:
    """Autotune's report, stored next to the grid."""
    kept = folder / f"{name}-{length}-tuned.json"
    if kept.exists():
        return msgspec.json.decode(kept.read_bytes(), type=TuneReport)
    base = knobs_of(settings)
    layers = len(read_shape(settings.path).layers)
    report = asyncio.run(
        tune(
            settings, base, dimensions(base, machine, length, layers), model=name, prompt_tokens=length,
            journal_path=folder / f"{name}-{length}-search.jsonl", admit=lambda _: nullcontext(), limit_s=900,
            step=lambda _text, _count: None,
        )
    )  # fmt: skip
    kept.write_bytes(msgspec.json.encode(report))
    return report


def main() -> None:
    """Tune, measure the grid, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--ubatches", type=lambda s: [int(n) for n in s.split(",")], default=[32, 64, 128])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--stop-after", type=float, default=1e9, help="Seconds; run it again to go on.")
    options = parser.parse_args()
    started = time.monotonic()
    options.folder.mkdir(parents=True, exist_ok=True)
    name, _, mix = options.shape.partition(":")
    path = options.folder / f"{name}-{mix}.gguf"
    if not path.exists():
        dummy_model.write_in_child(path, shape=name, mix=mix, on_progress=lambda _done, _total: None)
    machine = MachineState().settled()
    settings = (
        Placer(open_resources(user_paths()))
        .defaults("grid", read_shape(str(path)), LoadSettings(path=str(path)))
        .settings
    )
    report = tuned(settings, machine, options.length, options.folder, f"{name}-{mix}")
    journal = Journal(options.folder / f"{name}-{mix}-{options.length}-grid.jsonl")
    budget = rounds_for(options.length)[-1]
    points = grid(report.default, machine, options.ubatches)
    outcomes: dict[TunableSettings, TrialOutcome] = {}
    for knobs in points:
        if time.monotonic() - started > options.stop_after:
            print(f"stopped at {len(outcomes)} of {len(points)} points")
            return
        outcomes[knobs] = asyncio.run(measured(journal, settings, knobs, budget))
    cost = sum(o.cost_s for o in outcomes.values())
    ranked = sorted(points, key=lambda k: outcomes[k].turn_s(options.length))
    turns: dict[TunableSettings, list[float]] = {k: [] for k in dict.fromkeys([report.best, *ranked[:3]])}
    for _ in range(TURNS):
        for knobs in random.sample(list(turns), len(turns)):
            again = asyncio.run(trial(settings, knobs, budget, lambda _: nullcontext(), 300.0))
            turns[knobs].append(again.turn_s(options.length))
    found = {k: statistics.median(s) for k, s in turns.items()}
    best = min(found.values())
    loads = asyncio.run(proof(report.best.apply(settings), lambda _: nullcontext(), 300.0))
    bad = sum(o.failure is not None for o in outcomes.values())
    slowest = max(o.turn_s(options.length) for o in outcomes.values() if o.failure is None)
    print(
        f"{options.shape}, {options.length} tokens: grid of {len(points)} points ({bad} bad) {cost:.0f} s, best "
        f"{best:.3f} s a turn, slowest {slowest:.3f}; autotune {report.cost_s:.0f} s ({report.cost_s / cost:.1%}, "
        f"{len(report.trials)} trials), its choice {found[report.best]:.3f} s "
        f"({found[report.best] / best - 1:+.1%}), "
        f"defaults {outcomes.get(report.default, TrialOutcome()).turn_s(options.length):.3f}; "
        f"loads: {loads is None}"
    )
    print(f"chosen {report.best}\nbest {min(found, key=lambda k: found[k])}")
    if options.out:
        with options.out.open("w", newline="") as file:
            rows = csv.writer(file, lineterminator="\n")
            fields = ["n_threads", "repack", "flash_attn", "kv_type", "n_ubatch", "use_mmap"]
            rows.writerow([*fields, "prefill_tok_s", "decode_tok_s", "turn_s", "cost_s"])
            for knobs in ranked:
                o = outcomes[knobs]
                figures = (o.prefill_tok_s, o.decode_tok_s, o.turn_s(options.length), o.cost_s)
                rows.writerow([*(getattr(knobs, f) for f in fields), *(f"{x:.3f}" for x in figures)])


if __name__ == "__main__":
    main()
