"""Measures the KL divergence of KV cache types for K and V separately, by context length, with llama.cpp itself."""

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import numpy as np

from devices.msgspec_lock import learned
from quantize.child import run_task
from quantize.files.measurement_folder import WorkFolder, read_json
from quantize.measure.kl_divergence import kld_from, log_softmax
from quantize.measurements import CancelCheck, MeasureRequest, OnProgress, Step
from quantize.native.calibration import TextTooShort, read_windows
from quantize.native.eval_context import EvalContext
from quantize.native.reference import ReferenceModel
from quantize.types import KvOption

# Number of windows and their tokens; shorter if the text or the model's context is too short.
_WINDOWS, USUAL, _SHORTEST = 2, 2048, 512
LONGEST = 8192  # maximum for tier max: one such window costs as much as the Hessians of a small model
_KEEP_EVERY = 8  # one in 8 positions of a default window is scored, because neighbours are similar
_FLOAT = "f16"
# Longer contexts are extrapolated with the measured growth, up to this multiple of the longest one.
_LARGEST_STEP = 8.0
_STEEPEST = 0.5  # a steeper line through so few points is noise


class KvRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Measure these KV cache types on the calibration text, for contexts of up to `longest` tokens."""

    measure: MeasureRequest
    types: tuple[str, ...]
    longest: int = USUAL


class KvCacheLoss(msgspec.Struct, frozen=True, kw_only=True):
    """Mean KL divergence (nats per token) of one side of the KV cache in one type, by context length.

    `side` is "k" or "v", with the other one in F16. `contexts` are the upper ends of ranges, `kld` has one value
    for each.
    """

    side: str
    qtype: str
    contexts: tuple[int, ...]
    kld: tuple[float, ...]

    def at(self, n_ctx: int) -> float:
        """Expected KL divergence for a context of `n_ctx` tokens: as measured, then extrapolated."""
        if n_ctx <= self.contexts[-1] or len(self.contexts) == 1:
            klds = [k for c, k in zip(self.contexts, self.kld, strict=True) if c <= max(n_ctx, self.contexts[0])]
            return float(np.mean(klds))
        x, y = np.log(self.contexts), np.log(np.maximum(self.kld, 1e-9))
        slope = min(max(0.0, float(np.polyfit(x, y, 1)[0])), _STEEPEST)
        return float(self.kld[-1] * min(n_ctx / self.contexts[-1], _LARGEST_STEP) ** slope)


def kv_damage(request: KvRequest, on_progress: OnProgress, cancelled: CancelCheck) -> tuple[KvCacheLoss, ...]:
    """Measure, or read from the cache. Raises: Cancelled. ChildDied. TextTooShort, Unreadable, SourceChanged."""
    folder = WorkFolder.open(request.measure)
    path = folder.path / f"kv-{request.longest}-{'-'.join(request.types)}.json"
    cached = read_json(path)
    if cached is None:
        cached = run_task("kv", request, on_progress, cancelled)
        folder.keep_json(path, cached)
    return msgspec.convert(cached, learned(tuple[KvCacheLoss, ...]))


def with_damage(options: tuple[KvOption, ...], losses: tuple[KvCacheLoss, ...], n_ctx: int) -> tuple[KvOption, ...]:
    """Options whose KL divergence is replaced by the sum of the measured values of K and V."""
    cost = {(d.side, d.qtype): d.at(n_ctx) for d in losses} | {("k", _FLOAT): 0.0, ("v", _FLOAT): 0.0}
    return tuple(
        msgspec.structs.replace(o, damage=cost["k", o.type_k] + cost["v", o.type_v])
        if ("k", o.type_k) in cost and ("v", o.type_v) in cost
        else o
        for o in options
    )


def measure_kv(request: KvRequest, send: Step) -> tuple[KvCacheLoss, ...]:
    """The child process's part of `kv_damage`."""
    measure = request.measure
    sides = [(side, qtype) for qtype in request.types if qtype != _FLOAT for side in ("k", "v")]
    with ReferenceModel(
        measure.source, window=_SHORTEST, threads=measure.threads, gpu_layers=measure.gpu_layers, max_contexts=1
    ) as model:
        window = _longest(model, request)
        count = max(1, min(_WINDOWS, _WINDOWS * USUAL // window))
        windows = read_windows(
            model, measure.calibration, count * window, window, spread=True, cache_dir=measure.cache_dir
        )
        keep = np.zeros(window, np.bool_)
        keep[min(window, USUAL) // 8 :: _KEEP_EVERY * max(1, window // USUAL)] = True
        at = np.flatnonzero(keep)
        edges = [c for c in (256, 512, 1024, 2048, 4096) if at[0] < c < window] + [window]

        def evaluated(types: tuple[str, str]) -> list[np.ndarray]:
            with _open_context(model, window, measure.threads, types) as context:
                return [context.run(w[None], keep)[0] for w in windows]

        reference = [log_softmax(x) for x in evaluated((_FLOAT, _FLOAT))]
        losses = []
        for index, (side, qtype) in enumerate(sides):
            send(index + 1, len(sides) + 1, f"{side} {qtype}")
            types = (qtype, _FLOAT) if side == "k" else (_FLOAT, qtype)
            kld = np.stack([kld_from(r, x) for r, x in zip(reference, evaluated(types), strict=True)])
            starts = [0, *edges[:-1]]
            means = tuple(float(kld[:, (at >= a) & (at < b)].mean()) for a, b in zip(starts, edges, strict=True))
            losses.append(KvCacheLoss(side=side, qtype=qtype, contexts=tuple(edges), kld=means))
    send(1, 1, "")
    return tuple(losses)


def _longest(model: ReferenceModel, request: KvRequest) -> int:
    """The longest window, up to the requested length, that the model and the text allow."""
    window = max(_SHORTEST, min(request.longest, model.trained_context))
    while window > _SHORTEST:
        try:
            read_windows(model, request.measure.calibration, window, window, cache_dir=request.measure.cache_dir)
        except TextTooShort:
            window //= 2
        else:
            return window
    return window


@contextmanager
def _open_context(
    model: ReferenceModel, window: int, threads: int, kv_types: tuple[str, str]
) -> Iterator[EvalContext]:
    context = model.open_context(window=window, threads=threads, kv_types=kv_types)
    try:
        yield context
    finally:
        context.close()
