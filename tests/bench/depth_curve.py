"""Measures how well two measured points predict a model's speed at greater depths on this CPU.

    python -m tests.bench.depth_curve [--shapes qwen3-0.6b qwen3-1.7b] [--type Q4_K_M] [--depths 0 4096 ... 32768]
        [--points 0 8192] [--threads 2] [--record]

The shapes are written as files with random weights. The cache is filled with copies of one chunk of text, since
its content does not change the speed. At each depth a chunk is processed and a few tokens are generated, then
removed again. All depths are measured in turn, five times. The program's own rule forecasts all depths from the
two points. Seconds are elapsed ones, so the machine must be quiet; with one thread they equal CPU seconds, and
other programs cost little. A goal is met if the error is at most 5 % or the spread of the five runs, whichever is
larger.
"""

import argparse
import ctypes
import statistics
import tempfile
import time
from pathlib import Path

from devices.detect import inventory
from devices.host_real import RealHost
from engine.job_kinds.bench import dummy_model
from engine.placement.history import SpeedPoint, seconds_at
from engine.placement.placer import read_shape
from engine.placement.speed import Forecast
from engine.runner.llama.native.batch import Batch
from engine.runner.llama.native.model import LoadedModel
from engine.runner.protocol import LoadSettings
from tests.bench.own_side import load_as_chosen
from tests.bench.recording import record

BLOCK, WRITTEN, RUNS, PIECE = 256, 8, 5, 512
GOAL = 0.05


def timed(loaded: LoadedModel, at: int, lengths: list[int]) -> float:
    """Seconds of decoding batches of these lengths after `at` tokens, which stay unchanged."""
    batch, seconds, here = Batch(loaded), 0.0, at
    clock = time.process_time if loaded.settings.n_threads == 1 else time.perf_counter
    for length in lengths:
        batch.add_prompt([1000 + (here + i) % 5000 for i in range(length)], here, 0, last=length == 1)
        started = clock()
        assert batch.decode() == 0
        seconds += clock() - started
        batch.clear()
        here += length
    return seconds


class Filler:
    """Fills the cache of sequence 0: a piece of text is computed once, and its copies get later positions."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded, self._state, self.at = loaded, b"", 0

    def fill(self, depth: int) -> None:
        """Continue until there are `depth` tokens."""
        api, memory, context = self._loaded.api, self._loaded.memory, self._loaded.context
        if not self._state and depth >= PIECE:
            timed(self._loaded, 0, [PIECE])
            size = api.llama_state_seq_get_size(context, 0)
            buffer = (ctypes.c_uint8 * size)()
            assert api.llama_state_seq_get_data(context, buffer, size, 0) == size
            self._state, self.at = bytes(buffer), PIECE
        while depth - self.at >= PIECE:
            buffer = (ctypes.c_uint8 * len(self._state)).from_buffer_copy(self._state)
            assert api.llama_state_seq_set_data(context, buffer, len(self._state), 1)
            api.llama_memory_seq_add(memory, 1, 0, -1, self.at)
            api.llama_memory_seq_cp(memory, 1, 0, -1, -1)
            api.llama_memory_seq_rm(memory, 1, -1, -1)
            self.at += PIECE
        if depth > self.at:
            timed(self._loaded, self.at, [depth - self.at])
            self.at = depth
        timed(self._loaded, depth, [1])  # moves the copied keys to their positions
        api.llama_memory_seq_rm(memory, 0, depth, -1)
        assert api.llama_memory_seq_pos_max(memory, 0) == depth - 1


def measured(loaded: LoadedModel, depths: list[int]) -> dict[int, dict[str, list[float]]]:
    """Seconds per token read and written at each depth, five times: five passes over all depths.

    If the computer slows down for some seconds, one run of each depth is slower, and the spread shows it.
    """
    found: dict[int, dict[str, list[float]]] = {depth: {"read": [], "written": []} for depth in depths}
    timed(loaded, 0, [BLOCK])
    for run in range(RUNS):
        loaded.api.llama_memory_clear(loaded.memory, True)
        filler = Filler(loaded)
        for depth in depths:
            filler.fill(depth)
            for name, lengths in (("read", [BLOCK]), ("written", [1] * WRITTEN)):
                found[depth][name].append(timed(loaded, depth, lengths) / sum(lengths))
                loaded.api.llama_memory_seq_rm(loaded.memory, 0, depth, -1)
        newest = {
            depth: {name: round(1000 * rows[-1], 2) for name, rows in found[depth].items()} for depth in depths
        }
        print(f"pass {run + 1} of {RUNS}, ms: {newest}", flush=True)
    return found


def curve(path: Path, name: str, options: argparse.Namespace) -> int:
    """Measure and forecast one file; returns how many goals were missed."""
    cells, threads = max(options.depths) + 2 * PIECE, options.threads
    settings = LoadSettings(
        path=str(path), n_ctx=cells, kv_cells=cells, n_parallel=2, n_batch=PIECE, n_ubatch=PIECE,
        n_threads=threads, n_threads_batch=threads,
    )  # fmt: skip
    machine, shape = inventory(RealHost()), read_shape(str(path))
    cpu = machine.device("cpu")
    assert cpu is not None
    loaded = load_as_chosen(settings)
    rule = Forecast(shape, loaded.settings, ((cpu, "cpu", 1.0),), cpu)
    expected_s = RUNS * sum(BLOCK * rule.prompt_s(at) + WRITTEN * rule.decode_s(at) for at in options.depths)
    print(f"{name}: {expected_s / 60:.1f} min by the rule, without a point measured", flush=True)
    try:
        rows_at = measured(loaded, sorted({*options.depths, *options.points}))
    finally:
        loaded.close()
    missed = 0
    for phase, forecast, middle in (("read", rule.prompt_s, BLOCK / 2), ("written", rule.decode_s, WRITTEN / 2)):
        taken = {depth: statistics.median(rows[phase]) for depth, rows in rows_at.items()}
        points = tuple(SpeedPoint(d + middle, taken[d], forecast(d + middle)) for d in options.points)
        for depth, seconds in taken.items():
            runs = rows_at[depth][phase]
            spread = max(runs) / min(runs) - 1
            error = seconds_at(points, depth + middle, forecast) / seconds - 1
            good = abs(error) <= max(GOAL, spread)
            missed += not good
            mark = "" if good else "  MISSED"
            print(f"{name} {phase} at {depth}: {1000 * seconds:.2f} ms, spread {spread:.1%}, {error:+.1%}{mark}")
            if options.record:
                where = {"shape": name, "type": options.type, "phase": phase, "depth": depth, "threads": threads}
                record(
                    "depth_curve", "error of the forecast from two points", 100 * error, "%", n=RUNS,
                    note=f"{1000 * seconds:.2f} ms a token, spread of five runs {spread:.1%}",
                    points=options.points, **where,
                )  # fmt: skip
    return missed


def main() -> int:
    """Measure, forecast, and print both; the exit code is 1 if a goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=["qwen3-0.6b", "qwen3-1.7b"])
    parser.add_argument("--type", default="Q4_K_M")
    parser.add_argument("--depths", type=int, nargs="+", default=[0, 4096, 8192, 16384, 32768])
    parser.add_argument("--points", type=int, nargs=2, default=[0, 8192])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    missed, started = 0, time.monotonic()
    for name in options.shapes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.gguf"
            dummy_model.write_in_child(path, shape=name, mix=options.type, on_progress=lambda _done, _total: None)
            missed += curve(path, name, options)
    print(f"{missed} missed, {(time.monotonic() - started) / 60:.1f} min")
    return int(missed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
