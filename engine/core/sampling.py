"""Chooses the sampling parameters that a request leaves open. No other module decides this.

Each field comes from the first of these that sets it: the request, the user's settings for the model, the file, the
publisher's generation_config.json, the family's model card, llama.cpp's own defaults.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from devices.msgspec_lock import learned
from engine.core.errors import ContextOverflow
from engine.core.types import ModelFacts, SamplingParams
from quantize.files.sampling_keys import BOUNDS, SAMPLING, Value

Source = Literal["request", "user", "file", "generation_config", "model_card", "llama.cpp", "ollama"]
LLAMA_CPP: Final = {name: row.llama_cpp for name, row in SAMPLING.items() if row.llama_cpp is not None}


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """The values of one source; `link` is the URL of that source, if it has one."""

    source: Source
    values: dict[str, Value]
    link: str = ""


class Recommended(msgspec.Struct, frozen=True, kw_only=True):
    """The recommended values of a model, strongest source first, with and without a reasoning block.

    With `reasons` a chat that does not switch reasoning gets the block.
    """

    plain: tuple[Layer, ...] = ()
    thinking: tuple[Layer, ...] = ()
    reasons: bool = False

    def layers(self, thinking: bool | None) -> tuple[Layer, ...]:
        """Return the layers for a request; `thinking` None means that it does not switch reasoning."""
        return self.thinking if self.reasons and thinking is not False else self.plain


NOTHING_RECOMMENDED: Final = Recommended()


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """The effective parameters. `sources` names the source of each field that one has set; all others are neutral.

    `explicit` are the fields that the request set.
    """

    params: SamplingParams
    sources: dict[str, Source]
    links: dict[str, str] = {}
    explicit: tuple[str, ...] = ()

    def facts(self) -> dict[str, dict[str, Any]]:
        """Return the parameters as responses and model lists show them: value, source, and link."""
        facts_by_name = {}
        for name, source in self.sources.items():
            link = {"link": self.links[name]} if name in self.links else {}
            facts_by_name[name] = {"value": getattr(self.params, name), "source": source, **link}
        return facts_by_name


def choose(requested: Mapping[str, Any], layers: Iterable[Layer] = (), source: Source = "request") -> Chosen:
    """The sampling parameters of a request that sets `requested`; an explicit neutral value stays neutral."""
    values = dict(requested)
    sources: dict[str, Source] = {name: source for name in BOUNDS if name in requested}
    links: dict[str, str] = {}
    for layer in (*layers, Layer(source="llama.cpp", values=dict(LLAMA_CPP))):
        for name, value in layer.values.items():
            if name not in values:
                values[name] = value
                sources[name] = layer.source
                if layer.link:
                    links[name] = layer.link
    ordered = {name: sources[name] for name in BOUNDS if name in sources}
    return Chosen(params=SamplingParams(**values), sources=ordered, links=links, explicit=tuple(requested))


def only_explicit(chosen: Chosen) -> Chosen:
    """Keep only the fields that the request set: another server chooses the rest."""
    params = SamplingParams(**{name: getattr(chosen.params, name) for name in chosen.explicit})
    sources = {name: source for name, source in chosen.sources.items() if name in chosen.explicit}
    return Chosen(params=params, sources=sources, explicit=chosen.explicit)


def recommended(
    *,
    user: Mapping[str, Value],
    file: Mapping[str, Value],
    publisher: Mapping[str, Value],
    card: "tuple[Layer, Layer] | None",
    reasons: bool,
) -> Recommended:
    """Return all layers of a model; `card` has the family's, without and with reasoning."""
    common = [
        Layer(source="user", values=dict(user)),
        Layer(source="file", values=dict(file)),
        Layer(source="generation_config", values=dict(publisher)),
    ]
    present = tuple(layer for layer in common if layer.values)
    if card is None:
        return Recommended(plain=present, thinking=present, reasons=reasons)
    return Recommended(plain=(*present, card[0]), thinking=(*present, card[1]), reasons=reasons)


def refuse_impossible(facts: ModelFacts, length: int, *, text: bool = True) -> None:
    """Refuse a prompt of `length` characters, or token ids, that cannot fit whatever its content.

    Raises: ContextOverflow.
    """
    per_token = facts.longest_token_bytes if text else 1
    least = -(-length // per_token) if per_token else 0
    if least > facts.largest_ctx:
        raise ContextOverflow(least, facts.largest_ctx, at_least=text)


# The table of families and their publishers' recommendations (sampling_families.toml).


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table."""

    architectures: frozenset[str]
    name: str
    source: str
    values: dict[str, float | int]
    thinking: dict[str, float | int] | None = None


@cache
def families() -> tuple[Family, ...]:
    """Return the whole table."""
    raw = tomllib.loads(Path(__file__).with_name("sampling_families.toml").read_text(encoding="utf-8"))
    return msgspec.convert(raw["family"], learned(tuple[Family, ...]))


def of_card(architecture: str, names: Iterable[str]) -> tuple[Layer, Layer] | None:
    """Return the model card's values, without and with reasoning; None if the family is not in the table."""
    all_names = "\n".join(names)
    for family in families():
        if architecture in family.architectures and re.search(family.name, all_names, re.IGNORECASE):
            plain = Layer(source="model_card", values=family.values, link=family.source)
            if family.thinking is None:
                return plain, plain
            return plain, msgspec.structs.replace(plain, values=family.thinking)
    return None
