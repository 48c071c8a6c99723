"""A stand-in against the real file it stands for: speed and memory, taking turns in one run.

python -m tests.bench.stand_in_accuracy MODEL.gguf ... [--rounds 3]
"""

import argparse
import asyncio
import statistics
import tempfile
from pathlib import Path

from engine.bench import standin
from engine.bench.run import bench
from engine.bench.types import Report
from engine.runner.protocol import LoadSettings

LENGTH = 256


def once(path: Path, threads: int) -> Report:
    """One measurement of one file."""
    settings = LoadSettings(path=str(path), n_threads=threads, n_threads_batch=threads)
    return asyncio.run(
        bench(
            settings, model=path.name, lengths=(LENGTH,), parallel=(1,), repeats=2, stand_in=False, tokens=32,
            step=lambda _: None,
        )
    )  # fmt: skip


def main() -> None:
    """Compare every file with its stand-in."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for model in options.models:
            made = Path(folder) / f"{model.stem}-stand-in.gguf"
            standin.write_in_child(made, like=model, on_progress=lambda _done, _total: None)
            pairs = [(once(model, options.threads), once(made, options.threads)) for _ in range(options.rounds)]
            for name, of in (
                ("prefill tok/s", lambda r: r.points[0].prefill_tok_s.median),
                ("decode tok/s", lambda r: r.points[0].decode_tok_s.median),
                ("resident MiB", lambda r: r.rss_bytes / 2**20),
            ):
                real, stand = (statistics.median(of(pair[i]) for pair in pairs) for i in (0, 1))
                each = ", ".join(f"{of(b) / of(a):.3f}" for a, b in pairs)
                print(
                    f"{model.name} {name}: real {real:.1f}, stand-in {stand:.1f}, {stand / real:.3f} ({each})",
                    flush=True,
                )


if __name__ == "__main__":
    main()
