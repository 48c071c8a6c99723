"""Types whose blocks store codebook entries and signs: writes both and keeps all scales.

Eight weights have eight signs, and one codebook entry of eight values or two of four. Layouts. Source:
ggml-common.h (structures) and ggml-quants.c (dequantize_row_iq*), at the pinned commit.
"""

from collections.abc import Callable
from functools import cache

import msgspec
import numpy as np
import numpy.typing as npt

from quantize.ggml_types import GgmlType
from quantize.gptq.packing import Bytes
from quantize.native.blocks import dequantize_rows

Floats = npt.NDArray[np.float32]
Points = npt.NDArray[np.uint16]

OCTET = 8  # weights with eight signs together
_BLOCK = 256


def _low_bytes(points: Points) -> Bytes:
    return (points & 255).astype(np.uint8)


def _signs_of_seven(old: Bytes, signs: Bytes) -> Bytes:
    """Words with four groups of seven signs; the eighth sign makes the number of minus signs even.

    The top four bits stay unchanged.
    """
    words = np.ascontiguousarray(old).view("<u4").reshape(-1, 8) & np.uint32(0xF0000000)
    for index in range(4):
        words |= (signs.reshape(-1, 8, 4)[:, :, index] & 127).astype(np.uint32) << np.uint32(7 * index)
    return words.astype("<u4").view(np.uint8).reshape(len(old), -1)


def _iq2_xxs(block: Bytes, points: Points, signs: Bytes) -> None:
    eights = block[:, 2:].reshape(-1, 8, 8)
    words = _signs_of_seven(eights[:, :, 4:].reshape(-1, 32), signs)
    block[:, 2:] = np.concatenate([points.astype(np.uint8).reshape(-1, 8, 4), words.reshape(-1, 8, 4)], 2).reshape(
        -1, 64
    )


def _iq2_xs(block: Bytes, points: Points, signs: Bytes) -> None:
    codes = points | ((signs & 127).astype(np.uint16) << np.uint16(9))
    block[:, 2:66] = codes.astype("<u2").view(np.uint8)


def _iq2_s(block: Bytes, points: Points, signs: Bytes) -> None:
    block[:, 2:34] = _low_bytes(points)
    block[:, 34:66] = signs
    shifts = np.array([0, 2, 4, 6], np.uint16)
    block[:, 66:74] = ((points >> 8).reshape(-1, 8, 4) << shifts).sum(axis=2)


def _iq3_xxs(block: Bytes, points: Points, signs: Bytes) -> None:
    block[:, 2:66] = points
    block[:, 66:] = _signs_of_seven(block[:, 66:], signs)


def _iq3_s(block: Bytes, points: Points, signs: Bytes) -> None:
    block[:, 2:66] = _low_bytes(points)
    block[:, 66:74] = np.packbits((points >> 8).astype(np.uint8), axis=1, bitorder="little")
    block[:, 74:106] = signs


class Codebook(msgspec.Struct, frozen=True):
    """The storage format of a codebook type: `points` codebook entries of `dims` values.

    With `even`, the number of minus signs in every eight is even. `first_step` and `stride` locate the 4-bit
    factors that multiply a block's single scale. Each factor covers `step_values` weights. It is in the high half
    of a byte; with stride 0 each byte holds two.
    """

    qtype: str
    points: int
    dims: int
    even: bool
    write: Callable[[Bytes, Points, Bytes], None]
    first_step: int
    stride: int
    step_values: int

    @property
    def block_bytes(self) -> int:
        return GgmlType[self.qtype].traits.block_bytes

    def step_offsets(self) -> list[tuple[int, int]]:
        """Byte and shift of each factor of a block, in the order of its weights."""
        count = _BLOCK // self.step_values
        if self.stride:
            return [(self.first_step + self.stride * i, 4) for i in range(count)]
        return [(self.first_step + i // 2, 4 * (i % 2)) for i in range(count)]


LATTICES: dict[str, Codebook] = {
    lattice.qtype: lattice
    for lattice in (
        Codebook("IQ2_XXS", 256, 8, True, _iq2_xxs, 9, 8, 32),
        Codebook("IQ2_XS", 512, 8, True, _iq2_xs, 66, 0, 16),
        Codebook("IQ2_S", 1024, 8, False, _iq2_s, 74, 0, 16),
        Codebook("IQ3_XXS", 256, 4, True, _iq3_xxs, 69, 4, 32),
        Codebook("IQ3_S", 512, 4, False, _iq3_s, 106, 0, 32),
    )
}


def pack_points(base: Bytes, qtype: str, points: Points, signs: Bytes) -> Bytes:
    """Packed rows with the scales of `base`, and the given codebook entries and signs.

    Args: base: (rows, row_bytes). points: (rows, row_values / dims). signs: (rows, row_values / 8), one bit per
    weight, lowest bit first; a set bit means minus.
    Returns: a new (rows, row_bytes).
    Raises: ValueError: wrong shapes, or an odd number of minus signs in a type that does not allow it.
    """
    lattice = LATTICES[qtype]
    rows, octets = signs.shape
    blocks = octets * OCTET // _BLOCK
    fits = base.shape == (rows, blocks * lattice.block_bytes) and octets * OCTET % _BLOCK == 0
    if not fits or points.shape != (rows, octets * OCTET // lattice.dims):
        raise ValueError(f"{base.shape} bytes, {points.shape} points and {signs.shape} signs in {qtype}")
    if lattice.even and (_ODD[signs]).any():
        raise ValueError(f"{qtype} has an even number of minus signs in every eight weights")
    out = base.reshape(-1, lattice.block_bytes).copy()
    lattice.write(
        out,
        np.ascontiguousarray(points).reshape(-1, _BLOCK // lattice.dims),
        np.ascontiguousarray(signs).reshape(-1, _BLOCK // OCTET),
    )
    return out.reshape(rows, -1)


@cache
def table(qtype: str) -> Floats:
    """The values of each codebook entry, (points, dims), in a block with scale 1 and all factors 0."""
    lattice = LATTICES[qtype]
    per_block = _BLOCK // lattice.dims
    blocks = -(-lattice.points // per_block)
    base = np.zeros((blocks, lattice.block_bytes), np.uint8)
    base[:, :2] = np.array([1], np.float16).view(np.uint8)
    points = np.arange(blocks * per_block).reshape(blocks, per_block) % lattice.points
    packed = pack_points(base, qtype, points.astype(np.uint16), np.zeros((blocks, _BLOCK // OCTET), np.uint8))
    values: Floats = dequantize_rows(packed, qtype, _BLOCK).reshape(-1, lattice.dims)[: lattice.points]
    return values


# Whether a byte has an odd number of set bits.
_ODD = np.array([byte.bit_count() % 2 for byte in range(256)], bool)
