"""Chooses the type of every tensor from the model's shape, the KL divergences and the goal. Pure."""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

import msgspec
import numpy as np

from quantize.errors import BudgetTooSmall, InvalidOption
from quantize.files.gguf_write import padded
from quantize.ggml_types import FLOAT_TYPES, MEASURED, GgmlType, bits_per_weight
from quantize.plan.llama_cpp_preset_rules import MIXES
from quantize.plan.llama_cpp_presets import stock_types, uniform_types
from quantize.plan.speed import decode_time, is_fast, slowness
from quantize.tensor_rules import (
    allows_quantization,
    effective_type,
    needs_imatrix,
    tensor_bytes,
    unquantizable_rows,
)
from quantize.types import (
    DeviceKind,
    EvidenceRef,
    KvOption,
    ModelSpec,
    PresetPlan,
    QuantPlan,
    SizeTarget,
    TensorPlan,
    TensorSpec,
    TypeOverride,
)

Damage = Mapping[str, Mapping[str, float]]

# Penalty for slow types: a type that decodes twice as slowly as its bytes imply counts 25 % more KL divergence.
# This avoids IQ3 on CPUs (2.5 times slower than Q3_K at the same bytes) unless it is forced.
_SPEED_PRICE = 0.25


class PlanInput(msgspec.Struct, frozen=True):
    """The complete input of a plan; the same input always gives the same plan.

    `damage` maps tensor and type to expected KL divergence; `stock_damage` is the same without GPTQ (None: the same
    values). `header_bytes` is the size of the file without tensor data. `kv` are the available KV cache types at
    the requested context length (for goals of kind "fit"). `speeds` are decoding times per weight by type name.
    `doubled_head_types` are types in which memory holds a tied embedding twice. Without `with_stock` the plan omits
    the sizes and losses of llama.cpp presets, which take most of the time. `exact` names the types that hold a
    tensor's weights without loss, smallest first; `added` is the number of its rows that are on no grid.
    """

    model: ModelSpec
    damage: Damage
    evidence: EvidenceRef
    header_bytes: int
    stock_damage: Damage | None = None
    kv: tuple[KvOption, ...] = ()
    locks: tuple[TypeOverride, ...] = ()
    device: DeviceKind = "cpu"
    speeds: Mapping[str, float] | None = None
    speed_price: float = _SPEED_PRICE
    doubled_head_types: frozenset[str] = frozenset()
    with_stock: bool = True
    exact: Mapping[str, tuple[str, ...]] = {}
    added: Mapping[str, int] = {}


class _Option(msgspec.Struct, frozen=True):
    qtype: GgmlType
    num_bytes: int
    damage: float
    cost: float
    wanted: GgmlType
    lossless: str = ""


def make_plan(question: PlanInput, goal: SizeTarget) -> QuantPlan:
    """The plan with the least KL divergence (slow types are penalized) within the goal's bytes.

    Monotone: a larger limit never raises the cost. With `speed_price` 0, cost and KL divergence are the same.
    Raises: BudgetTooSmall: not even the smallest recipe fits. InvalidOption: an impossible lock or preset.
    """
    if goal.kind == "mix":
        return _fixed_plan(question, goal)
    options = _all_options(question)
    limit = _limit(question, goal)
    in_memory = goal.kind == "fit"
    items = [
        (
            [_runner_bytes(question, tensor, o) if in_memory else padded(o.num_bytes) for o in row],
            [o.cost for o in row],
        )
        for tensor, row in zip(question.model.tensors, options, strict=True)
    ]
    if in_memory and question.kv:
        items.append(([k.num_bytes for k in question.kv], [k.damage for k in question.kv]))
    overhead = 0 if in_memory else question.header_bytes
    smallest = overhead + sum(min(sizes) for sizes, _ in items)
    chosen = solve(items, limit - overhead)
    if chosen is None:
        rows = unquantizable_rows(question.model)
        raise BudgetTooSmall(limit + goal.fixed_bytes, smallest + goal.fixed_bytes, rows, goal.n_ctx or 0)
    picks = [row[k] for row, k in zip(options, chosen.options, strict=False)]
    kv = question.kv[chosen.options[-1]] if in_memory and question.kv else None
    weights_limit = limit - (kv.num_bytes if kv else 0) + (question.header_bytes if in_memory else 0)
    if any(p.lossless for p in picks):  # more bytes would gain nothing here, and are not a fair comparison
        weights_limit = min(weights_limit, question.header_bytes + sum(padded(p.num_bytes) for p in picks))
    return _assemble(question, goal, _Outcome(picks, options, weights_limit, kv, chosen.gap))


