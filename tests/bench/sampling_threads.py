"""What sampling of many sequences costs in one step, one after the other and over two threads, for log-archive.md.

python -m tests.bench.sampling_threads [--vocab 151936] [--rounds 30]
"""

import argparse
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from engine.core.types import SamplingParams
from engine.runner.llama.batch.sampler import ChainSampler
from engine.runner.llama.native.llama_api import start_backends

ROOT = Path(__file__).resolve().parents[2]
CASES = {
    "greedy": {"temperature": 0},
    "temperature 0.8, top-k 40, top-p 0.95, min-p 0.05": {
        "temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05,
    },
    "temperature 1, top-p 0.95": {"top_p": 0.95},
}  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", type=int, default=151936)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    api = start_backends()
    params = api.llama_model_default_params()
    params.vocab_only = True
    model = api.llama_model_load_from_file(str(ROOT / "assets/models/spark-f16.gguf").encode(), params)
    vocab = api.llama_model_get_vocab(model)
    rng = np.random.default_rng(0)
    print("| sampling | sequences | one thread, ms | two threads, ms |")
    print("|---|---|---|---|")
    for name, case in CASES.items():
        for count in (4, 8, 16):
            rows = rng.normal(0, 3, (count, options.vocab)).astype(np.float32)
            samplers = [ChainSampler(api, vocab, SamplingParams(seed=i, **case), 4096, []) for i in range(count)]
            work = [(s, rows[i]) for i, s in enumerate(samplers)]
            with ThreadPoolExecutor(2) as pool:
                serial = median_ms(lambda parts: [draw(p) for p in parts], [work], options.rounds)
                shared = median_ms(
                    lambda parts: list(pool.map(draw, parts)), [work[::2], work[1::2]], options.rounds
                )
            print(f"| {name} | {count} | {serial:.2f} | {shared:.2f} |", flush=True)
            for sampler in samplers:
                sampler.close()


def draw(part):
    """One token for each."""
    return [sampler.sample(row) for sampler, row in part]


def median_ms(step, parts, rounds):
    """Milliseconds of the middle round."""
    found = []
    for _ in range(rounds):
        started = time.perf_counter()
        step(parts)
        found.append(1000 * (time.perf_counter() - started))
    return statistics.median(found)


if __name__ == "__main__":
    main()
