"""Measures in seconds how sensitive a model is: the loss of rounding all its weights to 4 bits at once."""

from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from quantize.child import answer_of
from quantize.files.measurement_folder import cache_result, cached_result
from quantize.ggml_types import TEST_TYPE
from quantize.measure.kl_divergence import kld_from, log_softmax
from quantize.measure.sensitivity import requantized
from quantize.measurements import CancelCheck, OnProgress, Step
from quantize.native.calibration import read_windows
from quantize.native.eval_context import EvalContext, Logits, Tokens
from quantize.native.reference import ReferenceModel
from quantize.native.source_weights import SourceWeights, quantizable
from quantize.types import QuickLoss

_TYPE = TEST_TYPE.name
_CACHED_AS = "quick-loss"
_WINDOW = 256
# Four windows, each scored in its second half, where the context is long enough. With two, the result varied by a
# factor of 1.7 (tests/bench/results/loss_range.jsonl).
_TOKENS = 1024


class QuickLossRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The model to test, and the UTF-8 text to predict."""

    source: Path
    text: Path
    threads: int = 1


def quick_loss(
    request: QuickLossRequest, cache_dir: Path, on_progress: OnProgress, cancelled: CancelCheck
) -> QuickLoss:
    """Test a model in a child process; the result is cached for the file's path, size and time.

    Raises: Cancelled. ChildDied: llama.cpp crashed on the file. TextTooShort, CannotRead.
    """
    loss = cached_quick_loss(request.source, cache_dir)
    if loss is None:
        loss = answer_of(QuickLoss, "quick_loss", request, on_progress, cancelled)
        cache_result(_CACHED_AS, request.source, cache_dir, loss)
    return loss


def cached_quick_loss(source: Path, cache_dir: Path) -> QuickLoss | None:
    """The result of an earlier test of this file; None if there is none, or if the source is a folder."""
    if source.is_dir():
        return None
    return cached_result(_CACHED_AS, source, cache_dir, QuickLoss)


def measure_quick_loss(request: QuickLossRequest, send: Step) -> QuickLoss:
    """The child process's part: predict, round the loaded weights in place, predict again.

    Takes two short forward passes and one pass over the weights, which are not restored.
    """
    source = SourceWeights(request.source)
    with ReferenceModel(request.source, window=_WINDOW, threads=request.threads) as model:
        windows = list(read_windows(model, request.text, _TOKENS, _WINDOW, spread=True)[:, None])
        keep = np.zeros(_WINDOW, np.bool_)
        keep[_WINDOW // 2 : -1] = True

        def predict(context: EvalContext, _: int, window: Tokens) -> Logits:
            return log_softmax(context.run(window, keep)[0])

        def compare(context: EvalContext, _: int, part: tuple[Tokens, Logits]) -> npt.NDArray[np.float64]:
            return kld_from(part[1], context.run(part[0], keep)[0])

        expected = list(model.side_by_side(windows, predict))
        names = [name for name in model.weights if name in source.names and quantizable(source, name)]
        for index, name in enumerate(names):
            send(index, len(names), name)
            model.overwrite(name, requantized(source, name, _TYPE, threads=request.threads))
        divergences = np.concatenate(list(model.side_by_side(list(zip(windows, expected, strict=True)), compare)))
        send(len(names), len(names), "")
    return QuickLoss(kld=float(divergences.mean()), tokens=int(divergences.size))