def given_plan(question: PlanInput, goal: SizeTarget, types: Mapping[str, str]) -> QuantPlan:
    """A plan with given types. Raises: InvalidOption: the types do not match this model's tensors."""
    tensors = {t.name: t for t in question.model.tensors}
    if odd := sorted(types.keys() ^ tensors.keys()):
        raise InvalidOption("--plan", f"its tensors are not those of this model: {odd[0]} is only in one of them")
    picks = []
    for name, tensor in tensors.items():
        qtype = GgmlType.__members__.get(types[name])
        if qtype is None or not qtype.traits.writable or effective_type(qtype, tensor.row_values) is not qtype:
            raise InvalidOption("--plan", f"{name} cannot be stored as {types[name]}")
        if qtype.name != tensor.qtype and not allows_quantization(tensor):
            raise InvalidOption("--plan", f"{name} stays {tensor.qtype}, the plan says {types[name]}")
        if qtype.name != tensor.qtype and needs_imatrix(name, qtype) and not question.evidence.has_imatrix:
            raise InvalidOption("--plan", f"{name} as {types[name]} needs an importance matrix")
        row = question.damage.get(name, {})
        damage = 0.0 if qtype.name == tensor.qtype else _nearest(qtype, row)
        exact = _grid(question, name, qtype)
        picks.append(_Option(qtype, tensor_bytes(tensor, qtype), damage, damage, qtype, exact))
    size = question.header_bytes + sum(padded(p.num_bytes) for p in picks)
    return _assemble(question, goal, _Outcome(picks, [[p] for p in picks], size))


def _runner_bytes(question: PlanInput, tensor: TensorSpec, option: _Option) -> int:
    """Bytes of a tensor in the runner's memory."""
    twice = tensor.name == "token_embd.weight" and option.qtype.name in question.doubled_head_types
    return padded(option.num_bytes) * (2 if twice else 1)


def stock_plans(question: PlanInput) -> tuple[PresetPlan, ...]:
    """Every llama.cpp preset for this model, smallest file first."""
    model, damage = question.model, question.stock_damage or question.damage
    plans = []
    for name in MIXES:
        types = stock_types(model, name, has_imatrix=question.evidence.has_imatrix)
        needs = any(
            needs_imatrix(t.name, types[t.name]) and types[t.name] != GgmlType[t.qtype] for t in model.tensors
        )
        size = sum(padded(tensor_bytes(t, types[t.name])) for t in model.tensors)
        plans.append(
            PresetPlan(
                name=name,
                file_bytes=question.header_bytes + size,
                damage=model_damage(model, types, damage),
                needs_imatrix=needs,
                types={tensor: qtype.name for tensor, qtype in types.items()},
            )
        )
    return tuple(sorted(plans, key=lambda p: (p.file_bytes, p.name)))


def best_stock(plans: Sequence[PresetPlan], limit_bytes: int, *, has_imatrix: bool) -> PresetPlan | None:
    """The preset to compare with: the least predicted KL divergence within `limit_bytes`.

    If no KL divergence is known, it is the largest one that fits.
    """
    fitting = [p for p in plans if p.file_bytes <= limit_bytes and (has_imatrix or not p.needs_imatrix)]
    measured = [p for p in fitting if p.damage is not None]
    if measured:
        return min(measured, key=lambda p: (p.damage or 0.0, p.file_bytes))
    return max(fitting, key=lambda p: p.file_bytes, default=None)


