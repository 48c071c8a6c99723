"""The task that rounds whole tensors into the cache, one file each: a killed run loses at most one tensor."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from quantize.files.imatrix import Importance, read_imatrix
from quantize.files.measurement_folder import SharedInputGroup, WorkFolder, file_sha256
from quantize.gptq.codebook_search import BlockHessian, in_octets
from quantize.gptq.codebooks import LATTICES
from quantize.gptq.exact import pack_exactly
from quantize.gptq.hessian import Hessian, group_curvature
from quantize.gptq.rows import POWERS, gptq_rows, plain_rows
from quantize.measurements import RoundRequest, Step
from quantize.native.blocks import quantize_rows
from quantize.native.source_weights import SourceWeights
from quantize.types import Rounding

Blocks = npt.NDArray[np.uint8]
_CHUNK_VALUES = 1 << 24  # weights read at a time: 64 MB as float32
# The same for weights on a grid: finding their steps takes a dozen arrays of this size, in every process.
_EXACT_CHUNK_VALUES = 1 << 20


class TensorsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Round the named tensors with the settings of `round`."""

    round: RoundRequest
    names: tuple[str, ...]


def packed_path(folder: WorkFolder, request: RoundRequest, name: str) -> Path:
    """Path of a finished tensor; its name contains everything that affects its bytes."""
    how: str = request.rounding
    if request.exact:
        how = "exact"
    elif request.rounding == Rounding.STOCK:
        how += "-" + (file_sha256(request.imatrix)[:16] if request.imatrix else "none")
    return folder.part("packed", f"{name}.{request.types[name]}.{how}", ".bin")


def round_tensors(request: TensorsRequest, send: Step) -> int:
    """Round tensors one by one; skips cached ones. Returns the number of rounded tensors."""
    task = request.round
    folder = WorkFolder.open(task.measure)
    source = SourceWeights(task.measure.source)
    groups = {name: g for g in folder.groups() or () for name in g.members}
    stock = read_imatrix(task.imatrix) if task.imatrix and task.rounding == Rounding.STOCK else {}
    rounder = Rounder(folder, source, task, groups, stock)
    sizes = {n: source.info(n).num_values for n in request.names}
    total, passed, done = float(sum(sizes.values())), 0.0, 0
    for name in request.names:
        path = packed_path(folder, task, name)
        if not path.exists():
            with folder.keeping(path) as partial, partial.open("wb") as file:
                for values, blocks in rounder.chunks(name):
                    file.write(blocks.data)
                    send(passed + values, total, name)
            done += 1
        passed += sizes[name]
    send(total, total, "")
    return done


class Rounder:
    """Rounds tensors chunk by chunk and caches the last Hessian, which neighbouring tensors share."""

    def __init__(
        self,
        folder: WorkFolder,
        source: SourceWeights,
        request: RoundRequest,
        groups: dict[str, SharedInputGroup],
        stock: dict[str, Importance],
    ) -> None:
        self._folder = folder
        self._source = source
        self._request = request
        self._groups = groups
        self._stock = stock
        self._last: tuple[tuple[str, int, bool], Hessian, BlockHessian | None] | None = None

    def chunks(self, name: str) -> Iterator[tuple[int, Blocks]]:
        """Packed chunks of rows in order, each with the number of weights finished so far."""
        matrices, rows, width = self._source.shape(name)
        step = max(1, (_EXACT_CHUNK_VALUES if self._request.exact else _CHUNK_VALUES) // width)
        for matrix in range(matrices):
            for first in range(0, rows, step):
                weights = self._source.rows(name, matrix, slice(first, first + step))
                last = min(rows, first + step)
                yield (matrix * rows + last) * width, self._round(name, matrix, weights)

    def _round(self, name: str, matrix: int, weights: npt.NDArray[np.float32]) -> Blocks:
        qtype, rounding = self._request.types[name], self._request.rounding
        if self._request.exact:
            return pack_exactly(weights, qtype, self._source.info(name).ggml_type)
        if rounding == Rounding.STOCK or name not in self._groups:
            stock = self._stock.get(name)
            if stock is not None and stock.sums.shape[1] != weights.shape[1]:
                stock = None  # it was written for another model; quantize.native.encode does the same
            return quantize_rows(weights, qtype, None if stock is None else stock.mean(matrix))
        curvature, octets = self._curvature(self._groups[name], matrix, in_lattice=qtype in LATTICES)
        if rounding == Rounding.ROWS:
            return plain_rows(weights, qtype, curvature, POWERS).blocks
        return gptq_rows(weights, (qtype,), curvature, octets=octets)[qtype].blocks

    def _curvature(
        self, group: SharedInputGroup, expert: int, *, in_lattice: bool
    ) -> tuple[Hessian, BlockHessian | None]:
        key = (group.name, expert, in_lattice)
        if self._last is None or self._last[0] != key:
            moments = self._folder.moments(group) if group.seen else None
            tokens = self._folder.tokens(group, expert)
            curvature = group_curvature(group, moments, expert, tokens, feedback=not in_lattice)
            self._last = (key, curvature, in_octets(curvature) if in_lattice else None)
        return self._last[1:]
