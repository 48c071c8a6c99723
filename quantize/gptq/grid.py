"""The values that packed rows can take once their scales are fixed, and rounding onto them."""

import msgspec
import numpy as np
import numpy.typing as npt

from quantize.gptq.packing import LAYOUTS, Bytes, pack
from quantize.native.blocks import dequantize_rows

Floats = npt.NDArray[np.float32]

# Values of the codes of types with a table, one table after the other.
_TABLES = tuple(dict.fromkeys(layout.table for layout in LAYOUTS.values() if layout.nonlinear))
# A lookup table has so many places on either side of 0, and for a unit as many as a power of two has room for.
_LUT_HALF = 512
_FINE = tuple(_LUT_HALF // (1 << max(map(abs, table)).bit_length()) for table in _TABLES)


def _nearest(table: tuple[int, ...], fine: int) -> Floats:
    position = np.arange(-_LUT_HALF, _LUT_HALF + 1, dtype=np.float32) / fine
    values = np.array(table, np.float32)
    nearest: Floats = values[np.abs(position[:, None] - values).argmin(axis=1)]
    return nearest


_LUTS = np.concatenate([_nearest(table, fine) for table, fine in zip(_TABLES, _FINE, strict=True)])


class Grid(msgspec.Struct, frozen=True):
    """Fixed grids of several rows, one column of the matrix at a time.

    Arrays are (row_values, rows), columns of the weight matrix first, in the order they will be rounded. Rows up to
    `num_linear` can be `origin + step * code` with codes 0..`levels`-1; the rest `step * table[code]`, the table
    being that of each row.
    """

    origin: Floats  # (row_values, num_linear)
    step: Floats  # (row_values, rows)
    inverse: Floats  # 1 / step, 0 where the step is 0; for rows with a table in units of its lookup table
    top: Floats  # (num_linear,) highest code
    num_linear: int
    tables: npt.NDArray[np.int32]  # (rows - num_linear,) places in _TABLES

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
            np.take(_LUTS, w.astype(np.int32) + self.tables * np.int32(2 * _LUT_HALF + 1), out=w, mode="clip")
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
            tables=self.tables[rows[len(linear) :] - self.num_linear],
        )

    def codes(self, values: Floats) -> Bytes:
        """Codes of grid values (row_values, rows), as uint8 of the same shape."""
        n = self.num_linear
        out = np.empty(values.shape, np.uint8)
        linear = np.rint((values[:, :n] - self.origin) * self.inverse[:, :n])
        out[:, :n] = np.clip(linear, 0, self.top)
        for number, table in enumerate(_TABLES):
            rows = n + np.flatnonzero(self.tables == number)
            levels, codes = np.unique(np.array(table, np.float32), return_index=True)
            scaled = values[:, rows] * self.inverse[:, rows] / _FINE[number]
            out[:, rows] = codes[np.searchsorted((levels[1:] + levels[:-1]) / 2, scaled)]
        return out


def has_grid(qtype: str) -> bool:
    """Whether a type stores one integer a weight, so that its integers can be chosen again."""
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
    tables: list[npt.NDArray[np.int32]] = []
    num_linear = 0
    for qtype, base in bases:
        layout = LAYOUTS[qtype]
        shape = (base.shape[0], row_values)
        fine = 1
        if layout.nonlinear:
            number = _TABLES.index(layout.table)
            fine = _FINE[number]
            tables.append(np.full(base.shape[0], number, np.int32))
            # The code whose value is 1 shows a block's scale.
            step = _expand(base, qtype, np.full(shape, layout.table.index(1), np.uint8), order)
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
        inverses.append(inverse * np.float32(fine) if layout.nonlinear else inverse)
    empty = np.empty((row_values, 0), np.float32)
    return Grid(
        origin=np.concatenate(origins, axis=1) if origins else empty,
        step=np.concatenate(steps, axis=1),
        inverse=np.concatenate(inverses, axis=1),
        top=np.concatenate(tops) if tops else np.empty(0, np.float32),
        num_linear=num_linear,
        tables=np.concatenate(tables) if tables else np.empty(0, np.int32),
    )


def _expand(base: Bytes, qtype: str, codes: Bytes, order: npt.NDArray[np.intp]) -> Floats:
    values = dequantize_rows(pack(base, qtype, codes), qtype, codes.shape[1])
    return np.ascontiguousarray(values[:, order].T)