def _limit(question: PlanInput, goal: SizeTarget) -> int:
    if goal.kind == "bpw":
        if not goal.bpw or goal.bpw <= 0:
            raise InvalidOption("--bpw", "bits per weight must be above 0")
        values = sum(t.num_values for t in question.model.tensors)
        return question.header_bytes + int(goal.bpw * values / 8)
    if goal.kind != "fit" and (goal.limit_bytes or 0) <= 0:
        raise InvalidOption("--budget", "bytes must be above 0")
    return (goal.limit_bytes or 0) - goal.fixed_bytes


def _all_options(question: PlanInput) -> list[list[_Option]]:
    typical = _typical_damage(question)
    unmatched = {lock.pattern for lock in question.locks}
    rows = []
    for tensor in question.model.tensors:
        lock = _lock_for(tensor, question.locks, unmatched)
        rows.append(_options(question, tensor, lock, typical))
    if unmatched:
        raise InvalidOption("--lock", f"no tensor of this model matches {min(unmatched)!r}")
    return rows


def _lock_for(tensor: TensorSpec, locks: Sequence[TypeOverride], unmatched: set[str]) -> TypeOverride | None:
    match = None
    for lock in locks:
        try:
            matches = re.search(lock.pattern, tensor.name)
        except re.error as error:
            raise InvalidOption("--lock", f"{lock.pattern!r} is not a regular expression: {error}") from error
        if matches and allows_quantization(tensor):
            unmatched.discard(lock.pattern)
            match = match or lock
    return match


def _options(
    question: PlanInput, tensor: TensorSpec, lock: TypeOverride | None, typical: Mapping[str, float]
) -> list[_Option]:
    source = GgmlType[tensor.qtype]
    as_is = _Option(source, tensor_bytes(tensor, source), 0.0, 0.0, source)
    if not allows_quantization(tensor):
        return [as_is]
    by_type = question.damage.get(tensor.name) or {
        name: value * tensor.num_values for name, value in typical.items()
    }
    if lock is not None and not lock.at_least:
        option = _locked(tensor, lock, as_is, by_type)
        return [msgspec.structs.replace(option, lossless=_grid(question, tensor.name, option.qtype))]
    options = {source: as_is}
    for name, damage in by_type.items():
        ideal = GgmlType[name]
        actual = effective_type(ideal, tensor.row_values)
        if actual in options or not _usable(question, tensor, source, actual):
            continue
        value = by_type.get(actual.name, damage)
        price = 1 + question.speed_price * (slowness(actual, question.device, question.speeds) - 1)
        options[actual] = _Option(actual, tensor_bytes(tensor, actual), value, value * price, ideal)
    _put_exact(question, tensor, lock, options, by_type)
    if lock is not None:
        least = bits_per_weight(effective_type(GgmlType[lock.qtype], tensor.row_values))
        options = {q: o for q, o in options.items() if q is source or bits_per_weight(q) >= least}
    return list(options.values())


def _put_exact(
    question: PlanInput,
    tensor: TensorSpec,
    lock: TypeOverride | None,
    options: dict[GgmlType, _Option],
    by_type: Mapping[str, float],
) -> None:
    """Add the types that hold these weights without loss, and drop larger ones, which only added rows gain from."""
    types = [GgmlType[name] for name in question.exact.get(tensor.name, ())]
    fitting = [q for q in types if _runs_exact(q, question.device)]
    for qtype in fitting:
        price = 1 + question.speed_price * (slowness(qtype, question.device, question.speeds) - 1)
        loss = _exact_loss(question, tensor, qtype, by_type)
        options[qtype] = _Option(qtype, tensor_bytes(tensor, qtype), loss, loss * price, qtype, types[0].name)
    if fitting and lock is None and not question.added.get(tensor.name):
        most = bits_per_weight(fitting[0])
        for qtype in [q for q in options if bits_per_weight(q) > most]:
            del options[qtype]


