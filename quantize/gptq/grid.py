"""The values that packed rows can take once their scales are fixed, and rounding onto them."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quantize.gptq.packing import LAYOUTS, Bytes, pack
from quantize.native.blocks import dequantize_rows

Floats = npt.NDArray[np.float32]

# The sixteen values of IQ4 codes. Source: ggml-common.h, kvalues_iq4nl.
_IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
_IQ4_UNIT = 8  # the code whose value is 1, so that it shows a block's scale
_LUT_FINE = 4  # steps of the lookup table for each unit of an IQ4 value
_LUT_HALF = 128 * _LUT_FINE


def _nearest_iq4() -> Floats:
    position = np.arange(-_LUT_HALF, _LUT_HALF + 1, dtype=np.float32) / _LUT_FINE
    nearest: Floats = _IQ4_VALUES[np.abs(position[:, None] - _IQ4_VALUES).argmin(axis=1)]
    return nearest


_IQ4_LUT = _nearest_iq4()


@dataclass(frozen=True, slots=True)
class Grid:
    """Fixed grids of several rows, one column of the matrix at a time.

    Arrays are (row_values, rows), columns of the weight matrix first, in the order they will be rounded. Rows up to
    `num_linear` can be `origin + step * code` with codes 0..`levels`-1; the rest `step * table[code]`.
    """

    origin: Floats  # (row_values, num_linear)
    step: Floats  # (row_values, rows)
    inverse: Floats  # 1 / step, 0 where the step is 0; for IQ4 rows in units of the lookup table
    top: Floats  # (num_linear,) highest code
    num_linear: int

    def nearest(self, column: int, wanted: Floats, out: Floats, work: Floats) -> None:
        """The grid values of one column nearest to `wanted`, into `out`; all (rows,). `work` is scratch."""
        n = self.num_linear
        if n:
            w = work[:n]
            np.subtract(wanted[:n], self.origin[column], out=w)
            np.multiply(w, self.inverse[column, :n], out=w)
            np.rint(w, out=w)
            np.maximum(w, 0.0, out=w)
            np.minimum(w, self.top, out=w)
            np.multiply(w, self.step[column, :n], out=w)
            np.add(w, self.origin[column], out=out[:n])
        if n < len(out):
            w = work[n:]
            np.multiply(wanted[n:], self.inverse[column, n:], out=w)
            np.add(w, _LUT_HALF + 0.5, out=w)
            np.maximum(w, 0.0, out=w)
            np.minimum(w, 2.0 * _LUT_HALF, out=w)
            np.take(_IQ4_LUT, w.astype(np.int32), out=w, mode="clip")
            np.multiply(w, self.step[column, n:], out=out[n:])

    def picked(self, rows: npt.NDArray[np.intp]) -> "Grid":
        """The grids of some rows, given in rising order."""
        linear = rows[rows < self.num_linear]
        return Grid(
            origin=np.ascontiguousarray(self.origin[:, linear]),
            step=np.ascontiguousarray(self.step[:, rows]),
            inverse=np.ascontiguousarray(self.inverse[:, rows]),
            top=self.top[linear],
            num_linear=len(linear),
        )

    def codes(self, values: Floats) -> Bytes:
        """Codes of grid values (row_values, rows), as uint8 of the same shape."""
        n = self.num_linear
        out = np.empty(values.shape, np.uint8)
        linear = np.rint((values[:, :n] - self.origin) * self.inverse[:, :n])
        out[:, :n] = np.clip(linear, 0, self.top)
        scaled = values[:, n:] * self.inverse[:, n:] / _LUT_FINE
        middles = (_IQ4_VALUES[1:] + _IQ4_VALUES[:-1]) / 2
        out[:, n:] = np.searchsorted(middles, scaled)
        return out


def is_craftable(qtype: str) -> bool:
    """Whether a type stores one integer a weight, so that its integers can be chosen anew."""
    return qtype in LAYOUTS


def make_grid(bases: list[tuple[str, Bytes]], row_values: int, order: npt.NDArray[np.intp]) -> Grid:
    """The grids of packed rows of several types, stacked; types with a table must come last.

    Args: bases: (type, (rows, row_bytes)). order: the columns in the order they will be rounded.
    Raises: ValueError: a type with a table stands before one without.
    """
    origins: list[Floats] = []
    steps: list[Floats] = []
    inverses: list[Floats] = []
    tops: list[Floats] = []
    num_linear = 0
    for qtype, base in bases:
        layout = LAYOUTS[qtype]
        shape = (base.shape[0], row_values)
        if layout.nonlinear:
            step = _expand(base, qtype, np.full(shape, _IQ4_UNIT, np.uint8), order)
        else:
            if len(steps) > len(origins):
                raise ValueError("types with a table must come last")
            first = _expand(base, qtype, np.full(shape, layout.origin, np.uint8), order)
            step = _expand(base, qtype, np.full(shape, layout.origin + 1, np.uint8), order) - first
            origins.append(first - layout.origin * step)
            tops.append(np.full(base.shape[0], layout.levels - 1, np.float32))
            num_linear += base.shape[0]
        with np.errstate(divide="ignore"):
            inverse = np.where(step == 0, np.float32(0), np.float32(1) / step)
        steps.append(step)
        inverses.append(inverse * np.float32(_LUT_FINE) if layout.nonlinear else inverse)
    empty = np.empty((row_values, 0), np.float32)
    return Grid(
        origin=np.concatenate(origins, axis=1) if origins else empty,
        step=np.concatenate(steps, axis=1),
        inverse=np.concatenate(inverses, axis=1),
        top=np.concatenate(tops) if tops else np.empty(0, np.float32),
        num_linear=num_linear,
    )


def _expand(base: Bytes, qtype: str, codes: Bytes, order: npt.NDArray[np.intp]) -> Floats:
    values = dequantize_rows(pack(base, qtype, codes), qtype, codes.shape[1])
    return np.ascontiguousarray(values[:, order].T)
