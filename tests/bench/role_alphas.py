"""Measures the sensitivity of each tensor role: KL divergence per unit of relative error, for the priors.

Usage: python tests/bench/role_alphas.py MODEL.gguf... [--type Q5_0] [--tokens 1536] [--threads 2]

All tensors of a role, and all of the first eighth, the middle and the last of the layers, are rounded in the
loaded model and restored. The loss is measured on calibration text. An error is the mean of the tensors' relative
squared errors, on sampled rows.
"""

import argparse
import math
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np

from quantize.measure.kl_divergence import kld_from, log_softmax
from quantize.measure.sensitivity import requantized
from quantize.native.blocks import dequantize_rows, quantize_rows
from quantize.native.calibration import read_windows
from quantize.native.reference import ReferenceModel
from quantize.native.source_weights import SourceWeights, quantizable
from quantize.plan.llama_cpp_presets import layer_of, role_of
from quantize.types import CALIBRATION
from tests.bench.recording import record

WINDOW = 256
# Scored positions of a window: every fourth, where the context is long enough.
FIRST_SCORED, STEP = 32, 4
SAMPLED_ROWS = 96


def relative_error(source: SourceWeights, name: str, qtype: str) -> float:
    """Relative squared error of some rows of a tensor."""
    _, rows, width = source.shape(name)
    picked = np.sort(np.random.default_rng(1).choice(rows, min(rows, SAMPLED_ROWS), replace=False))
    exact = source.rows(name, 0, picked)
    rounded = dequantize_rows(quantize_rows(exact, qtype), qtype, width)
    return float(((rounded - exact) ** 2).sum(dtype=np.float64) / (exact**2).sum(dtype=np.float64))


def parts_of(names: list[str]) -> dict[str, list[str]]:
    """The tensors of each role, and of each part of the layers."""
    layers = max(map(layer_of, names)) + 1
    parts: dict[str, list[str]] = defaultdict(list)
    for name in names:
        parts[role_of(name).name].append(name)
        if (layer := layer_of(name)) >= 0:
            first, last = layer < math.ceil(layers / 8), layer == layers - 1
            parts["first layers" if first else "last layer" if last else "middle layers"].append(name)
    return parts


def measure(path: Path, args: argparse.Namespace) -> None:
    """Record the loss per unit of error of each part."""
    source = SourceWeights(path)
    keep = np.zeros(WINDOW, np.bool_)
    keep[STEP - 1 :: STEP] = True
    keep[:FIRST_SCORED] = False
    with ReferenceModel(path, window=WINDOW, threads=args.threads) as model:
        windows = list(read_windows(model, CALIBRATION, args.tokens, WINDOW, spread=True)[:, None])
        expected = model.side_by_side(windows, lambda c, _, window: log_softmax(c.run(window, keep)[0]))
        pairs = list(zip(windows, expected, strict=True))
        names = [n for n in model.weights if n in source.names and quantizable(source, n)]
        for part, members in parts_of(names).items():
            error = float(np.mean([relative_error(source, n, args.type) for n in members]))
            rounded = {n: requantized(source, n, args.type, threads=args.threads) for n in members}
            with model.swapped(rounded):
                losses = model.side_by_side(pairs, lambda c, _, pair: kld_from(pair[1], c.run(pair[0], keep)[0]))
                kld = np.concatenate(list(losses))
            loss, deviation = float(kld.mean()), float(kld.std()) / math.sqrt(kld.size)
            interval = tuple(float(f"{(loss + 2 * sign * deviation) / error:.4g}") for sign in (-1, 1))
            record(
                "role_alphas",
                "KL divergence per unit of error",
                float(f"{loss / error:.4g}"),
                "nats per token",
                interval=interval,
                model=path.stem,
                part=part,
                type=args.type,
                tokens=args.tokens,
            )
            print(f"{path.stem} {part}: {loss / error:.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--type", default="Q5_0")
    parser.add_argument("--tokens", type=int, default=1536)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    for model in args.models:
        measure(model, args)


if __name__ == "__main__":
    main()