def _exact_loss(question: PlanInput, tensor: TensorSpec, qtype: GgmlType, by_type: Mapping[str, float]) -> float:
    """The loss from rounding inputs to 8 bits, which is that of the most exact measured type, and of added rows."""
    least, added = min(by_type.values(), default=0.0), question.added.get(tensor.name, 0)
    return least + max(0.0, _nearest(qtype, by_type) - least) * added / tensor.num_rows


def _runs_exact(qtype: GgmlType, device: DeviceKind) -> bool:
    """Whether a device has kernels for a type that is only chosen because it loses nothing."""
    if device == "npu":
        return qtype.traits.openvino == "native"
    return device == "cpu" or not qtype.traits.cpu_only


def _grid(question: PlanInput, name: str, qtype: GgmlType) -> str:
    """The smallest type with the grid of this tensor's weights, if `qtype` holds them without loss."""
    types = question.exact.get(name, ())
    return types[0] if qtype.name in types else ""


def _usable(question: PlanInput, tensor: TensorSpec, source: GgmlType, actual: GgmlType) -> bool:
    if not question.evidence.has_imatrix and needs_imatrix(tensor.name, actual):
        return False
    if actual.traits.if_fast and not is_fast(actual, question.device, question.speeds):
        return False
    if question.device == "npu" and actual.traits.openvino != "native":
        return False
    # Writing an already quantized tensor with more bits only makes the file larger.
    return bits_per_weight(actual) < bits_per_weight(source)


def _locked(tensor: TensorSpec, lock: TypeOverride, as_is: _Option, by_type: Mapping[str, float]) -> _Option:
    ideal = GgmlType[lock.qtype]
    actual = effective_type(ideal, tensor.row_values)
    if actual is as_is.qtype:
        return as_is
    if actual in FLOAT_TYPES and as_is.qtype not in FLOAT_TYPES:
        raise InvalidOption(
            "--lock", f"{tensor.name} is already {as_is.qtype.name}; {lock.qtype} cannot restore it"
        )
    damage = by_type.get(actual.name, 0.0 if actual in FLOAT_TYPES else _nearest(actual, by_type))
    return _Option(actual, tensor_bytes(tensor, actual), damage, damage, ideal)


def _nearest(qtype: GgmlType, by_type: Mapping[str, float]) -> float:
    """KL divergence of this type or, without a measurement, of the measured type nearest in bits."""
    bits = bits_per_weight(qtype)
    near = ((abs(bits_per_weight(GgmlType[name]) - bits), name != qtype.name, kld) for name, kld in by_type.items())
    return min(near, default=(0.0, False, 0.0))[2]


def _typical_damage(question: PlanInput) -> dict[str, float]:
    """Median KL divergence per value by type, for tensors that the calibration text does not use."""
    sizes = {t.name: t.num_values for t in question.model.tensors}
    by_type: dict[str, list[float]] = {}
    for name, row in question.damage.items():
        for qtype, value in row.items():
            if sizes.get(name):
                by_type.setdefault(qtype, []).append(value / sizes[name])
    return {qtype: median(values) for qtype, values in by_type.items()}


