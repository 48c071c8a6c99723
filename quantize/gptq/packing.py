"""Writes integer codes into the blocks of GGUF types and keeps ggml's scales.

Layouts. Source: ggml-common.h (structures) and ggml-quants.c (dequantize_row_*), at the pinned commit.
"""

from collections.abc import Callable

import msgspec
import numpy as np
import numpy.typing as npt

from quantize.ggml_types import GgmlType

Bytes = npt.NDArray[np.uint8]


# The values of the sixteen codes. Source: ggml-common.h, kvalues_iq4nl and kvalues_mxfp4 (E2M1, doubled).
IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
FP4_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def _nibbles_halves(codes: Bytes) -> Bytes:
    """(n, groups, 2, half) codes: the first half in the low nibbles, the second in the high ones."""
    packed: Bytes = codes[:, :, 0] | (codes[:, :, 1] << np.uint8(4))
    return packed


def _q4_k(block: Bytes, codes: Bytes) -> None:
    block[:, 16:] = _nibbles_halves(codes.reshape(-1, 4, 2, 32)).reshape(-1, 128)


def _q5_k(block: Bytes, codes: Bytes) -> None:
    parts = codes.reshape(-1, 4, 2, 32)
    block[:, 48:] = _nibbles_halves(parts & np.uint8(15)).reshape(-1, 128)
    # Bit 2j + s of byte l is the fifth bit of weight l of half s of group j.
    shifts = np.arange(8, dtype=np.uint8).reshape(1, 4, 2, 1)
    block[:, 16:48] = ((parts >> 4) << shifts).sum(axis=(1, 2), dtype=np.uint8)


def _q6_k(block: Bytes, codes: Bytes) -> None:
    parts = codes.reshape(-1, 2, 4, 32)
    low, high = parts & 15, parts >> 4
    block[:, :128] = np.stack([low[:, :, 0] | (low[:, :, 2] << 4), low[:, :, 1] | (low[:, :, 3] << 4)], 2).reshape(
        -1, 128
    )
    shifts = np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
    block[:, 128:192] = (high << shifts).sum(axis=2, dtype=np.uint8).reshape(-1, 64)


def _two_bits(codes: Bytes) -> Bytes:
    shifts = np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
    packed: Bytes = ((codes.reshape(-1, 2, 4, 32) & 3) << shifts).sum(axis=2, dtype=np.uint8).reshape(-1, 64)
    return packed


def _q3_k(block: Bytes, codes: Bytes) -> None:
    block[:, 32:96] = _two_bits(codes)
    shifts = np.arange(8, dtype=np.uint8).reshape(1, 8, 1)
    block[:, :32] = ((codes.reshape(-1, 8, 32) >> 2) << shifts).sum(axis=1, dtype=np.uint8)


def _q2_k(block: Bytes, codes: Bytes) -> None:
    block[:, 16:80] = _two_bits(codes)


def _iq4_xs(block: Bytes, codes: Bytes) -> None:
    block[:, 8:] = _nibbles_halves(codes.reshape(-1, 8, 2, 16)).reshape(-1, 128)


def _nibbles_32(block: Bytes, codes: Bytes) -> None:
    block[:, -16:] = _nibbles_halves(codes.reshape(-1, 1, 2, 16)).reshape(-1, 16)


def _five_bits_32(block: Bytes, codes: Bytes) -> None:
    _nibbles_32(block, codes & np.uint8(15))
    # Bit l of a little-endian 32-bit word is the fifth bit of weight l.
    block[:, -20:-16] = np.packbits(codes >> 4, axis=1, bitorder="little")


def _nvfp4(block: Bytes, codes: Bytes) -> None:
    block[:, 4:] = _nibbles_halves(codes.reshape(-1, 4, 2, 8)).reshape(-1, 32)


def _q8_0(block: Bytes, codes: Bytes) -> None:
    # Codes 0..254 represent -127..127: ggml never writes -128.
    block[:, 2:] = codes - np.uint8(127)


class Layout(msgspec.Struct, frozen=True):
    """The storage format of an integer type: `levels` codes from 0.

    `nonlinear` types look up their values in `table`. `scales` are the offsets of a block's scales if each one is a
    separate F16 for 32 weights.
    """

    qtype: str
    levels: int
    write: Callable[[Bytes, Bytes], None]
    nonlinear: bool = False
    table: tuple[int, ...] = IQ4_VALUES
    origin: int = 0  # the first of two neighbouring codes that determine value = v0 + step * code
    scales: tuple[int, ...] = ()

    @property
    def block_values(self) -> int:
        return GgmlType[self.qtype].traits.block_values

    @property
    def block_bytes(self) -> int:
        return GgmlType[self.qtype].traits.block_bytes


LAYOUTS: dict[str, Layout] = {
    layout.qtype: layout
    for layout in (
        Layout("Q2_K", 4, _q2_k),
        Layout("Q3_K", 8, _q3_k),
        Layout("Q4_K", 16, _q4_k),
        Layout("Q5_K", 32, _q5_k),
        Layout("Q6_K", 64, _q6_k),
        Layout("Q8_0", 255, _q8_0, origin=127, scales=(0,)),
        Layout("Q4_0", 16, _nibbles_32, origin=8, scales=(0,)),
        Layout("Q4_1", 16, _nibbles_32, scales=(0, 2)),
        Layout("Q5_0", 32, _five_bits_32, origin=16, scales=(0,)),
        Layout("Q5_1", 32, _five_bits_32, scales=(0, 2)),
        Layout("IQ4_XS", 16, _iq4_xs, nonlinear=True),
        Layout("IQ4_NL", 16, _nibbles_32, nonlinear=True, scales=(0,)),
        Layout("MXFP4", 16, _nibbles_32, nonlinear=True, table=FP4_VALUES),
        Layout("NVFP4", 16, _nvfp4, nonlinear=True, table=FP4_VALUES),
    )
}


def pack(base: Bytes, qtype: str, codes: Bytes) -> Bytes:
    """Packed rows with the scales of `base` and the integers of `codes`.

    Args: base: (rows, row_bytes) as ggml packed them. codes: (rows, row_values) uint8 below the type's levels.
    Returns: a new (rows, row_bytes).
    Raises: KeyError: the type has no such layout (it does not store one integer per weight). ValueError: shapes.
    """
    layout = LAYOUTS[qtype]
    rows, width = codes.shape
    if base.shape != (rows, width // layout.block_values * layout.block_bytes) or width % layout.block_values:
        raise ValueError(f"{base.shape} bytes and {codes.shape} codes do not belong together in {qtype}")
    blocks = base.reshape(-1, layout.block_bytes).copy()
    layout.write(blocks, np.ascontiguousarray(codes, np.uint8).reshape(-1, layout.block_values))
    return blocks.reshape(rows, -1)
