"""SmoothQuant: scales down channels with huge values and scales up their weights, by powers of two.

llama.cpp rounds the inputs of quantized products to 8 bits, in blocks of values with a shared step. One huge
channel makes its neighbours inaccurate. The method and the meaning of strength follow SmoothQuant (arXiv
2211.10438). The model's function stays the same, because scaling by a power of two is exact.
"""

from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from devices.msgspec_lock import learned
from quantize.files.channel_scales import KEY, ChannelScales, read_channel_scales
from quantize.files.gguf_write import GgufWriter, TensorSlot, copied_metadata, scalar
from quantize.files.measurement_folder import WorkFolder, read_json
from quantize.ggml_types import FLOAT_TYPES, SCALES_JUDGE, GgmlType
from quantize.measure.hessians import largest
from quantize.measure.kl_divergence import kld_from, log_softmax
from quantize.measurements import MeasureRequest, Step
from quantize.native.blocks import dequantize_rows, quantize_rows
from quantize.native.calibration import WINDOW, read_windows
from quantize.native.encode import copied
from quantize.native.eval_context import EvalContext, Tokens
from quantize.native.graph import GgmlTensor, Tap, read_floats, tensor_at
from quantize.native.reference import ReferenceModel
from quantize.native.scale_points import ScalePoint, SeamTap
from quantize.native.source_weights import SourceWeights, quantizable

Floats = npt.NDArray[np.float32]
_TOKENS = 4096  # tokens for measuring the channels. Measured: log-archive.md, "Smoothing"
_PEAK_STEP = 3  # every third window, of both kinds of special tokens, shows the largest values accurately enough
# Fraction of the difference between channels that moves into the weights. Measured: log-archive.md, "Smoothing".
_STRENGTHS = (0.0, 0.125, 0.25, 0.375, 0.5)
_BLOCK = 32  # values with a shared step. Source: ggml-common.h, block_q8_0
_STEPS = 127
_JUDGE = SCALES_JUDGE.name
# Share of the error of _JUDGE that remains after GPTQ. Source: docs/dev/quantization.md, "GPTQ rounding"
_LEFT_FRACTION = 0.37
_ROWS = 128
_LEAST = 1e-3  # minimum size of a channel, relative to the mean channel
# Allowed KL divergence in nats per token, from F16 weights that become so small that they lose digits.
_MOST_KLD = 1e-5
_CHECKED = 128


class SmoothRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Write the model of `measure` to `out` with smoothed inputs.

    The tensors of `unchanged` already lie on a grid, which scaled columns would leave.
    """

    measure: MeasureRequest
    out: Path
    unchanged: tuple[str, ...] = ()


class Smoothed(msgspec.Struct, frozen=True, kw_only=True):
    """Result of smoothing: `changed` of `seams` possible inputs are smoothed. If `changed` is 0, there is no file.

    `scales` are the channel scales as stored in the file; `kld` is the KL divergence from the source, in nats per
    token.
    """

    changed: int
    seams: int
    scales: str = ""
    kld: float = 0.0

    def channel_scales(self) -> ChannelScales:
        """The channel scales, as exponents of 2 by weight."""
        return read_channel_scales(self.scales) or ChannelScales(columns={}, rows={})


class _Channels(Tap):
    """One window's sums of squares of some weights' inputs, and of each block's largest value after scaling."""

    def __init__(self, scales: dict[str, list[Floats]], widths: dict[str, int]) -> None:
        self.squares = {name: np.zeros(width) for name, width in widths.items()}
        self.peaks = {name: [np.zeros(widths[name] // _BLOCK) for _ in some] for name, some in scales.items()}
        self.tokens = 0
        self._scales = scales
        self._first = next(iter(widths), "")
        self._left = set(widths)

    def wants(self, weight: str, node: GgmlTensor) -> bool:
        """Return True for the first tensor that reads each scale point."""
        del node
        return weight in self.squares

    def takes(self, address: int, node: GgmlTensor) -> bool:
        """End a window's graph after the last of them; the rest, including the head's product, is not needed."""
        return super().takes(address, node) and bool(self._left)

    def take(self, weight: str, node: GgmlTensor) -> None:
        """Add the window's inputs."""
        self._left.discard(weight)
        values = read_floats(tensor_at(node.src[1]))
        rows = values.reshape(-1, values.shape[-1])
        self.tokens += len(rows) if weight == self._first else 0
        self.squares[weight] += np.einsum("tk,tk->k", rows, rows, dtype=np.float64)
        for at, scale in enumerate(self._scales.get(weight, ())):
            highest = largest(np.abs(rows / scale), _BLOCK)
            self.peaks[weight][at] += np.einsum("tb,tb->b", highest, highest, dtype=np.float64)

    def add(self, other: "_Channels") -> None:
        """Add another window's sums."""
        self.tokens += other.tokens
        for weight, squares in other.squares.items():
            self.squares[weight] += squares
        for weight, peaks in other.peaks.items():
            for sums, more in zip(self.peaks[weight], peaks, strict=True):
                np.add(sums, more, out=sums)


def smooth(request: SmoothRequest, send: Step) -> Smoothed:
    """Write the file; the scales are determined once per source and text.

    Raises: TextTooShort, Unreadable. SourceChanged, DiskFull. OSError: writing failed.
    """
    folder = WorkFolder.open(request.measure)
    cache_file = folder.path / f"smoothing{'-grids' if request.unchanged else ''}.json"
    before = read_json(cache_file)
    if before is None:
        smoothed = _smooth(request, send)
        folder.keep_json(cache_file, smoothed)
        return smoothed
    smoothed = msgspec.convert(before, learned(Smoothed))
    if smoothed.changed:
        _write(SourceWeights(request.measure.source), request.out, smoothed)
    return smoothed


def _smooth(request: SmoothRequest, send: Step) -> Smoothed:
    """Find the scale points, choose the scales, write the file and check that its predictions are unchanged."""
    measure = request.measure
    source = SourceWeights(measure.source)
    with ReferenceModel(
        measure.source, window=WINDOW, threads=measure.threads, gpu_layers=measure.gpu_layers
    ) as model:
        windows = read_windows(model, measure.calibration, _TOKENS, spread=True, cache_dir=measure.cache_dir)
        tap = SeamTap()
        model.run(windows[:1, :32], np.ones(32, np.bool_), tap)
        seams = [s for s in tap.seams() if s.width % _BLOCK == 0 and _can_change(source, s, request.unchanged)]
        if not seams:
            return Smoothed(changed=0, seams=len(seams))
        widths = {s.readers[0]: s.width for s in seams}
        total = len(windows) + len(windows[::_PEAK_STEP]) + 2.0

        def watched(windows: npt.NDArray[np.int32], scales: dict[str, list[Floats]], first: int) -> _Channels:
            def watch(context: EvalContext, _: int, window: Tokens) -> _Channels:
                channels = _Channels(scales, widths)
                context.run(window[None], np.ones(WINDOW, np.bool_), channels, drop_logits=True)
                return channels

            sums = _Channels(scales, widths)
            for index, channels in enumerate(model.side_by_side(list(windows), watch), first):
                send(index, total, "")
                sums.add(channels)
            return sums

        seen = watched(windows, {}, 0)
        squares = {name: sums / max(1, seen.tokens) for name, sums in seen.squares.items()}
        tried = {n: [_scale(s, strength) for strength in _STRENGTHS] for n, s in squares.items()}
        seen = watched(windows[::_PEAK_STEP], tried, len(windows))

        def best(seam: ScalePoint) -> Floats:
            name = seam.readers[0]
            peaks = [p / max(1, seen.tokens) for p in seen.peaks[name]]
            return _best(source, seam, squares[name], tried[name], peaks)

        with ThreadPoolExecutor(max_workers=measure.threads) as pool:
            by_point = zip(seams, pool.map(best, seams), strict=True)
            chosen = {seam.readers[0]: scale for seam, scale in by_point if scale.max() != scale.min()}
        before = log_softmax(_answers(model, windows[0]))
    # A gate that is not proportional to both of its inputs shows only in the predictions.
    norms = [s for s in seams if len(source.info(s.maker).shape) == 1]
    for some in (seams, norms):
        changed = {s.readers[0]: chosen[s.readers[0]] for s in some if s.readers[0] in chosen}
        if not changed:
            break
        send(total - 2, total, "")
        request.out.unlink(missing_ok=True)
        smoothed = Smoothed(changed=len(changed), seams=len(seams), scales=_scales(some, changed).encode())
        _write(source, request.out, smoothed)
        with ReferenceModel(request.out, window=WINDOW, threads=measure.threads, max_contexts=1) as model:
            away = float(kld_from(before, _answers(model, windows[0])).mean())
        if away <= _MOST_KLD:
            send(total, total, "")
            return msgspec.structs.replace(smoothed, kld=away)
    request.out.unlink(missing_ok=True)
    return Smoothed(changed=0, seams=len(seams))


def _answers(model: ReferenceModel, window: npt.NDArray[np.int32]) -> Floats:
    logits: Floats = model.run(window[None, :_CHECKED], np.ones(_CHECKED, np.bool_))[0]
    return logits


def _exponents(scale: Floats) -> tuple[int, ...]:
    return tuple(np.log2(scale).astype(int).tolist())


def _can_change(source: SourceWeights, seam: ScalePoint, unchanged: Collection[str]) -> bool:
    names = (seam.maker, *seam.readers)
    if any(n in unchanged or n not in source.names or source.info(n).ggml_type not in FLOAT_TYPES for n in names):
        return False
    maker = source.info(seam.maker).shape
    return maker[-1] == seam.width and len(maker) <= 2


def _scale(squares: npt.NDArray[np.float64], strength: float) -> Floats:
    """Divisors of the channels, as powers of two around 1."""
    sizes = np.sqrt(squares)
    logs = np.log2(np.maximum(sizes, max(_LEAST * sizes.mean(), np.finfo(np.float64).tiny)))
    scale: Floats = np.exp2(np.round(strength * (logs - logs.mean()))).astype(np.float32)
    return scale


def _best(
    source: SourceWeights,
    seam: ScalePoint,
    squares: npt.NDArray[np.float64],
    scales: Sequence[Floats],
    peaks: Sequence[npt.NDArray[np.float64]],
) -> Floats:
    """The scales with the least output error from rounding weights and inputs."""
    costs = np.zeros(len(scales))
    for name in (n for n in seam.readers if quantizable(source, n)):
        matrices, rows, width = source.shape(name)
        picked = np.unique(np.linspace(0, rows - 1, _ROWS).round().astype(np.intp))
        weights = source.rows(name, matrices // 2, picked)
        power = float(np.einsum("rk,rk,k->", weights, weights, squares))
        for at, (scale, highest) in enumerate(zip(scales, peaks, strict=True)):
            larger = np.ascontiguousarray(weights * scale)
            importance = (squares / scale**2).astype(np.float32)
            off = dequantize_rows(quantize_rows(larger, _JUDGE, importance), _JUDGE, width) - larger
            rounded = _LEFT_FRACTION * float(np.einsum("rk,rk,k->", off, off, importance))
            blocks = np.einsum("rk,rk->k", larger, larger, dtype=np.float64).reshape(-1, _BLOCK).sum(axis=1)
            costs[at] += (rounded + float(blocks @ highest) / (12 * _STEPS**2)) / max(power, 1e-30)
    return scales[int(costs.argmin())]


def _scales(seams: Sequence[ScalePoint], chosen: dict[str, Floats]) -> ChannelScales:
    """Multiply the columns of all readers and divide the rows of the maker."""
    some = [(seam, _exponents(chosen[seam.readers[0]])) for seam in seams if seam.readers[0] in chosen]
    return ChannelScales.of(
        {name: powers for seam, powers in some for name in seam.readers},
        {seam.maker: powers for seam, powers in some},
    )


def _write(source: SourceWeights, out: Path, smoothed: Smoothed) -> None:
    tensors, scales = source.model.tensors(), smoothed.channel_scales()
    slots = [TensorSlot(t.name, t.shape, t.ggml_type) for _, t in tensors]
    metadata = {**copied_metadata(source.model.parts[0]), KEY: scalar(smoothed.scales)}
    writer = GgufWriter(out, metadata, slots)
    try:
        for part, tensor in tensors:
            larger, smaller = (_factors(some.get(tensor.name)) for some in (scales.columns, scales.rows))
            if larger is None and smaller is None:
                writer.write(tensor.name, copied(part, tensor))
            else:
                writer.write(tensor.name, _scaled(source, tensor.name, larger, smaller))
        writer.close()
    except BaseException:
        writer.abandon()
        raise


def _factors(exponents: bytes | None) -> Floats | None:
    return None if exponents is None else np.exp2(np.frombuffer(exponents, np.int8).astype(np.float32))


def _scaled(
    source: SourceWeights, name: str, larger: Floats | None, smaller: Floats | None
) -> Iterator[npt.NDArray[Any]]:
    """The tensor with columns multiplied by `larger` and rows (of a vector: values) divided by `smaller`."""
    matrices, _, width = source.shape(name)
    qtype = source.info(name).ggml_type
    vector = len(source.info(name).shape) == 1
    for matrix in range(matrices):
        values = source.rows(name, matrix)
        if larger is not None:
            values = values * larger
        if smaller is not None:
            values = values / (smaller if vector else smaller[:, None])
        yield _stored(np.ascontiguousarray(values.reshape(-1, width)), qtype)


def _stored(values: Floats, qtype: GgmlType) -> npt.NDArray[Any]:
    """Values times powers of two, as a file holds them; only F16 has too few exponents for some."""
    if qtype is GgmlType.BF16:
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(np.float16 if qtype is GgmlType.F16 else np.float32)