def _fixed_plan(question: PlanInput, goal: SizeTarget) -> QuantPlan:
    name = (goal.mix or "").upper()
    if name in MIXES:
        types = stock_types(question.model, name, has_imatrix=question.evidence.has_imatrix)
    elif name in GgmlType.__members__ and GgmlType[name].traits.writable:
        types = uniform_types(question.model, GgmlType[name])
    else:
        types_only = [t.name for t in (*FLOAT_TYPES, *MEASURED) if t.name not in MIXES]
        supported = ", ".join([*MIXES, *types_only])
        raise InvalidOption("--type", f"there is no preset or type {goal.mix!r}; there are {supported}")
    damage = question.stock_damage or question.damage
    unmatched = {lock.pattern for lock in question.locks}
    picks = []
    for tensor in question.model.tensors:
        qtype = types[tensor.name]
        lock = _lock_for(tensor, question.locks, unmatched)
        if lock is not None:
            locked = effective_type(GgmlType[lock.qtype], tensor.row_values)
            if not lock.at_least or bits_per_weight(locked) > bits_per_weight(qtype):
                qtype = locked
        source = GgmlType[tensor.qtype]
        if qtype is not source and not question.evidence.has_imatrix and needs_imatrix(tensor.name, qtype):
            raise InvalidOption("--type", f"{goal.mix} needs an importance matrix ({tensor.name} at {qtype.name})")
        row = damage.get(tensor.name, {})
        value = 0.0 if qtype is source or qtype in FLOAT_TYPES else row.get(qtype.name, _nearest(qtype, row))
        exact = _grid(question, tensor.name, qtype)
        value = _exact_loss(question, tensor, qtype, row) if exact else value
        picks.append(_Option(qtype, tensor_bytes(tensor, qtype), value, value, qtype, exact))
    if unmatched:
        raise InvalidOption("--lock", f"no tensor of this model matches {min(unmatched)!r}")
    size = question.header_bytes + sum(padded(p.num_bytes) for p in picks)
    return _assemble(question, goal, _Outcome(picks, [[p] for p in picks], size))


def model_damage(model: ModelSpec, types: Mapping[str, GgmlType], damage: Damage) -> float | None:
    """Predicted KL divergence of any recipe; None if the measurements do not cover it."""
    total = 0.0
    for tensor in model.tensors:
        qtype = types[tensor.name]
        if qtype.name == tensor.qtype or qtype in FLOAT_TYPES:
            continue
        value = damage.get(tensor.name, {}).get(qtype.name)
        if value is None:
            return None
        total += value
    return total


class _Outcome(msgspec.Struct, frozen=True):
    """The choice of the solver or of a preset rule, and the size limit for a preset's whole file."""

    picks: Sequence[_Option]
    options: Sequence[Sequence[_Option]]
    stock_limit: int
    kv: KvOption | None = None
    gap: float = 0.0


def _assemble(question: PlanInput, goal: SizeTarget, outcome: _Outcome) -> QuantPlan:
    picks, kv, options = outcome.picks, outcome.kv, outcome.options
    tensors = tuple(
        TensorPlan(
            name=tensor.name,
            shape=tensor.shape,
            source_qtype=tensor.qtype,
            qtype=pick.qtype.name,
            num_bytes=pick.num_bytes,
            damage=pick.damage,
            locked=any(re.search(lock.pattern, tensor.name) for lock in question.locks),
            wanted=None if pick.wanted is pick.qtype else pick.wanted.name,
            exact=pick.lossless,
            added_rows=question.added.get(tensor.name, 0) if pick.lossless else 0,
        )
        for tensor, pick in zip(question.model.tensors, picks, strict=True)
    )
    stock = stock_plans(question) if question.with_stock else ()
    rival = best_stock(stock, outcome.stock_limit, has_imatrix=question.evidence.has_imatrix)
    return QuantPlan(
        architecture=question.model.architecture,
        goal=goal,
        evidence=question.evidence,
        tensors=tensors,
        kv=kv,
        header_bytes=question.header_bytes,
        file_bytes=question.header_bytes + sum(padded(p.num_bytes) for p in picks),
        smallest_bytes=question.header_bytes + sum(min(padded(o.num_bytes) for o in row) for row in options),
        damage=sum(p.damage for p in picks) + (kv.damage if kv else 0.0),
        gap=outcome.gap,
        decode_cost=_decode_cost(question, picks),
        device=question.device,
        locks=question.locks,
        stock=tuple(_stock_report(s, with_types=s is rival) for s in stock),
        best_stock=rival.name if rival else None,
        notes=_notes(question),
    )


def _stock_report(plan: PresetPlan, *, with_types: bool) -> PresetPlan:
    """The preset as shown in a plan; only the best preset includes the types of all tensors."""
    types = plan.types if with_types else {}
    return PresetPlan(name=plan.name, file_bytes=plan.file_bytes, damage=plan.damage, types=types)


