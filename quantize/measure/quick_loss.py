"""Measures in seconds how sensitive a model is: the loss of rounding all its weights to 4 bits at once."""

from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from devices.msgspec_lock import learned
from quantize.child import answer_of
from quantize.files.gguf_split import model_files
from quantize.files.measurement_folder import identity_of, read_json, write_json
from quantize.ggml_types import TEST_TYPE
from quantize.measure.kl_divergence import kld_from, log_softmax
from quantize.measurements import CancelCheck, OnProgress, Step
from quantize.native.blocks import dequantize_rows, quantize_rows
from quantize.native.calibration import read_windows
from quantize.native.eval_context import EvalContext, Logits, Tokens
from quantize.native.reference import ReferenceModel
from quantize.native.source_weights import SourceWeights, quantizable
from quantize.types import QuickLoss

_TYPE = TEST_TYPE.name
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
    found = cached_quick_loss(request.source, cache_dir)
    if found is None:
        found = answer_of(QuickLoss, "quick_loss", request, on_progress, cancelled)
        with suppress(OSError):  # the model is tested again next time
            path = _cache_file(request.source, cache_dir)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, found)
    return found


def cached_quick_loss(source: Path, cache_dir: Path) -> QuickLoss | None:
    """The result of an earlier test of this file; None if there is none, or if the source is a folder."""
    if source.is_dir():
        return None
    found = read_json(_cache_file(source, cache_dir))
    return None if found is None else msgspec.convert(found, learned(QuickLoss))


def _cache_file(source: Path, cache_dir: Path) -> Path:
    identity = " ".join(map(identity_of, model_files(source)))
    return cache_dir / "hashes" / f"quick-loss-{sha256(identity.encode()).hexdigest()}"


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
            model.overwrite(name, _rounded(source, name, request.threads))
        found = np.concatenate(list(model.side_by_side(list(zip(windows, expected, strict=True)), compare)))
        send(len(names), len(names), "")
    return QuickLoss(kld=float(found.mean()), tokens=int(found.size))


def _rounded(source: SourceWeights, name: str, threads: int) -> npt.NDArray[np.uint8]:
    """A tensor's bytes in its own type after rounding to `_TYPE`."""
    matrices, _, width = source.shape(name)
    parts = []
    for matrix in range(matrices):
        blocks = quantize_rows(source.rows(name, matrix), _TYPE, None, threads=threads)
        values = dequantize_rows(blocks, _TYPE, width, threads=threads)
        parts.append(quantize_rows(values, source.source_qtype(name), threads=threads))
    return np.concatenate(parts)
