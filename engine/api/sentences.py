"""Encodes API responses: adds English sentences to their facts, and the names that older clients read.

Each fact gets its sentence as `text`. With `reason_detail` it is also sent as `reason`, with `note_details` as
`notes`.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import msgspec

from devices.memory_ledger import Reservation
from engine.core import sendable
from engine.message_catalog import command
from engine.message_catalog.reasons import Reason
from engine.placement.types import FitOption, Placement

# Additional fields for clients, with their types and values.
_ADDED: Final[dict[type, dict[str, tuple[Any, Callable[[Any], object]]]]] = {
    Reservation: {
        "predicted_bytes": (int, lambda r: r.predicted_bytes),
        "devices": (
            dict[str, int],
            lambda r: {device: amount.total_bytes for device, amount in r.amounts.items()},
        ),
    },
    FitOption: {"text": (str, lambda option: str(option.change)), "flags": (str, lambda o: command(o.change))},
    Placement: {
        "n_ctx": (int, lambda placed: placed.settings.n_ctx),
        "n_gpu_layers": (int, lambda placed: placed.settings.n_gpu_layers),
        "n_threads": (int, lambda placed: placed.settings.n_threads),
        "type_k": (str, lambda placed: placed.settings.type_k),
        "type_v": (str, lambda placed: placed.settings.type_v),
    },
}


def encoded(answer: object) -> bytes:
    """An answer as JSON, with sentences."""
    kind: Any = type(answer)
    return sendable.encoded(with_sentences(answer) if _may_grow(kind) else answer)


def with_sentences(answer: object) -> Any:
    """An answer as JSON types, with sentences."""
    built = msgspec.to_builtins(answer)
    _add(answer, built)
    return built


def described(schemas: dict[str, Any]) -> dict[str, Any]:
    """The schemas of structs with the fields that `with_sentences` adds."""
    text = {"type": "string"}
    for schema in schemas.values():
        fields = schema.get("properties", {})
        for wire_name, form in tuple(fields.items()):
            if Reason.__name__ in str(form) and (name := _sentence_name(wire_name)):
                fields.setdefault(name, {"type": "array", "items": text} if "items" in form else text)
    for kind, added in _ADDED.items():
        if kind.__name__ in schemas:
            more = {name: msgspec.json.schema(form) for name, (form, _) in added.items()}
            schemas[kind.__name__]["properties"].update(more)
    return schemas


@cache
def _may_grow(kind: Any) -> bool:
    """Return True if `with_sentences` may add something to answers of this type."""
    parts = msgspec.json.schema_components([kind])[1]
    return not parts.keys().isdisjoint(part.__name__ for part in (Reason, *_ADDED))


def _add(value: object, built: Any) -> None:
    if isinstance(value, Reason):
        built["text"] = str(value)
    elif isinstance(value, msgspec.Struct) and isinstance(built, dict):
        for name, wire_name in zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True):
            facts = getattr(value, name)
            _add(facts, built.get(wire_name))
            if wire_name in built and _are_facts(facts) and (sentence_name := _sentence_name(wire_name)):
                words = [str(fact) for fact in facts] if isinstance(facts, tuple) else str(facts or "")
                built.setdefault(sentence_name, words)
        for name, (_, found_in) in _ADDED.get(type(value), {}).items():
            built[name] = found_in(value)
    elif isinstance(value, dict):
        for key, item in value.items():
            _add(item, built.get(key))
    elif isinstance(value, list | tuple) and isinstance(built, list | tuple):
        for item, item_built in zip(value, built, strict=True):
            _add(item, item_built)


def _are_facts(value: object) -> bool:
    several = value if isinstance(value, tuple) else (value,)
    return value is None or all(isinstance(item, Reason) for item in several)


def _sentence_name(wire_name: str) -> str:
    """The field name of the sentence for a fact with this name; empty if it has none."""
    if wire_name.endswith("_details"):
        return wire_name.removesuffix("_details") + "s"
    return wire_name.removesuffix("_detail") if wire_name.endswith("_detail") else ""