def _decode_cost(question: PlanInput, picks: Sequence[_Option]) -> float:
    names = [t.name for t in question.model.tensors]
    looked_up = {"token_embd.weight", "per_layer_token_embd.weight"} if "output.weight" in names else set()
    time = total = 0.0
    for tensor, pick in zip(question.model.tensors, picks, strict=True):
        if tensor.name in looked_up or not allows_quantization(tensor):
            continue
        time += tensor.num_values * decode_time(pick.qtype, question.device, question.speeds)
        total += tensor.num_values
    return time / total if total else 1.0


def _notes(question: PlanInput) -> tuple[str, ...]:
    blind = [t.name for t in question.model.tensors if allows_quantization(t) and t.name not in question.damage]
    text = "tensors have no evidence and were taken as typical, such as"
    return (f"{len(blind)} {text} {blind[0]}",) if blind else ()


# Exact solver for the multiple-choice knapsack: one option per item, least total cost within a capacity.
#
# A Lagrangian bound fixes most items before the search. If an option's reduced cost is larger than the distance
# between the bound and the best solution, no best solution contains it. The rest is searched as Pareto frontiers of
# (bytes, cost). The allowed distance from the bound is widened until a solution appears, which is the best.

Array = np.ndarray[Any, Any]

# Above this many states, nearly equal ones are merged; the result is then within the reported gap of the best.
# Measured: 8B shapes with measured KL divergence need under 30,000 (log-archive.md, plan).
_MAX_STATES = 400_000
_FIRST_DISTANCE = 1e-3


class KnapsackSolution(msgspec.Struct, frozen=True):
    """The chosen option of each item, the totals, and the maximum distance of the cost from the optimum."""

    options: tuple[int, ...]
    num_bytes: int
    cost: float
    gap: float


class _Item(msgspec.Struct, frozen=True):
    """Undominated options, sorted by bytes, with strictly falling costs.

    `index` are the caller's option numbers.
    """

    num_bytes: Array
    cost: Array
    index: Array


def solve(items: Sequence[tuple[Sequence[int], Sequence[float]]], capacity: int) -> KnapsackSolution | None:
    """Choose one option per item (bytes, costs: same length) with the least total cost within `capacity` bytes.

    Returns None if even the smallest options do not fit. Costs must be finite and not negative.
    """
    reduced = [_undominated(num_bytes, cost) for num_bytes, cost in items]
    if sum(int(i.num_bytes[0]) for i in reduced) > capacity:
        return None
    if sum(int(i.num_bytes[-1]) for i in reduced) <= capacity:
        return _choice(reduced, [len(i.index) - 1 for i in reduced], 0.0)
    price, bound = _dual(reduced, capacity)
    distance = max(abs(bound), 1e-12) * _FIRST_DISTANCE
    while True:
        solution = _search(reduced, capacity, price, distance)
        if solution is not None:
            picks, merged = solution
            result = _choice(reduced, picks, 0.0)
            gap = max(0.0, result.cost - bound) if merged else 0.0
            return KnapsackSolution(result.options, result.num_bytes, result.cost, gap)
        distance *= 4


def _undominated(num_bytes: Sequence[int], cost: Sequence[float]) -> _Item:
    size, price = np.asarray(num_bytes, np.int64), np.asarray(cost, np.float64)
    order = np.lexsort((price, size))
    best = np.minimum.accumulate(price[order])
    keep = np.concatenate(([True], best[1:] < best[:-1]))
    index = order[keep]
    return _Item(size[index], price[index], index)


def _choice(items: list[_Item], picks: Sequence[int], gap: float) -> KnapsackSolution:
    return KnapsackSolution(
        tuple(int(i.index[p]) for i, p in zip(items, picks, strict=True)),
        sum(int(i.num_bytes[p]) for i, p in zip(items, picks, strict=True)),
        float(sum(float(i.cost[p]) for i, p in zip(items, picks, strict=True))),
        gap,
    )


