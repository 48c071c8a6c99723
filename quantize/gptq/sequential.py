"""Rounding layer after layer: each on the inputs it will really get, making up for what was spoiled before it."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from quantize.evidence import RoundRequest, Step
from quantize.files.work_folder import Group, WorkFolder
from quantize.gptq.curvature import make_curvature
from quantize.gptq.model_pair import ModelPair, layer_name
from quantize.gptq.rows import craft_rows
from quantize.gptq.tensors import Rounder, packed_path
from quantize.native.blocks import dequantize_rows, quantize_rows
from quantize.native.reference import ReferenceModel
from quantize.native.source_weights import SourceWeights

Floats = npt.NDArray[np.float32]

# Share of the mean square added before a target is solved for, so that it stays near the weights where the text
# says little. Source: a third of GPTQ's damping (`curvature.DAMPING`), as far more text is seen here; not tuned.
_RIDGE = 0.003


class SequentialRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Round all tensors of a plan in the order of the model, on `max_tokens` of the calibration text."""

    round: RoundRequest
    max_tokens: int = 32_768


def round_in_order(request: SequentialRequest, send: Step) -> int:
    """Round a whole plan. Finished tensors in the cache are taken over, so a killed run goes on where it was.

    Routed experts and tables that are only looked up are crafted on the reference's own inputs.
    Returns how many tensors were rounded.
    """
    wanted = request.round
    folder = WorkFolder.open(wanted.measure)
    source = SourceWeights(wanted.measure.source)
    groups = [g for g in folder.groups() or () if set(g.members) & set(wanted.types)]
    first = [g for g in groups if g.tied or not g.seen]
    layers = [[g for g in groups if _layer(g) == layer] for layer in dict.fromkeys(map(_layer, groups))]
    done = 0
    total = float(sum(source.info(n).num_values for n in wanted.types))
    passed = 0.0
    with folder.scratch() as room, ModelPair(wanted.measure, request.max_tokens, room) as pair:
        writer = _Writer(folder, source, wanted, pair.rounded)
        for group in first:
            done += writer.craft(group)
        for layer in layers:
            pending = [g for g in layer if g not in first]
            known = pair.watch_reference([g.name for g in pending if _can_follow(g, pair)], writer.missing(pending))
            for group in pending:
                send(passed, total, group.name)
                if group.name not in known:
                    done += writer.craft(group)
                elif writer.missing([group]):
                    moments, pull = pair.watch_rounded(group.name, known[group.name])
                    done += writer.follow(group, moments, pull, residual=group.name in pair.residual)
                else:
                    writer.take_over(group)
                passed += sum(source.info(n).num_values for n in group.members)
    send(total, total, "")
    return done


class _Writer:
    """Rounds groups into the cache and into the rounded model."""

    def __init__(
        self, folder: WorkFolder, source: SourceWeights, request: RoundRequest, rounded: ReferenceModel
    ) -> None:
        self._folder = folder
        self._source = source
        self._request = request
        self._rounded = rounded
        crafted = msgspec.structs.replace(request, rounding="craft")
        self._threads = request.measure.threads
        groups = {n: g for g in folder.groups() or () for n in g.members}
        self._rounder = Rounder(folder, source, crafted, groups, {}, self._threads)

    def missing(self, groups: list[Group]) -> list[str]:
        """Names of tensors that are not in the cache."""
        return [n for n in self._names(groups) if not self._path(n).exists()]

    def craft(self, group: Group) -> int:
        """Round against the reference's own inputs."""
        names = self.missing([group])
        for name in names:
            with self._folder.keeping(self._path(name)) as partial, partial.open("wb") as file:
                for _, blocks in self._rounder.chunks(name):
                    file.write(blocks.data)
        self.take_over(group)
        return len(names)

    def follow(self, group: Group, moments: Floats, pull: Floats, *, residual: bool) -> int:
        """Round what would undo the errors so far, against the inputs as they are now."""
        mean = float(moments.diagonal().mean())
        ridge = np.float64(_RIDGE * mean) * np.eye(len(moments))
        inverse = np.linalg.inv(moments.astype(np.float64) + ridge)
        curvature = make_curvature(moments)
        names = self.missing([group])
        for name in names:
            weights = self._source.rows(name)
            wanted = pull.astype(np.float64)
            if residual:
                targets = weights + wanted @ inverse
            else:
                targets = weights.astype(np.float64) @ (wanted + ridge) @ inverse
            qtype = self._request.types[name]
            exact = np.ascontiguousarray(targets, np.float32)
            rounded = craft_rows(exact, (qtype,), curvature, threads=self._threads)[qtype]
            with self._folder.keeping(self._path(name)) as partial:
                partial.write_bytes(rounded.blocks.tobytes())
        self.take_over(group)
        return len(names)

    def take_over(self, group: Group) -> None:
        """Give the rounded model what is in the cache."""
        loaded = set(self._rounded.weights)
        for name in self._names([group]):
            if name not in loaded:
                continue
            matrices, rows, width = self._source.shape(name)
            qtype = self._request.types[name]
            blocks = np.fromfile(self._path(name), np.uint8).reshape(matrices * rows, -1)
            values = dequantize_rows(blocks, qtype, width)
            self._rounded.replace(name, quantize_rows(values, self._source.source_qtype(name)))

    def _names(self, groups: list[Group]) -> Iterator[str]:
        return (n for g in groups for n in g.members if n in self._request.types)

    def _path(self, name: str) -> Path:
        return packed_path(self._folder, self._request, name)


def _can_follow(group: Group, pair: ModelPair) -> bool:
    return group.experts == 1 and group.name in pair.followed


def _layer(group: Group) -> str:
    return layer_name(group.name)
