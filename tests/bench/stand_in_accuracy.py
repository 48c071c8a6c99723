"""A stand-in against the real file it stands for: speed and memory, taking turns in one run.

    python -m tests.bench.stand_in_accuracy MODEL.gguf ... [--turns 8]

Both are loaded, in a runner each; one prompt and its answer on the one, then on the other.
"""

import argparse
import asyncio
import statistics
import tempfile
from pathlib import Path

from engine.bench import standin
from engine.bench.measure import Meter
from engine.bench.run import bench_settings
from engine.runner.process import RunnerProcess
from engine.runner.protocol import LoadSettings

LENGTH = 256


async def compare(model: Path, made: Path, threads: int, turns: int) -> None:
    """Print the ratios of prefill, decode and resident memory."""
    runners, meters = [], []
    try:
        for path in (model, made):
            settings = LoadSettings(path=str(path), n_threads=threads, n_threads_batch=threads)
            runner = await RunnerProcess.start("llama", str(path))
            runners.append(runner)
            facts = await runner.load(bench_settings(settings, (LENGTH,), (1,)))
            meters.append(Meter(runner, facts.n_vocab, lambda _: None))
            await meters[-1].timed(LENGTH)
        rows = []
        for turn in range(turns):
            order = (0, 1) if turn % 2 else (1, 0)
            found = {i: await meters[i].timed(LENGTH) for i in order}
            rows.append((found[0], found[1]))
        for name in ("prefill_tok_s", "decode_tok_s"):
            real, stand = (statistics.median(getattr(row[i], name) for row in rows) for i in (0, 1))
            ratio = statistics.median(getattr(b, name) / getattr(a, name) for a, b in rows)
            print(
                f"{model.name} {name}: real {real:.1f}, stand-in {stand:.1f}, median ratio {ratio:.3f}", flush=True
            )
        real, stand = [(await runner.stats()).rss_bytes / 2**20 for runner in runners]
        print(
            f"{model.name} resident MiB: real {real:.1f}, stand-in {stand:.1f}, ratio {stand / real:.3f}",
            flush=True,
        )
    finally:
        for runner in runners:
            await runner.stop()


def main() -> None:
    """Compare every file with its stand-in."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for model in options.models:
            made = Path(folder) / f"{model.stem}-stand-in.gguf"
            standin.write_in_child(made, like=model, on_progress=lambda _done, _total: None)
            asyncio.run(compare(model, made, options.threads, options.turns))


if __name__ == "__main__":
    main()
