"""Compares finished files with a reference on held-out text, in a child process."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from devices.errors import InputFault
from quantize.child import answer_of
from quantize.measure.kl_divergence import Comparison, compare
from quantize.measurements import CancelCheck, OnProgress, Step, VerifyRequest
from quantize.native.calibration import read_windows
from quantize.native.eval_context import EvalContext, Logits, Tokens
from quantize.native.reference import ReferenceModel
from quantize.types import FileReport, Interval

F = TypeVar("F", np.float32, np.float64)
_RESAMPLES = 2000
_TAIL = 0.025  # each side of a 95 % interval
_SEED = 20240229
# Below this many nats two predictions count as equal: float32 rounding between two runs of the same model.
_SAME = 1e-9


class VocabularyDiffers(InputFault):
    """A file's vocabulary size differs from the reference's, so their predictions cannot be compared."""

    code = "vocabulary_differs"

    def __init__(self, path: str, tokens: int, reference_tokens: int) -> None:
        super().__init__(f"{path} has {tokens} tokens, the reference has {reference_tokens}")
        self.path = path
        self.tokens = tokens
        self.reference_tokens = reference_tokens


class NotFinite(InputFault):
    """A file computes NaN or infinity and cannot be evaluated."""

    code = "not_finite"

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} computes NaN or infinity on the held-out text: its weights are damaged")
        self.path = path


def verify(request: VerifyRequest, on_progress: OnProgress, cancelled: CancelCheck) -> tuple[FileReport, ...]:
    """Compare finished files with a reference, in a child process.

    Raises: Cancelled. ChildDied: a file crashed llama.cpp. TextTooShort, VocabularyDiffers, NotFinite, Unreadable.
    """
    return answer_of(tuple[FileReport, ...], "verify", request, on_progress, cancelled)


def verify_files(request: VerifyRequest, send: Step) -> tuple[FileReport, ...]:
    """The child process's part of `verify`.

    Every model evaluates every window once, with one window per context at a time.
    """
    with ExitStack() as stack:

        def load(path: Path, max_contexts: int | None = None) -> ReferenceModel:
            return stack.enter_context(
                ReferenceModel(
                    path,
                    window=request.window,
                    threads=request.threads,
                    gpu_layers=request.gpu_layers,
                    max_contexts=max_contexts,
                )
            )

        reference = load(request.reference)
        models = [load(path, reference.num_contexts) for path in request.files]
        for path, model in zip(request.files, models, strict=True):
            if model.num_vocab != reference.num_vocab:
                raise VocabularyDiffers(str(path), model.num_vocab, reference.num_vocab)
        windows = read_windows(reference, request.text, request.max_tokens, request.window, spread=True)
        # Shuffle, so that the evaluated windows come from the whole text even if the comparison stops early.
        windows = windows[np.random.default_rng(_SEED).permutation(len(windows))]
        # As in llama-perplexity: only the second half of each window, which has enough context, counts.
        keep = np.zeros(request.window, np.bool_)
        keep[request.window // 2 : -1] = True

        def predict(context: EvalContext, _: int, part: Tokens) -> Logits:
            return _finite(request.reference, context.run(part, keep)[0])

        def judge(context: EvalContext, _: int, part: tuple[Tokens, Logits]) -> Comparison:
            window, expected = part
            return compare(expected, context.run(window, keep)[0], window[0, 1:][keep[:-1]])

        comparisons: list[list[Comparison]] = [[] for _ in models]
        stops = looks(request, len(windows))
        for goal in stops:
            while len(comparisons[0]) < goal:
                first = len(comparisons[0])
                send(first, len(windows), "")
                parts = [window[None] for window in windows[first : min(goal, first + reference.num_contexts)]]
                expected = list(zip(parts, reference.side_by_side(parts, predict), strict=True))
                for path, results, model in zip(request.files, comparisons, models, strict=True):
                    results.extend(model.side_by_side(expected, judge))
                    _finite(path, np.array([window.kld for window in results[first:]]))
            if len(comparisons) == 1 or is_clear(ratio(comparisons[0], comparisons[1], _TAIL / len(stops))):
                break
        send(len(windows), len(windows), "")
    return _reports(request.files, comparisons)


def _finite(path: Path, values: npt.NDArray[F]) -> npt.NDArray[F]:
    """Check a file's results. Raises: NotFinite."""
    if not np.isfinite(values).all():
        raise NotFinite(str(path))
    return values


def _reports(files: tuple[Path, ...], comparisons: list[list[Comparison]]) -> tuple[FileReport, ...]:
    reports = []
    for path, results in zip(files, comparisons, strict=True):
        file_report = report(str(path), path.stat().st_size, results)
        against = ratio(results, comparisons[-1]) if len(comparisons) > 1 else None
        reports.append(msgspec.structs.replace(file_report, ratio=against))
    return tuple(reports)


def looks(request: VerifyRequest, windows: int) -> list[int]:
    """Window counts at which to check whether the result is clear; the last one is all windows."""
    if request.min_tokens is None:
        return [windows]
    count = max(1, request.min_tokens // request.window)
    counts = []
    while count < windows:
        counts.append(count)
        count *= 2
    return [*counts, windows]


def ratio(ours: list[Comparison], theirs: list[Comparison], tail: float = _TAIL) -> Interval:
    """Mean KL divergence of one file over another's on the same windows, with a paired bootstrap interval."""
    one, other = (np.array([w.kld.mean() for w in windows]) for windows in (ours, theirs))
    picks = np.random.default_rng(_SEED).integers(0, len(one), (_RESAMPLES, len(one)))
    resampled = one[picks].mean(axis=1) / np.maximum(other[picks].mean(axis=1), _SAME)
    low, high = np.quantile(resampled, [tail, 1 - tail])
    return Interval(float(one.mean() / max(other.mean(), _SAME)), float(low), float(high))


def is_clear(interval: Interval) -> bool:
    """Whether a ratio's interval shows which file is better."""
    return interval.high < 1 or interval.low > 1


def report(path: str, file_bytes: int, windows: list[Comparison]) -> FileReport:
    """Results of one file from its windows.

    The bootstrap resamples whole windows, because tokens of one window are not independent.
    """
    kld = np.concatenate([w.kld for w in windows])

    def share(values: Callable[[Comparison], npt.NDArray[np.float64]]) -> Interval:
        return bootstrap([float(values(w).mean()) for w in windows])

    nll = share(lambda w: w.nll)
    reference_nll = float(np.concatenate([w.reference_nll for w in windows]).mean())
    return FileReport(
        path=path,
        file_bytes=file_bytes,
        tokens=len(kld),
        kld_mean=share(lambda w: w.kld),
        kld_median=float(np.median(kld)),
        kld_p99=float(np.quantile(kld, 0.99)),
        kld_p999=float(np.quantile(kld, 0.999)),
        top1_agreement_frac=share(lambda w: w.same_top.astype(np.float64)),
        perplexity=Interval(float(np.exp(nll.value)), float(np.exp(nll.low)), float(np.exp(nll.high))),
        reference_perplexity=float(np.exp(reference_nll)),
    )


def bootstrap(means: list[float]) -> Interval:
    """The mean of window means and its 95 % bootstrap interval, with a fixed seed."""
    values = np.array(means)
    picks = np.random.default_rng(_SEED).integers(0, len(values), (_RESAMPLES, len(values)))
    resampled = values[picks].mean(axis=1)
    low, high = np.quantile(resampled, [_TAIL, 1 - _TAIL])
    return Interval(float(values.mean()), float(low), float(high))
