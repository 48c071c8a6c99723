"""Rounding layer after layer: each on the inputs it will really get, making up for what was spoiled before it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import msgspec
import numpy as np
import numpy.typing as npt

from quantize.calibration import WINDOW, read_windows
from quantize.craft.curvature import make_curvature
from quantize.craft.rows import craft_rows
from quantize.craft.tensors import Rounder, packed_path
from quantize.evidence import RoundRequest, Step
from quantize.native.blocks import dequantize_rows, quantize_rows
from quantize.native.graph import GgmlTensor, op_id, read_floats, tensor_at
from quantize.native.reference import NodeTap, ReferenceModel, multiplied_weight
from quantize.source_weights import SourceWeights
from quantize.work_folder import Group, WorkFolder, writing_whole

Floats = npt.NDArray[np.float32]

# Share of the mean square added before a target is solved for, so that it stays near the weights where the text
# says little. Measured: docs/log.md, craft ("Sequential pass").
_RIDGE = 0.003
_BATCH = 4  # windows a batch
# Nodes that only pass values on from a product to the sum it goes into.
_PASSING = ("GET_ROWS", "RESHAPE", "VIEW", "CONT")


class SequentialRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Round all tensors of a plan in the order of the model, on `max_tokens` of the calibration text."""

    round: RoundRequest
    max_tokens: int = 65_536


@dataclass
class _Seen:
    """What one model showed of one group in one batch: inputs, and the residual stream its product went into."""

    inputs: list[Floats] = field(default_factory=list)
    sums: list[Floats] = field(default_factory=list)


class _StageTap(NodeTap):
    """Reads inputs of some groups and the residual sums their products go into."""

    def __init__(self, names: list[str], *, residual: set[str] | None = None) -> None:
        """With `residual` (the groups that have a sum) the graph ends once the last group is complete."""
        self.seen = {name: _Seen() for name in names}
        self._products: dict[int, str] = {}
        self._residual = residual
        self._last = names[-1]

    def asks(self, address: int, node: GgmlTensor) -> bool:
        """Products of the groups, and the first sum with other tokens' values each of them goes into."""
        weight = multiplied_weight(node)
        if weight is not None:
            if weight in self.seen:
                self._forget(weight)
                self._products[address] = weight
            return weight in self.seen
        name = self._product_in(node)
        if name is None:
            return False
        if node.op == op_id("ADD") and not _adds_bias(node):
            return True
        if node.op in {op_id(n) for n in _PASSING}:
            self._products[address] = name
        return False

    def takes(self, address: int, node: GgmlTensor) -> bool:
        """Copy what was asked for."""
        del address
        weight = multiplied_weight(node)
        if weight is not None:
            self.seen[weight].inputs.append(_matrix(tensor_at(node.src[1])))
            complete = self._residual is not None and weight not in self._residual
            return not (complete and weight == self._last)
        name = self._product_in(node)
        assert name is not None
        self._forget(name)
        self.seen[name].sums.append(_matrix(node))
        return self._residual is None or name != self._last

    def _product_in(self, node: GgmlTensor) -> str | None:
        return self._products.get(int(node.src[0] or 0)) or self._products.get(int(node.src[1] or 0))

    def _forget(self, name: str) -> None:
        self._products = {a: n for a, n in self._products.items() if n != name}


def _adds_bias(node: GgmlTensor) -> bool:
    """Whether one side of a sum is a single row, the same for every token."""
    return any(int(tensor_at(node.src[i]).ne[1]) == 1 for i in (0, 1)) and int(node.ne[1]) > 1


def _matrix(tensor: GgmlTensor) -> Floats:
    values = read_floats(tensor)
    return values.reshape(-1, values.shape[-1]).copy()


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
    with _Pair(request) as pair:
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


