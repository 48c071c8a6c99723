"""Checks that estimated losses of files on a hub are within their intervals, in the order of the measured losses.

Usage: python tests/bench/hub_loss.py ORIGINAL.gguf FILE.gguf... [--tokens 2048] [--threads 2] [--work DIR]
       python tests/bench/hub_loss.py --judge

Serves the files from a local hub, estimates each from a sample of its rows, and compares each whole file with its
original on held-out text. `--judge` takes the recorded figures: Spearman's rank correlation within each model, the
intervals that hold, and the bytes that were read.
"""

import argparse
import hashlib
import json
import math
import os
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np

from engine.core.paths import user_paths
from engine.jobs.jobs import JobContext
from engine.library.catalogue import Catalogue
from engine.library.hub.client import HubClient
from engine.library.hub.expected_loss import compare
from engine.library.hub.types import CompareTask, UploadComparison
from engine.library.importing import link
from quantize.measure.quick_loss import QuickLossRequest, quick_loss
from quantize.measure.verify import verify
from quantize.measurements import VerifyRequest
from quantize.types import CALIBRATION, HELD_OUT, FileReport
from tests.bench.recording import FOLDER, record
from tests.support.fakes.fake_hub import FakeFile, FakeHub

_AT_ONCE = 6
_EQUAL = 1e-12


class MappedFile(FakeFile):
    """A file that is served from its mapping. It is never verified, so its hash is that of its path and size."""

    def __post_init__(self) -> None:
        self.sha256 = hashlib.sha256(f"{self.lie} {len(self.data)}".encode()).hexdigest()
        self.git_sha1, self.lie = "0" * 40, None


def estimate(original: Path, files: list[Path], work: Path, *, tested: bool, threads: int) -> UploadComparison:
    """Estimate all files; if `tested`, the quick test of the original is known."""
    home = work / ("tested" if tested else "untested")
    os.environ["TESSERA_HOME"] = str(home)
    with FakeHub() as hub:
        os.environ["HF_ENDPOINT"], os.environ["HF_TOKEN"] = hub.endpoint, ""
        shown = {path: np.memmap(path, np.uint8, "r") for path in (original, *files)}
        hub.add(
            "bench/files",
            {
                f"m-{'F16' if path is original else f'x{number}-Q4_K_M'}.gguf": MappedFile(shown[path], lie=path)
                for number, path in enumerate((original, *files))
            },
        )
        paths = user_paths()
        paths.models.mkdir(parents=True, exist_ok=True)
        catalogue = Catalogue(paths)
        if tested:
            link(catalogue, str(original.resolve()))
            quick_loss(
                QuickLossRequest(source=original.resolve(), text=CALIBRATION, threads=threads),
                paths.cache / "quantize",
                lambda _: None,
                lambda: False,
            )
        found = compare(HubClient(), catalogue, CompareTask(uploads=("bench/files",)), JobContext())
        catalogue.close()
    return found


def measure(original: Path, files: list[Path], args: argparse.Namespace) -> None:
    """Record the estimates and the measured loss of each file."""
    plain, tested = (
        estimate(original, files, args.work, tested=tested, threads=args.threads) for tested in (False, True)
    )
    reports: list[FileReport] = []
    for first in range(0, len(files), _AT_ONCE):
        task = VerifyRequest(
            reference=original,
            files=tuple(files[first : first + _AT_ONCE]),
            text=HELD_OUT,
            max_tokens=args.tokens,
            threads=args.threads,
        )
        reports += verify(task, lambda _: None, lambda: False)
    for index, (path, report) in enumerate(zip(files, reports, strict=True)):
        without, with_test = (
            next(loss for loss in found.uploads if loss.label.startswith(f"m-x{index + 1}-"))
            for found in (plain, tested)
        )
        record(
            "hub_loss",
            "mean KL divergence",
            _short(report.kld_mean.value),
            "nats per token",
            interval=(_short(report.kld_mean.low), _short(report.kld_mean.high)),
            model=original.stem,
            file=path.stem,
            bytes=path.stat().st_size,
            expected=[_short(value or 0) for value in (without.kld, without.low, without.high)],
            after_quick_test=[_short(value or 0) for value in (with_test.kld, with_test.low, with_test.high)],
            read_share=_short(plain.fetched_bytes / plain.total_bytes),
        )


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def judge() -> None:
    """Print the rank correlation, the intervals that hold, and the share of bytes, by model."""
    rows = defaultdict(list)
    for line in (FOLDER / "hub_loss.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        rows[row["parameters"]["model"]].append((row["value"], row["parameters"]))
    for model, found in rows.items():
        losses = np.array([value for value, _ in found])
        expected = np.array([facts["expected"][0] for _, facts in found])
        print(f"{model}: {len(found)} files, Spearman {_spearman(losses, expected):.3f}", end="")
        for name in ("expected", "after_quick_test"):
            held = sum(facts[name][1] <= value <= facts[name][2] for value, facts in found)
            middle = math.exp(np.mean([math.log(value / max(f[name][0], _EQUAL)) for value, f in found]))
            print(f"; {name}: {held} hold, measured is {middle:.2f} times the middle", end="")
        print(f"; read {max(facts['read_share'] for _, facts in found):.2%}")


def _spearman(one: np.ndarray, other: np.ndarray) -> float:
    ranks = [np.argsort(np.argsort(values)) for values in (one, other)]
    return float(np.corrcoef(*ranks)[0, 1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("original", type=Path, nargs="?")
    parser.add_argument("files", type=Path, nargs="*")
    parser.add_argument("--judge", action="store_true")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--work", type=Path, default=Path("build/hub_loss"))
    args = parser.parse_args()
    if args.original:
        measure(args.original, args.files, args)
    if args.judge:
        judge()


if __name__ == "__main__":
    main()
