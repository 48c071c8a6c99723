"""Measures a file's MTP head: its gain when it is always right, and its cost when it is always wrong.

    python -m tests.bench.own_head [--arch glm4moe] [--rounds 5] [--threads 2]

The models are written for it: twelve layers in F32 (a mixture of experts, or a hybrid with `--arch qwen35`) and a
head, random but for what makes it right or wrong (tests/support/models/mtp_model.py). Decode of 128 tokens behind
64, guesses where the engine decides so. Of a hybrid also what the copies of its states cost where nothing is
guessed.
"""

import argparse
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from engine.placement.load_settings import MAX_ROLLBACK
from tests.support.models import architectures, mtp_model
from tests.support.runner_calls import collect, with_runner

WIDE = {"E": 768, "Q": 768, "2Q": 1536, "K": 256, "D": 64, "H": 12, "F": 2048, "W": 512, "X": 8, "V": 32000}
# Delta net: 12 heads of values and 4 of keys, 64 wide.
WIDE |= {"S": 768, "QKVS": 1280, "T": 12}
LAYERS = {
    "glm4moe": ("dense", *["experts"] * 11, "head"),
    "qwen35": (*("state", "state", "state", "attention") * 3, "head"),
}
META = {
    "glm4moe": {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 512},
    "qwen35": {
        "ssm.inner_size": 768, "ssm.time_step_rank": 12, "ssm.group_count": 4, "full_attention_interval": 4,
        "rope.dimension_sections": [11, 11, 10, 0],
    },
}  # fmt: skip
TOKENS = 128


def write(path: Path, kind: mtp_model.Kind, arch: str) -> str:
    """A model of 13 layers."""
    usual = mtp_model.MTP_MODELS[arch]
    meta = {**usual.meta, "attention.head_count": 12, "attention.head_count_kv": 4, **META[arch]}
    wide = replace(usual, layers=LAYERS[arch], meta=meta)
    with (
        mock.patch.dict(architectures.DIMS, WIDE),
        mock.patch.object(architectures, "LAYERS", len(LAYERS[arch])),
        mock.patch.dict(mtp_model.MTP_MODELS, {arch: wide}),
    ):
        return mtp_model.write_mtp_model(path, kind, arch)


def measure(model: str, rounds: int, threads: int, copies: int) -> tuple[list[float], list[float], float]:
    """Tokens per second with and without, and the share of accepted draft tokens."""

    async def work(runner):
        on, off, drafted, right = [], [], 0, 0
        for i in range(rounds + 1):
            prompt = [(37 * n * n + 11 * n + i) % 30000 for n in range(64)]
            for found, flag in ((on, None), (off, False)):
                _, timings = await collect(runner, prompt, max_tokens=TOKENS, speculate=flag)
                if i:
                    found.append((TOKENS - 1) / timings.decode_s)
                drafted, right = drafted + timings.draft_tokens, right + timings.draft_accepted
        return on, off, right / max(drafted, 1)

    return with_runner(model, work, mtp=True, n_threads=threads, max_rollback=copies)


def copies_cost(model: str, rounds: int, threads: int) -> list[float]:
    """Plain decode with copies of states to that without, each round both from new processes."""

    async def work(runner):
        speeds = []
        for i in range(4):
            prompt = [(37 * n * n + 11 * n + i) % 30000 for n in range(64)]
            _, timings = await collect(runner, prompt, max_tokens=TOKENS, speculate=False)
            speeds.append((TOKENS - 1) / timings.decode_s)
        return statistics.median(speeds[1:])

    found = []
    for i in range(rounds):
        speeds = {}
        for copies in (MAX_ROLLBACK, 0) if i % 2 else (0, MAX_ROLLBACK):
            speeds[copies] = with_runner(model, work, n_threads=threads, max_rollback=copies)
        found.append(speeds[MAX_ROLLBACK] / speeds[0])
    return found


def main() -> None:
    """Print a line for each kind of head."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--arch", choices=LAYERS, default="glm4moe")
    options = parser.parse_args()
    copies = MAX_ROLLBACK if options.arch == "qwen35" else 0
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("right", "newest"):
            model = write(Path(folder) / f"{kind}.gguf", kind, options.arch)
            on, off, share = measure(model, options.rounds, options.threads, copies)
            ratios = [a / b for a, b in zip(on, off, strict=True)]
            span = f"({min(ratios):.3f} to {max(ratios):.3f})"
            print(
                f"head {kind}: {statistics.median(on):.1f} tok/s with, {statistics.median(off):.1f} without, ratio "
                f"{statistics.median(ratios):.3f} {span}, {share:.0%} of guesses right",
                flush=True,
            )
        if copies:
            costs = copies_cost(model, options.rounds, options.threads)
            span = f"({min(costs):.3f} to {max(costs):.3f})"
            print(f"plain decode with {copies} copies of states to without: {statistics.median(costs):.3f} {span}")


if __name__ == "__main__":
    main()
