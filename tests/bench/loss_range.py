"""Checks that a file's loss is in the range shown before it was made, for ten sizes of each model.

Usage: python tests/bench/loss_range.py MODEL.gguf... [--tokens 2048] [--threads 2] [--work DIR]
       python tests/bench/loss_range.py --judge

Plans with priors alone, rounds as the instant tier does, and compares each file with its source on held-out text.
`--judge` takes the recorded figures: for every model the prior is fitted on the other models.
"""

import argparse
import json
import math
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np

from quantize.errors import BudgetTooSmall
from quantize.files.gguf_file import read_gguf
from quantize.files.gguf_write import GgufWriter, TensorSlot, copied_metadata, header, scalar
from quantize.ggml_types import TEST_TYPE, GgmlType
from quantize.job.round_plan import round_plan
from quantize.measure.quick_loss import QuickLossRequest, quick_loss
from quantize.measure.verify import verify
from quantize.measurements import MeasureRequest, RoundRequest, VerifyRequest
from quantize.plan.plan import PlanInput, make_plan
from quantize.plan.priors import TESTED_FACTOR, TYPICAL_SCALE, UNKNOWN_FACTOR, prior_damage
from quantize.plan.speed import model_spec
from quantize.types import CALIBRATION, HELD_OUT, EvidenceRef, Rounding, SizeTarget
from tests.bench.recording import FOLDER, record

SIZES = 10
MOST_BITS = 7.8


def measure(model: Path, args: argparse.Namespace) -> None:
    """Create ten files between the smallest possible size and almost 8 bits, and record each one's loss."""
    file = read_gguf(model)
    spec = model_spec(file)
    values = sum(tensor.num_values for tensor in spec.tensors)
    metadata = {**copied_metadata(file), "general.quantization_version": scalar(2)}
    head = len(header(metadata, [TensorSlot(t.name, t.shape, t.ggml_type) for t in file.tensors]))
    damage = prior_damage(spec)
    question = PlanInput(
        model=spec,
        damage=damage,
        evidence=EvidenceRef(tier="instant", has_imatrix=False),
        header_bytes=head,
        with_stock=False,
    )
    smallest = 0
    try:
        make_plan(question, SizeTarget(kind="budget", limit_bytes=1))
    except BudgetTooSmall as error:
        smallest = error.smallest_bytes
    tested = quick_loss(
        QuickLossRequest(source=model, text=CALIBRATION, threads=args.threads),
        args.work / "cache",
        lambda _: None,
        lambda: False,
    )
    expected_test = sum(row[TEST_TYPE.name] for row in damage.values()) / TYPICAL_SCALE
    request = MeasureRequest(
        source=model, calibration=CALIBRATION, cache_dir=args.work / "cache", threads=args.threads
    )
    for limit in np.geomspace(smallest * 1.01, values * MOST_BITS / 8, SIZES):
        plan = make_plan(question, SizeTarget(kind="budget", limit_bytes=int(limit)))
        out = args.work / f"{model.stem}-{int(limit)}.gguf"
        changed = {t.name: plan.types[t.name] for t in file.tensors if plan.types[t.name] != t.ggml_type.name}
        task = RoundRequest(measure=request, types=changed, rounding=Rounding.STOCK)
        packed = {p.name: p.blocks for p in round_plan(task, lambda _: None, lambda: False)}
        slots = [TensorSlot(t.name, t.shape, GgmlType[plan.types[t.name]]) for t in file.tensors]
        out.unlink(missing_ok=True)
        writer = GgufWriter(out, metadata, slots)
        for tensor in file.tensors:
            writer.write(tensor.name, [packed.get(tensor.name, file.tensor_bytes(tensor))])
        writer.close()
        task = VerifyRequest(
            reference=model, files=(out,), text=HELD_OUT, max_tokens=args.tokens, threads=args.threads
        )
        found = verify(task, lambda _: None, lambda: False)[0].kld_mean
        out.unlink()
        record(
            "loss_range",
            "mean KL divergence",
            _short(found.value),
            "nats per token",
            interval=(_short(found.low), _short(found.high)),
            model=model.stem,
            bits=_short(8 * plan.file_bytes / values),
            expected=_short(plan.damage / TYPICAL_SCALE),
            quick_test=_short(tested.kld),
            expected_test=_short(expected_test),
        )
        print(f"{model.stem} {8 * plan.file_bytes / values:.2f} bits: {found.value:.4f}", flush=True)


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def judge() -> None:
    """Print how many losses lie in the range, with everything fitted on the other models."""
    ratios: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for line in (FOLDER / "loss_range.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        known = row["parameters"]
        plain = row["value"] / known["expected"]
        ratios[known["model"]].append((plain, plain / (known["quick_test"] / known["expected_test"])))
    for index, what, factor in ((0, "without a test", UNKNOWN_FACTOR), (1, "after a quick test", TESTED_FACTOR)):
        for model, own in ratios.items():
            others = [math.log(pair[index]) for name, pairs in ratios.items() if name != model for pair in pairs]
            middle = math.exp(np.mean(others))
            inside = sum(1 / factor <= pair[index] / middle <= factor for pair in own)
            print(f"{what}, {model}: {inside} of {len(own)} within {factor} times of {middle:.2f}")
        everything = [math.log(pair[index]) for pairs in ratios.values() for pair in pairs]
        print(f"{what}: middle of all {math.exp(np.mean(everything)):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("models", type=Path, nargs="*")
    parser.add_argument("--judge", action="store_true")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--work", type=Path, default=Path("build/loss_range"))
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    for model in args.models:
        measure(model, args)
    if args.judge:
        judge()


if __name__ == "__main__":
    main()
