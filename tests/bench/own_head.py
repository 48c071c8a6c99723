"""What a file's own head for the token after the next one wins when it is always right, and costs when it never is.

    python -m tests.bench.own_head [--rounds 5] [--threads 2]

The models are written for it: twelve layers of a mixture of experts in F32 and one head, random but for what makes
the head right or wrong (tests/mtp_model.py). Decode of 128 tokens behind 64, guesses where the engine decides so.
"""

import argparse
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import architectures  # noqa: E402 - after sys.path
import mtp_model  # noqa: E402
from runner_calls import collect, with_runner  # noqa: E402

WIDE = {"E": 768, "Q": 768, "2Q": 1536, "K": 256, "D": 64, "H": 12, "F": 2048, "W": 512, "X": 8, "V": 32000}
LAYERS = ("dense", *["experts"] * 11, "head")
TOKENS = 128


def write(path: Path, kind: mtp_model.Kind) -> str:
    """A model of 13 layers."""
    meta = {**mtp_model.MTP_MODELS["glm4moe"].meta, "attention.head_count": 12, "attention.head_count_kv": 4}
    meta |= {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 512}
    wide = replace(mtp_model.MTP_MODELS["glm4moe"], layers=LAYERS, meta=meta)
    with (
        mock.patch.dict(architectures.DIMS, WIDE),
        mock.patch.object(architectures, "LAYERS", len(LAYERS)),
        mock.patch.dict(mtp_model.MTP_MODELS, {"glm4moe": wide}),
    ):
        return mtp_model.write_mtp_model(path, kind)


def measure(model: str, rounds: int, threads: int) -> tuple[list[float], list[float], float]:
    """Tokens a second with and without, and the share of guesses that was right."""

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

    return with_runner(model, work, mtp=True, n_threads=threads)


def main() -> None:
    """Print a line for each kind of head."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("right", "newest"):
            model = write(Path(folder) / f"{kind}.gguf", kind)
            on, off, share = measure(model, options.rounds, options.threads)
            ratios = [a / b for a, b in zip(on, off, strict=True)]
            span = f"({min(ratios):.3f} to {max(ratios):.3f})"
            print(
                f"head {kind}: {statistics.median(on):.1f} tok/s with, {statistics.median(off):.1f} without, ratio "
                f"{statistics.median(ratios):.3f} {span}, {share:.0%} of guesses right",
                flush=True,
            )


if __name__ == "__main__":
    main()
