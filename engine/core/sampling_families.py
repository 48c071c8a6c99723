"""The table of families and what their publishers recommend (sampling_families.toml)."""

import re
import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import msgspec

from devices.msgspec_lock import learned
from engine.core.sampling import Layer


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table."""

    architectures: frozenset[str]
    name: str
    source: str
    values: dict[str, float | int]
    thinking: dict[str, float | int] | None = None


@cache
def families() -> tuple[Family, ...]:
    """The whole table."""
    raw = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return msgspec.convert(raw["family"], learned(tuple[Family, ...]))


def of_card(architecture: str, names: Iterable[str]) -> tuple[Layer, Layer] | None:
    """What the model card recommends, without and with reasoning; None: the family is not in the table."""
    known = "\n".join(names)
    for family in families():
        if architecture in family.architectures and re.search(family.name, known, re.IGNORECASE):
            plain = Layer(source="model_card", values=family.values, link=family.source)
            if family.thinking is None:
                return plain, plain
            return plain, msgspec.structs.replace(plain, values=family.thinking)
    return None
