"""Converts packed GGUF weights to ONNX Runtime's formats: exact, or re-quantized to 8 bits with a notice."""

from collections.abc import Callable
from typing import Any

import gguf
import msgspec
import numpy as np
import numpy.typing as npt

from quantize.errors import BadFile
from quantize.ggml_types import GgmlType

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
# Values per scale in Q4_0, Q8_0 and in re-quantized weights.
BLOCK_VALUES = 32
# Types whose values float32 represents exactly.
PLAIN = ("F32", "F16", "BF16")


class BlockWeights(msgspec.Struct, frozen=True):
    """A matrix of shape (rows, row_values) in blocks of 32 or 16 values, in the format of `MatMulNBits`.

    `packed` is (rows, blocks, block_values * bits / 8) uint8, low nibble first; `scales` (rows, blocks) float32. A
    value is scale * (code - zero), where zero is 8 for four bits and 128 for eight.
    """

    bits: int
    packed: Bytes
    scales: Floats

    @property
    def zero(self) -> int:
        """The code for the value 0."""
        return 1 << (self.bits - 1)

    @property
    def block_values(self) -> int:
        return int(self.packed.shape[2]) * 8 // self.bits

    def values(self) -> Floats:
        """The weights as (rows, row_values) float32."""
        codes = self.packed
        if self.bits == 4:
            codes = np.stack((codes & 15, codes >> 4), axis=-1).reshape(*codes.shape[:2], self.block_values)
        centred = codes.astype(np.float32) - np.float32(self.zero)
        result: Floats = (centred * self.scales[..., None]).reshape(len(codes), -1)
        return result


def is_exact(qtype: str) -> bool:
    """Whether `blocks` or `plain` represent every value of this GGML type exactly."""
    return qtype in PLAIN or qtype in _UNPACKERS


def plain(raw: Bytes, qtype: str, shape: tuple[int, ...], name: str) -> npt.NDArray[Any]:
    """Dequantized values: float16 for F16, else float32.

    Raises: BadFile: a value is not finite.
    """
    kind = np.float16 if qtype == "F16" else np.float32
    values = raw.view(kind) if qtype in {"F16", "F32"} else dequantized(raw, qtype, shape[-1])
    _require_finite(values, name)
    return values.reshape(shape)


def blocks(raw: Bytes, qtype: str, rows: int, row_values: int, name: str) -> BlockWeights:
    """A block-quantized matrix. Types other than Q4_0, Q8_0 and Q6_K are re-quantized to 8 bits.

    Raises: BadFile: a scale or a value is not finite, or a row is not a whole number of blocks.
    """
    if row_values % BLOCK_VALUES:
        raise BadFile(name, f"rows of {row_values} values are not a multiple of {BLOCK_VALUES}")
    if qtype in _UNPACKERS:
        return _UNPACKERS[qtype](raw.reshape(rows, -1, GgmlType[qtype].traits.block_bytes), name)
    values = dequantized(raw, qtype, row_values).reshape(rows, row_values)
    _require_finite(values, name)
    return requantized(values)


def _eight_bits(cells: Bytes, name: str) -> BlockWeights:
    """Unpack Q8_0 blocks; `cells` has the shape (rows, blocks, 34)."""
    packed = cells[..., 2:] ^ np.uint8(0x80)  # two's complement to offset binary
    return BlockWeights(8, packed, _scales(cells, name))


def _four_bits(cells: Bytes, name: str) -> BlockWeights:
    """Q4_0: `cells` (rows, blocks, 18)."""
    low, high = cells[..., 2:] & 15, cells[..., 2:] >> 4  # values 0..15 and 16..31 of the block
    ordered = np.concatenate((low, high), axis=-1)
    packed = ordered[..., 0::2] | (ordered[..., 1::2] << 4)
    return BlockWeights(4, packed, _scales(cells, name))


def _six_bits(cells: Bytes, name: str) -> BlockWeights:
    """Q6_K as 8 bits in blocks of 16: float32 represents the product of both scales exactly.

    `cells` (rows, super-blocks, 210). Source: ggml-quants.c, dequantize_row_q6_K.
    """
    rows, per_row, _ = cells.shape
    low = cells[..., :128].reshape(rows, per_row, 2, 2, 32)  # (half, first or second 32 bytes, byte)
    high = cells[..., 128:192].reshape(rows, per_row, 2, 1, 32)
    parts = [(low & 15) | (((high >> np.array([[0], [2]], np.uint8)) & 3) << 4)]
    parts.append((low >> 4) | (((high >> np.array([[4], [6]], np.uint8)) & 3) << 4))
    codes = np.concatenate(parts, axis=3).reshape(rows, per_row * 16, 16) + np.uint8(128 - 32)
    steps = cells[..., 192:208].view(np.int8).astype(np.float32)
    scale = np.ascontiguousarray(cells[..., 208:210]).view(np.float16).astype(np.float32)
    scales = (steps * scale).reshape(rows, per_row * 16)
    _require_finite(scales, name)
    return BlockWeights(8, np.ascontiguousarray(codes), scales)


# Exact conversions; the other types are dequantized and rounded to 8 bits.
_UNPACKERS: dict[str, Callable[[Bytes, str], BlockWeights]] = {
    "Q8_0": _eight_bits,
    "Q4_0": _four_bits,
    "Q6_K": _six_bits,
}


def requantized(values: Floats) -> BlockWeights:
    """Float weights (rows, row_values) as 8-bit blocks; the error is at most half a step, max/254."""
    cells = values.reshape(len(values), -1, BLOCK_VALUES)
    scales = np.abs(cells).max(axis=-1) / np.float32(127)
    inverse = np.divide(1, scales, out=np.zeros_like(scales), where=scales > 0)
    codes = np.rint(cells * inverse[..., None]).clip(-127, 127)
    return BlockWeights(8, (codes + 128).astype(np.uint8), scales)


def dequantized(raw: Bytes, qtype: str, row_values: int) -> Floats:
    """Values of any GGML type as (rows, row_values) float32.

    Raises: BadFile: gguf cannot dequantize this type.
    """
    kind = gguf.GGMLQuantizationType[qtype]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    try:
        values = gguf.quants.dequantize(raw.reshape(-1, row_values // block * size), kind)
    except NotImplementedError as error:
        supported = ", ".join(_UNPACKERS)
        raise BadFile("weights", f"{qtype} cannot be converted to ONNX; use a {supported} or F16 file") from error
    return np.ascontiguousarray(values, np.float32)


def _scales(cells: Bytes, name: str) -> Floats:
    scales = np.ascontiguousarray(cells[..., :2]).view(np.float16)[..., 0].astype(np.float32)
    _require_finite(scales, name)
    return scales


def _require_finite(values: npt.NDArray[Any], name: str) -> None:
    if not np.isfinite(values).all():
        raise BadFile(name, "it contains infinite values or NaN")