def _hull(item: _Item) -> list[tuple[float, int]]:
    """(cost saved per byte, additional bytes) of each step along the lower convex hull, steepest first."""
    points = [0]
    for k in range(1, len(item.index)):
        while len(points) > 1 and _slope(item, points[-2], points[-1]) <= _slope(item, points[-1], k):
            points.pop()
        points.append(k)
    return [(_slope(item, a, b), int(item.num_bytes[b] - item.num_bytes[a])) for a, b in pairwise(points)]


def _slope(item: _Item, a: int, b: int) -> float:
    return float((item.cost[a] - item.cost[b]) / (item.num_bytes[b] - item.num_bytes[a]))


def _dual(items: list[_Item], capacity: int) -> tuple[float, float]:
    """The Lagrange multiplier (cost per byte) with the best lower bound, and that bound.

    Taking hull steps in order of steepness solves the relaxed problem; the first step that does not fit sets the
    price.
    """
    steps = sorted((step for item in items for step in _hull(item)), reverse=True)
    remaining = capacity - sum(int(i.num_bytes[0]) for i in items)
    price = 0.0
    for slope, size in steps:
        price = slope
        if size > remaining:
            break
        remaining -= size
    bound = sum(float((i.cost + price * i.num_bytes).min()) for i in items) - price * capacity
    return price, bound


def _search(items: list[_Item], capacity: int, price: float, distance: float) -> tuple[list[int], bool] | None:
    """The best solution whose cost is at most `distance` above the bound, and whether states were merged."""
    options: list[Array] = []
    for item in items:
        reduced = item.cost + price * item.num_bytes
        reduced -= reduced.min()
        options.append(np.flatnonzero(reduced <= distance))
    least = sum(int(item.num_bytes[keep[0]]) for item, keep in zip(items, options, strict=True))
    if least > capacity:
        return None
    order = sorted(range(len(items)), key=lambda i: len(options[i]))
    remaining_least = least
    size, cost, away = np.zeros(1, np.int64), np.zeros(1), np.zeros(1)
    trail: list[tuple[Array, Array]] = []
    merged = False
    for i in order:
        keep, item = options[i], items[i]
        remaining_least -= int(item.num_bytes[keep[0]])
        reduced = item.cost + price * item.num_bytes
        reduced = reduced[keep] - reduced.min()
        new_size = (size[:, None] + item.num_bytes[keep][None, :]).ravel()
        new_cost = (cost[:, None] + item.cost[keep][None, :]).ravel()
        new_away = (away[:, None] + reduced[None, :]).ravel()
        alive = np.flatnonzero((new_away <= distance) & (new_size + remaining_least <= capacity))
        alive = alive[np.lexsort((new_cost[alive], new_size[alive]))]
        best = np.minimum.accumulate(new_cost[alive])
        alive = alive[np.concatenate(([True], new_cost[alive][1:] < best[:-1]))] if alive.size else alive
        if alive.size == 0:
            return None
        if alive.size > _MAX_STATES:
            merged = True
            alive = _thinned(alive, new_size)
        trail.append((alive // len(keep), keep[alive % len(keep)]))
        size, cost, away = new_size[alive], new_cost[alive], new_away[alive]
    # The frontier falls in cost as bytes rise, so the last state is the cheapest; it must be within the distance.
    last = len(size) - 1
    if not away[last] + price * (capacity - size[last]) <= distance * (1 + 1e-9):
        return None
    picks = [0] * len(items)
    at = last
    for i, (parent, pick) in zip(reversed(order), reversed(trail), strict=True):
        picks[i] = int(pick[at])
        at = int(parent[at])
    return picks, merged


def _thinned(alive: Array, size: Array) -> Array:
    """One state per range of bytes: the last, which is the cheapest."""
    sizes = size[alive]
    stretch = (sizes - sizes[0]) * (_MAX_STATES // 2) // max(1, int(sizes[-1] - sizes[0]))
    return alive[np.concatenate((stretch[1:] != stretch[:-1], [True]))]
