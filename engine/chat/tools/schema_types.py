"""Finds the JSON types that a tool's schema allows for a parameter that the model wrote as plain text."""

import json
from typing import Any, Final

from engine.chat.tools.lenient_json import LenientJson

_ALL: Final = frozenset({"string", "integer", "number", "boolean", "array", "object", "null"})
_MAX_REFERENCES: Final = 16
_WORDS: Final = {"true": True, "false": False, "null": None, "none": None}


def properties(schema: dict[str, Any]) -> dict[str, Any]:
    """The named parameters of a schema."""
    members = schema.get("properties")
    return members if isinstance(members, dict) else {}


def referred(schema: Any, root: dict[str, Any]) -> dict[str, Any]:
    """The target of a reference within the document; the schema itself if it is not a reference."""
    for _ in range(_MAX_REFERENCES):
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(reference, str) or not reference.startswith("#/"):
            break
        schema = root
        for step in reference[2:].split("/"):
            schema = schema.get(step) if isinstance(schema, dict) else None
    return schema if isinstance(schema, dict) else {}


def allowed_types(schema: Any, root: dict[str, Any], depth: int = 0) -> frozenset[str]:  # noqa: PLR0911 - one exit per keyword
    """The types that a value may have; all types if the schema does not restrict them."""
    if not isinstance(schema, dict) or depth > _MAX_REFERENCES:
        return _ALL
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        target: Any = root
        for step in reference[2:].split("/"):
            target = target.get(step) if isinstance(target, dict) else None
        return allowed_types(target, root, depth + 1)
    kind = schema.get("type")
    if isinstance(kind, str):
        return frozenset({kind})
    if isinstance(kind, list):
        return frozenset(str(one) for one in kind)
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(key), list):
            return frozenset().union(*(allowed_types(one, root, depth + 1) for one in schema[key]))
    if isinstance(schema.get("enum"), list):
        return frozenset(_type_of(value) for value in schema["enum"])
    return _ALL


def _type_of(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    names = {str: "string", int: "integer", float: "number", list: "array", dict: "object"}
    return names.get(type(value), "string")


def typed(text: str, types: frozenset[str]) -> str:
    """The JSON text of a parameter value.

    A value that parses as an allowed type other than string becomes that type. Otherwise it is a string, if strings
    are allowed or nothing better fits.
    """
    bare = text.strip()
    if types == {"string"}:
        return json.dumps(text, ensure_ascii=False)
    try:
        value = json.loads(bare)
    except (ValueError, RecursionError):
        value = _WORDS.get(bare.lower(), text) if bare.lower() in _WORDS else _loose(bare, text, types)
    kind = _type_of(value)
    fits = kind in types or (kind == "integer" and "number" in types)
    if kind == "number" and "integer" in types and float(value).is_integer():
        value, fits = int(value), True
    if kind == "string" and value != text and "string" in types:
        value = text  # quotation marks that belong to the text
    if not fits and "string" in types:
        value = text
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _loose(bare: str, text: str, types: frozenset[str]) -> object:
    """Objects and lists in Python's notation."""
    if not ((bare.startswith("{") and "object" in types) or (bare.startswith("[") and "array" in types)):
        return text
    parser = LenientJson()
    remaining = parser.feed(bare)
    if not parser.done or remaining.strip():
        return text
    return json.loads("".join(fragment.text for fragment in parser.take()))
