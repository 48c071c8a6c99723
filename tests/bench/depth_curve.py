"""How well two measured points predict a model's speed at greater depths on this CPU.

`python -m tests.bench.depth_curve FILE [--depths 0 4096 8192 16384 32768] [--points 0 8192] [--record]`

One thread reads and writes at each depth five times, in this process; the seconds are those of the CPU, so other
programs cost little. The program's own rule forecasts all depths from the two points.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

from devices.backends.cpu_kernels import tiles_library
from devices.backends.libraries import library_folder
from devices.detect import inventory
from devices.host_real import RealHost
from engine.placement.cpu_choices import prompt_tiles
from engine.placement.history import SpeedPoint, seconds_at
from engine.placement.placer import read_shape
from engine.placement.speed import Forecast
from engine.runner.llama.native.batch import Batch
from engine.runner.llama.native.llama_api import start_backends
from engine.runner.llama.native.model import LoadedModel, load
from engine.runner.protocol import LoadSettings

RESULTS = Path(__file__).parent / "results" / "depth_curve.jsonl"
BLOCK, WRITTEN, RUNS, PIECE = 256, 8, 5, 512


def timed(loaded: LoadedModel, at: int, lengths: list[int]) -> float:
    """CPU seconds of decoding batches of these lengths behind `at` tokens, which stay as they are."""
    batch, seconds, here = Batch(loaded), 0.0, at
    for length in lengths:
        batch.add_prompt([1000 + (here + i) % 5000 for i in range(length)], here, 0, last=length == 1)
        started = time.process_time()
        assert batch.decode() == 0
        seconds += time.process_time() - started
        batch.clear()
        here += length
    return seconds


def measured(loaded: LoadedModel, depths: list[int]) -> dict[int, dict[str, list[float]]]:
    """Seconds per token read and written at each depth, five times."""
    found: dict[int, dict[str, list[float]]] = {}
    at = 0
    timed(loaded, 0, [BLOCK])
    for depth in depths:
        loaded.api.llama_memory_seq_rm(loaded.memory, 0, at, -1)
        while at < depth:
            length = min(PIECE, depth - at)
            timed(loaded, at, [length])
            at += length
        rows = found[depth] = {"read": [], "written": []}
        for _ in range(RUNS):
            for name, lengths in (("read", [BLOCK]), ("written", [1] * WRITTEN)):
                rows[name].append(timed(loaded, at, lengths) / sum(lengths))
                loaded.api.llama_memory_seq_rm(loaded.memory, 0, at, -1)
        print(depth, {name: round(1000 * statistics.median(s), 2) for name, s in rows.items()}, "ms", flush=True)
    return found


def main() -> None:
    """Measure, forecast, and print both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--depths", type=int, nargs="+", default=[0, 4096, 8192, 16384, 32768])
    parser.add_argument("--points", type=int, nargs=2, default=[0, 8192])
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    cells = max(options.depths) + 2 * PIECE
    settings = LoadSettings(
        path=str(options.file), n_ctx=cells, n_batch=PIECE, n_ubatch=PIECE, n_threads=1, n_threads_batch=1,
        flash_attn="on",
    )  # fmt: skip
    machine, shape = inventory(RealHost()), read_shape(str(options.file))
    cpu = machine.device("cpu")
    assert cpu is not None
    if tiles_library(library_folder()) is not None:
        settings = prompt_tiles(settings, shape, machine.isa) or settings
    loaded = load(start_backends(), settings, lambda _fraction: True)
    try:
        found = measured(loaded, sorted({*options.depths, *options.points}))
    finally:
        loaded.close()
    rule = Forecast(shape, settings, ((cpu, "cpu", 1.0),), cpu)
    result: dict[str, object] = {"file": options.file.name, "points": options.points, "at": time.time()}
    for name, forecast, middle in (("read", rule.prompt_s, BLOCK / 2), ("written", rule.decode_s, WRITTEN / 2)):
        taken = {depth: statistics.median(rows[name]) for depth, rows in found.items()}
        points = tuple(SpeedPoint(d + middle, taken[d], forecast(d + middle)) for d in options.points)
        rows = result[name] = []
        for depth, seconds in taken.items():
            runs = found[depth][name]
            error = seconds_at(points, depth + middle, forecast) / seconds - 1
            rows.append({"depth": depth, "ms": 1000 * seconds, "spread": max(runs) / min(runs) - 1, "error": error})
            print(
                f"{name} at {depth}: {1000 * seconds:.2f} ms, spread {rows[-1]['spread']:.1%}, error {error:+.1%}"
            )
    if options.record:
        with RESULTS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