class _Pair:
    """The reference and the model as rounded so far, shown the same text."""

    def __init__(self, request: SequentialRequest) -> None:
        measure = request.round.measure
        loaded = [
            ReferenceModel(
                measure.source,
                window=WINDOW,
                batch_windows=_BATCH,
                threads=measure.threads,
                gpu_layers=measure.gpu_layers,
            )
            for _ in range(2)
        ]
        self.reference, self.rounded = loaded
        windows = read_windows(self.reference, measure.calibration, request.max_tokens, spread=True)
        widest = self._survey(windows)
        affordable = max(_BATCH, measure.memory_bytes // (4 * WINDOW * widest))
        windows = windows[: min(len(windows), affordable)]
        self._batches = [windows[i : i + _BATCH] for i in range(0, len(windows), _BATCH)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.reference.close()
        self.rounded.close()

    def _survey(self, windows: npt.NDArray[np.int32]) -> int:
        """Which groups feed the residual stream; the most values a token shows in one layer."""
        names = [w for w in self.reference.weights if w != "token_embd.weight"]
        tap = _StageTap(names)
        self.reference.run(windows[:1, :32], np.ones(32, np.bool_), tap, drop_logits=True)
        self.residual = {name for name, seen in tap.seen.items() if seen.sums}
        self.followed = {name for name, seen in tap.seen.items() if seen.inputs}
        per_layer: dict[str, int] = {}
        for name, seen in tap.seen.items():
            values = sum(x.shape[1] for x in (*seen.inputs[:1], *seen.sums[:1]))
            layer = _layer_name(name)
            per_layer[layer] = per_layer.get(layer, 0) + values
        return max(per_layer.values(), default=1)

    def watch_reference(self, names: list[str], missing: list[str]) -> dict[str, list[_Seen]]:
        """What the reference shows of the groups of one layer, batch by batch; nothing if none is missing."""
        found: dict[str, list[_Seen]] = {name: [] for name in names}
        if not missing or not names:
            return found
        for windows in self._batches:
            for name, seen in self._watch(self.reference, windows, names).items():
                # A sum is all that is needed of groups that have one.
                if name in self.residual:
                    seen.inputs.clear()
                found[name].append(seen)
        return found

    def watch_rounded(self, name: str, expected: list[_Seen]) -> tuple[Floats, Floats]:
        """Second moments (k, k) of one group's inputs in the rounded model, and what pulls its output right.

        The pull is, for a group that feeds the residual stream, the mean of (expected sum - sum) x^T, (rows, k);
        for others the mean of (expected input) x^T, (k, k).
        """
        moments = pull = None
        tokens = 0
        for windows, goal in zip(self._batches, expected, strict=True):
            seen = self._watch(self.rounded, windows, [name])[name]
            inputs = np.concatenate(seen.inputs)
            if name in self.residual:
                wanted = np.concatenate(goal.sums) - np.concatenate(seen.sums)
            else:
                wanted = np.concatenate(goal.inputs)
            parts = inputs.T @ inputs, wanted.T @ inputs
            moments = parts[0] if moments is None else moments + parts[0]
            pull = parts[1] if pull is None else pull + parts[1]
            tokens += len(inputs)
        assert moments is not None
        assert pull is not None
        return moments / np.float32(tokens), pull / np.float32(tokens)

    def _watch(self, model: ReferenceModel, windows: npt.NDArray[np.int32], names: list[str]) -> dict[str, _Seen]:
        tap = _StageTap(names, residual=self.residual)
        model.run(windows, np.ones(WINDOW, np.bool_), tap, drop_logits=True)
        return tap.seen


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
        self._rounder = Rounder(
            folder, source, crafted, {n: g for g in folder.groups() or () for n in g.members}, {}
        )

    def missing(self, groups: list[Group]) -> list[str]:
        """Names of tensors that are not in the cache."""
        return [n for n in self._names(groups) if not self._path(n).exists()]

    def craft(self, group: Group) -> int:
        """Round against the reference's own inputs."""
        names = self.missing([group])
        for name in names:
            with writing_whole(self._path(name)) as partial, partial.open("wb") as file:
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
            rounded = craft_rows(np.ascontiguousarray(targets, np.float32), (qtype,), curvature)[qtype]
            with writing_whole(self._path(name)) as partial:
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


def _can_follow(group: Group, pair: _Pair) -> bool:
    return group.experts == 1 and group.name in pair.followed


def _layer(group: Group) -> str:
    return _layer_name(group.name)


def _layer_name(tensor: str) -> str:
    """The layer in a name (blk.3); a tensor outside all layers is one of its own."""
    parts = tensor.split(".")
    return ".".join(parts[:2]) if parts[0] == "blk" else tensor
