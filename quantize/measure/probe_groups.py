"""Groups tensors for swapping to measure sensitivity, and divides a band's result among its layers.

The same weights of neighbouring layers have similar sensitivities, and KL divergences add up. In tier balanced, one
swap therefore measures a band of layers, and a curve through the bands gives the value of each layer.
"""

import re
from collections.abc import Mapping
from itertools import pairwise
from statistics import median

import msgspec
import numpy as np

from quantize.files.measurement_folder import SharedInputGroup
from quantize.types import Tier

_LAYER = re.compile(r"^blk\.(\d+)\.")
# Layers measured alone, where sensitivity changes quickly; the layers between them form bands of about equal
# length. Measured: log-archive.md, "Quantization in minutes" ("Bands").
_ROLES = 4  # groups of a typical layer: q, k and v; attention's output; gate and up; down
_FIRST_ALONE, _LAST_ALONE, _BANDS = 2, 1, 6
_STANDS_OUT = 2.5  # outlier factor relative to a band's median error, up or down
# Every second position is compared after a swap, because neighbours say little more. With every eighth, the head's
# product takes less time, but the plan of the bundled toy at Q3_K_M's bytes loses 1.046 times (1.031 to 1.063) as
# much.
SCORED_STEP = 2


class ProbeGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Tensors that are swapped together: groups of one role in neighbouring layers, or a single tensor."""

    name: str
    members: tuple[str, ...]
    groups: tuple[SharedInputGroup, ...]
    role: str = ""
    layer: float = 0.0  # the middle of the band


def probe_units(
    groups: tuple[SharedInputGroup, ...], tier: Tier, errors: Mapping[str, float] | None = None
) -> list[ProbeGroup]:
    """The swaps of a tier, in the order of the model's roles: bands (balanced) or tensors (max).

    With `errors`, the relative error of each tensor's swap, outlier layers of a band are measured alone. A layer
    whose inputs have a few huge values has a tiny relative error, but a huge effect per unit of error.
    """
    if tier == "max":
        return [ProbeGroup(name=n, members=(n,), groups=(g,)) for g in groups for n in g.members]
    roles: dict[str, list[SharedInputGroup]] = {}
    for group in groups:
        roles.setdefault(_role(group), []).append(group)
    units = []
    for role, members in roles.items():
        ordered = sorted(members, key=_layer)
        for band in _bands(len(ordered)):
            together, alone = _outstanding(ordered[band.start : band.stop], errors or {})
            units += [_unit(role, some) for some in (together, *([g] for g in alone)) if some]
    return units


def _outstanding(
    band: list[SharedInputGroup], errors: Mapping[str, float]
) -> tuple[list[SharedInputGroup], list[SharedInputGroup]]:
    """The layers of a band that are swapped together, and the outliers by error."""
    sizes = {g.name: sum(errors.get(n, 0.0) for n in g.members) for g in band}
    usual = median(sizes.values())
    odd = [g for g in band if len(band) > 1 and not usual / _STANDS_OUT <= sizes[g.name] <= usual * _STANDS_OUT]
    return [g for g in band if g not in odd], odd


def _unit(role: str, groups: list[SharedInputGroup]) -> ProbeGroup:
    layers = [_layer(g) for g in groups]
    first = groups[0].name
    return ProbeGroup(
        name=first if len(groups) == 1 else f"{first} {','.join(map(str, layers))}",
        members=tuple(n for g in groups for n in g.members),
        groups=tuple(groups),
        role=role,
        layer=float(np.mean(layers)),
    )


def probes(num_layers: int, tier: Tier, num_matrices: int) -> int:
    """Approximate number of swaps for a model with this many layers and matrices."""
    return num_matrices if tier == "max" else _ROLES * len(_bands(num_layers)) + 2


def representatives(groups: tuple[SharedInputGroup, ...], tier: Tier) -> dict[str, str]:
    """For each group, the group whose GPTQ errors represent it.

    This is the middle of its band; in tier max it is the group itself.
    """
    if tier == "max":
        return {g.name: g.name for g in groups}
    return {
        g.name: unit.groups[len(unit.groups) // 2].name for unit in probe_units(groups, tier) for g in unit.groups
    }


def alphas(units: list[ProbeGroup], swapped: Mapping[str, float], errors: Mapping[str, float]) -> dict[str, float]:
    """Sensitivity (KL divergence per unit of error) by tensor.

    `swapped` is the mean KL divergence by unit, `errors` the relative error of the swap by tensor. Within a band,
    layers follow the line through the logarithms of neighbouring bands, and add up to the band's value.
    """
    alpha_by_unit: dict[str, float] = {}
    curves: dict[str, list[tuple[float, float]]] = {}
    for unit in units:
        error = sum(errors.get(n, 0.0) for n in unit.members)
        alpha = swapped[unit.name] / error if error > 0 else 0.0
        alpha_by_unit |= dict.fromkeys(unit.members, alpha)
        if alpha > 0 and len(unit.groups) > 1:  # layers measured alone are outliers and not part of the curve
            curves.setdefault(unit.role, []).append((unit.layer, float(np.log(alpha))))
    for unit in units:
        if len(unit.groups) < 2 or unit.role not in curves:
            continue
        layers, logs = zip(*curves[unit.role], strict=True)
        shape = {g.name: float(np.exp(np.interp(_layer(g), layers, logs))) for g in unit.groups}
        expected = sum(shape[g.name] * errors.get(n, 0.0) for g in unit.groups for n in g.members)
        scale = swapped[unit.name] / expected if expected > 0 else 0.0
        alpha_by_unit |= {n: scale * shape[g.name] for g in unit.groups for n in g.members}
    return alpha_by_unit


def _layer(group: SharedInputGroup) -> int:
    match = _LAYER.match(group.name)
    return int(match[1]) if match else -1


def _role(group: SharedInputGroup) -> str:
    return " ".join(_LAYER.sub("blk.*.", n) for n in sorted(group.members))


def _bands(count: int) -> list[slice]:
    alone = _FIRST_ALONE + _LAST_ALONE
    if count <= alone + _BANDS:
        return [slice(i, i + 1) for i in range(count)]
    edges = np.linspace(_FIRST_ALONE, count - _LAST_ALONE, _BANDS + 1).round().astype(int).tolist()
    starts = [*range(_FIRST_ALONE), *edges, *range(count - _LAST_ALONE + 1, count + 1)]
    return [slice(a, b) for a, b in pairwise(starts)]
