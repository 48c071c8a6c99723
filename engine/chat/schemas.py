"""Converts clients' JSON schemas to schemas that the grammar engine can enforce.

Removes keywords without effect, and rewrites keywords that have an enforceable form.
"""

import itertools
import json
import re
from collections.abc import Callable
from types import NoneType
from typing import Any, Final

# A JSON schema: an object, or true and false.
Schema = Any
# Source: llguidance 1.9.1, json/formats.rs. By the standard an unknown format is an annotation.
FORMATS: Final = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}
)
# Formats that the engine checks only in part, as whole patterns. Without year 0 and leap seconds, because the date
# types of programming languages refuse them.
_YEAR: Final = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9][0-9]|[0-9][1-9][0-9]{2}|[1-9][0-9]{3})"
_LEAP_YEAR: Final = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE: Final = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    f"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
_TIME: Final = (
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
_LABEL: Final = (  # at most 63 characters, without the two hyphens of encoded international names
    "[A-Za-z0-9](?:[A-Za-z0-9-]{0,2}[A-Za-z0-9]"
    "|[A-Za-z0-9-](?:[A-Za-z0-9][A-Za-z0-9-]|-[A-Za-z0-9])[A-Za-z0-9-]{0,58}[A-Za-z0-9])?"
)
_PATTERNS: Final = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}T{_TIME}$",
    "hostname": rf"^{_LABEL}(?:\.{_LABEL})*$",
}
# Rules about member names that have the form of a list or of a pattern.
_NAME_RULES: Final = frozenset({"type", "enum", "const", "pattern", "minLength", "maxLength", "format"})
_OCTET: Final = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_NAME_FORMATS: Final = {
    "uuid": "^[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$",
    "ipv4": rf"^(?:{_OCTET}\.){{3}}{_OCTET}$",
}
_MEANT_TYPES: Final = {"properties": "object", "items": "array"}
# Keywords that say which types a value may have.
_TYPED_BY: Final = frozenset(
    {"type", "enum", "const", "$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "not", "if"}
)
_STRING_TYPES: Final = ("string", ["string"])
_HOSTNAME_LENGTH: Final = 253
# Before 2019 other keywords next to a reference are ignored.
_BESIDE_REFERENCES: Final = frozenset({"$ref", "$schema", "$id", "id", "$defs", "definitions"})
_OLD_DRAFT: Final = re.compile(r"draft-0[3467]/")
# More elements than any context holds: 65,536 elements of a list are at least 131,072 tokens.
MAX_COUNT: Final = 65_536
_ANNOTATIONS: Final = frozenset(
    {
        "title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "$comment",
        "contentEncoding", "contentMediaType", "contentSchema", "xml", "externalDocs", "nullable",
        "x-guidance",  # options of the grammar engine, which clients may not set
    }
)  # fmt: skip
TYPES: Final = frozenset({"string", "integer", "number", "boolean", "array", "object", "null"})
COUNTS: Final = tuple(
    f"{s}{what}" for s in ("min", "max") for what in ("Items", "Length", "Properties", "Contains")
)
NUMBERS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
# Keywords that evaluate members and elements in addition to `properties` and `items`.
_APPLICATORS: Final = ("allOf", "anyOf", "oneOf", "$ref", "if", "dependentSchemas", "dependencies", "$dynamicRef")
MAPS: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
LISTS: Final = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE: Final = (
    "additionalProperties", "items", "additionalItems", "contains", "not", "if", "then", "else", "propertyNames",
    "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip
_PATHS: Final = {"items": "[]", "prefixItems": "[]", "additionalProperties": "*"}
# Keywords about members that `properties` does not name.
_OPENING: Final = frozenset({"additionalProperties", "patternProperties", "unevaluatedProperties", *_APPLICATORS})
# Keywords that decide which members an object has.
_MEMBER_RULES: Final = _OPENING | frozenset(
    {
        "properties", "required", "minProperties", "maxProperties", "propertyNames", "dependentRequired", "not",
        "enum", "const", "then", "else", "$recursiveRef",
    }
)  # fmt: skip
_MERGED: Final = frozenset({"properties", "required", "unevaluatedProperties"})
_MAX_MERGED: Final = 2_000
# A grammar of more names is not worth it.
_MAX_NAMES: Final = 256
_MAX_REFERENCES: Final = 16


def tidy(schema: Schema) -> Schema:
    """The same schema without keywords that have no effect, and in an enforceable form where possible."""
    return _tidy(schema, schema)


def typed(schema: Schema) -> Schema:
    """The same schema where a value with `properties` or `items` but no type is an object or a list.

    The standard also allows numbers and texts there, which nobody means and weak models write. Branches stay as
    they are: a narrower branch of a oneOf would let values fit another branch alone.
    """
    if not isinstance(schema, dict):
        return schema
    out = dict(schema)
    if not out.keys() & _TYPED_BY:
        kinds = [kind for key, kind in _MEANT_TYPES.items() if isinstance(out.get(key), dict) and out[key]]
        out |= {"type": kinds[0]} if kinds else {}
    if isinstance(out.get("properties"), dict):
        out["properties"] = {name: typed(part) for name, part in out["properties"].items()}
    if "items" in out:
        out["items"] = typed(out["items"])
    return out


def shape(schema: dict[str, Any]) -> dict[str, Any]:
    """An object's schema reduced to the names of its members."""
    names = schema.get("properties")
    if not isinstance(names, dict) or not names:
        return {"type": "object"}
    listed = schema.get("required")
    required = [name for name in listed if name in names] if isinstance(listed, list) else []
    shown = list(names) if len(names) <= _MAX_NAMES else required[:_MAX_NAMES]
    whole = len(shown) == len(names) and len(required) == len(listed or ()) and not _OPENING & schema.keys()
    closing = {"additionalProperties": False} if whole else {}
    members: dict[str, Schema] = {name: {} for name in shown}
    return {"type": "object", "properties": members, "required": required[:_MAX_NAMES], **closing}


def closed(schema: Schema) -> Schema:
    """The same schema that allows only named members in objects that name some and do not mention others.

    All its values are valid for the given schema. Parts whose members are also named by other parts stay open.
    """
    if not isinstance(schema, dict):
        return schema
    return _Closing(schema).closed()


class _Closing:
    """Finds objects whose members are all named in one place, and closes them."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._num_merged = 0
        self._root = schema
        self._merged_definitions: dict[str, Schema] = {}
        self._root = self._merged(schema)
        self._shared: set[str] = set()  # references whose target is only one part of an object

    def closed(self) -> Schema:
        """The schema with these objects closed; unchanged if references point into the middle of it."""
        num_shared = -1
        while num_shared < len(self._shared):
            num_shared = len(self._shared)
            self._collect_references(self._root, alone="#" not in self._shared)
            for pointer, part in self._definitions():
                self._collect_references(part, alone=pointer not in self._shared)
        if self._shared - {"#", *(pointer for pointer, _ in self._definitions())}:
            return self._root
        return self._close(self._root, alone="#" not in self._shared)

    def _definitions(self) -> list[tuple[str, Schema]]:
        return [
            (f"#/{key}/{name}", part)
            for key in ("$defs", "definitions")
            if isinstance(self._root.get(key), dict)
            for name, part in self._root[key].items()
        ]

    def _merged(self, node: Schema) -> Schema:
        """Merge objects in several parts (allOf), if each part only names members."""
        if not isinstance(node, dict):
            return node
        out = dict(node)
        pointers = {id(part): pointer for pointer, part in self._definitions()} if node is self._root else {}
        change_parts(
            out,
            lambda part, _: self._definition(pointers[id(part)]) if id(part) in pointers else self._merged(part),
        )
        branches = out.get("allOf")
        if not isinstance(branches, list) or not branches or out.keys() & (_MEMBER_RULES - _MERGED - {"allOf"}):
            return out
        own = {key: out[key] for key in ("type", "properties", "required") if key in out}
        parts = [*(self._branch(branch) for branch in branches), own]  # members are written in this order
        if not all(_only_names(part) for part in parts):
            return out
        members: dict[str, Schema] = {}
        required: dict[str, None] = {}
        for part in parts:
            required.update(dict.fromkeys(part.get("required", ())))
            for name, value in part.get("properties", {}).items():
                same = name not in members or members[name] == value
                members[name] = value if same else {"allOf": [members[name], value]}
            self._num_merged += len(part.get("properties", ()))
        if self._num_merged > _MAX_MERGED:
            return out
        del out["allOf"]
        is_object = any("type" in part for part in parts)
        out |= {"properties": members, "required": list(required), **({"type": "object"} if is_object else {})}
        if out.get("unevaluatedProperties") is False:
            out["additionalProperties"] = out.pop("unevaluatedProperties")
        return out

    def _branch(self, branch: Schema) -> Schema:
        """The target of a part that is only a reference; other parts unchanged."""
        if not isinstance(branch, dict) or branch.keys() - _ANNOTATIONS != {"$ref"}:
            return branch
        return self._definition(str(branch["$ref"]))

    def _definition(self, pointer: str) -> Schema:
        """A definition with its parts merged, each once; True if it is missing or being merged."""
        if pointer not in self._merged_definitions:
            self._merged_definitions[pointer] = True
            definition = dict(self._definitions()).get(pointer, True)
            self._merged_definitions[pointer] = self._merged(definition)
        return self._merged_definitions[pointer]

    def _collect_references(self, node: Schema, *, alone: bool) -> None:
        """Find references to parts that are not the whole of an object."""
        if not isinstance(node, dict):
            return
        rules = node.keys() & _MEMBER_RULES
        reference = node.get("$ref")
        if isinstance(reference, str) and not (alone and rules == {"$ref"}):
            self._shared.add(reference)
        for part, part_alone in self._parts(node, alone=alone):
            self._collect_references(part, alone=part_alone)

    @staticmethod
    def _parts(node: dict[str, Any], *, alone: bool) -> list[tuple[Schema, bool]]:
        """The direct subschemas except definitions, and whether each describes the whole of its value."""
        parts: list[tuple[Schema, bool]] = []
        rules = node.keys() & _MEMBER_RULES
        # If other parts may describe the same members, their values are not described here alone.
        single = alone and not _has_other_parts(node, node.get("properties"))
        for key in ("properties", "patternProperties"):
            if isinstance(node.get(key), dict):
                parts += [(part, single) for part in node[key].values()]
        for key in (
            "additionalProperties",
            "unevaluatedProperties",
            "items",
            "additionalItems",
            "unevaluatedItems",
        ):
            value = node.get(key)
            parts += [(part, single) for part in (value if isinstance(value, list) else [value])]
        if isinstance(node.get("prefixItems"), list):
            parts += [(part, single) for part in node["prefixItems"]]
        for key in ("anyOf", "oneOf", "allOf"):
            if isinstance(node.get(key), list):
                # A value that matches two branches violates oneOf; closed branches would accept it.
                whole = alone and rules == {key} and (key == "anyOf" or (key == "allOf" and len(node[key]) == 1))
                parts += [(part, whole) for part in node[key]]
        parts += [(node.get(key), False) for key in ("if", "then", "else", "not", "contains", "propertyNames")]
        for key in ("dependentSchemas", "dependencies"):
            if isinstance(node.get(key), dict):
                parts += [(part, False) for part in node[key].values()]
        return parts

    def _close(self, node: Schema, *, alone: bool) -> Schema:
        if not isinstance(node, dict):
            return node
        out = dict(node)
        inner: dict[int, bool] = {}
        for part, part_alone in self._parts(node, alone=alone):
            inner[id(part)] = part_alone and inner.get(id(part), True)
        if node is self._root:
            inner |= {id(part): pointer not in self._shared for pointer, part in self._definitions()}
        change_parts(out, lambda part, _: self._close(part, alone=inner.get(id(part), False)))
        names, required = out.get("properties"), required_names(out)
        if alone and isinstance(names, dict) and names and required is not None and _is_closable(out, names):
            out["properties"] = {**names, **{name: {} for name in required if name not in names}}
            out["additionalProperties"] = False
        return out


def required_names(node: dict[str, Any]) -> list[str] | None:
    """The required members; None if the value is not a list of names."""
    listed = node.get("required", [])
    return listed if isinstance(listed, list) and all(isinstance(name, str) for name in listed) else None


def _only_names(part: Schema) -> bool:
    """Whether a part of an object states only which members it has, their schemas, and which are required."""
    if not isinstance(part, dict) or part.keys() - _ANNOTATIONS - {"type", "properties", "required"}:
        return False
    is_plain = isinstance(part.get("properties", {}), dict) and required_names(part) is not None
    return is_plain and part.get("type", "object") == "object"


def _is_closable(node: dict[str, Any], names: dict[str, Any]) -> bool:
    """Whether nothing in it describes members that are not named."""
    harmless = {"properties", "required", "minProperties", "maxProperties", "anyOf", "oneOf"}
    least = node.get("minProperties", 0)
    if node.keys() & (_MEMBER_RULES - harmless) or not isinstance(least, int) or least > len(names):
        return False
    return not _has_other_parts(node, names)


def _has_other_parts(node: dict[str, Any], names: object) -> bool:
    """Whether other schemas describe the same value, beyond the required members."""
    if node.keys() & (set(_APPLICATORS) - {"anyOf", "oneOf"}):
        return True
    branches = [node.get(key, []) for key in ("anyOf", "oneOf")]
    props = names if isinstance(names, dict) else {}
    return not all(
        isinstance(listed, list) and all(_only_requires(branch, props) for branch in listed) for listed in branches
    )


def _only_requires(branch: Schema, names: dict[str, Any]) -> bool:
    if not isinstance(branch, dict) or branch.keys() - _ANNOTATIONS - {"required", "type"}:
        return False
    required = required_names(branch)
    return required is not None and all(name in names for name in required)


def _tidy(schema: Schema, root: Schema) -> Schema:
    if not isinstance(schema, dict):
        return schema
    out = {key: value for key, value in schema.items() if key not in _ANNOTATIONS}
    if "$ref" in out and _OLD_DRAFT.search(str(root.get("$schema"))):
        out = {key: value for key, value in out.items() if key in _BESIDE_REFERENCES}
    if schema is not root:
        out.pop("$schema", None)
    _tidy_reference_siblings(out, root)
    change_parts(out, lambda part, _: _tidy(part, root))
    if "not" in out and _allows_anything(out["not"]):
        return False  # a schema that forbids every value matches nothing
    _tidy_numbers(out)
    _tidy_lists(out)
    _tidy_conditions(out)
    _tidy_names(out, root)
    _tidy_patterns(out)
    branches = [resolved(branch, root) for branch in out["oneOf"]] if isinstance(out.get("oneOf"), list) else []
    if branches and "anyOf" not in out and all(_differ(a, b, root) for a, b in itertools.combinations(branches, 2)):
        out["anyOf"] = out.pop("oneOf")
    _tidy_format(out)
    if isinstance(out.get("type"), str) and out["type"].lower() in TYPES:
        out["type"] = out["type"].lower()  # Gemini's SDKs write STRING
    return out


def _tidy_reference_siblings(out: dict[str, Any], root: Schema) -> None:
    """Remove keywords without effect next to branches: next to a reference to itself, none can be compiled."""
    listed = [out[key] for key in ("anyOf", "oneOf") if isinstance(out.get(key), list)]
    listed += [[{"$ref": out["$ref"]}]] if "$ref" in out else []
    if not listed or out.keys() & {"properties", "patternProperties"}:
        return
    for key in ("additionalProperties", "items"):
        if _allows_anything(out.get(key)):
            del out[key]
    kinds = types_of(out)
    for branches in listed:
        resolved_branches = [resolved(branch, root) for branch in branches]
        if kinds and all(
            isinstance(part, dict) and types_of(part) and types_of(part) <= kinds for part in resolved_branches
        ):
            out.pop("type", None)


def _tidy_format(out: dict[str, Any]) -> None:
    form = out.get("format")
    if not isinstance(form, str) or form not in FORMATS:
        out.pop("format", None)
        return
    if form not in _PATTERNS:
        return
    full = {"pattern": _PATTERNS[form]}
    if "pattern" not in out:
        out |= full
    elif isinstance(out.get("allOf", []), list):
        out["allOf"] = [*out.get("allOf", ()), full]
    else:
        return
    del out["format"]
    if form == "hostname" and isinstance(out.get("maxLength", 0), int):
        out["maxLength"] = min(out.get("maxLength", _HOSTNAME_LENGTH), _HOSTNAME_LENGTH)


def change_parts(node: dict[str, Any], change: Callable[[Schema, str], Schema]) -> None:
    """Replace every direct subschema; `change` gets it and the name of its position."""
    for key in MAPS:
        if isinstance(node.get(key), dict):
            prefix = f"{key}/" if key in {"$defs", "definitions"} else ""
            node[key] = {name: change(part, f"{prefix}{name}") for name, part in node[key].items()}
    for key in LISTS:
        if isinstance(node.get(key), list):
            node[key] = [change(part, _PATHS.get(key, "")) for part in node[key]]
    for key in _SINGLE:
        if isinstance(node.get(key), (dict, bool)):
            node[key] = change(node[key], _PATHS.get(key, ""))
        elif isinstance(node.get(key), list):  # `items` in drafts before 2020-12
            node[key] = [change(part, "[]") for part in node[key]]


def _allows_anything(schema: Schema) -> bool:
    return schema is True or schema == {}


def _tidy_numbers(out: dict[str, Any]) -> None:
    for key in COUNTS:
        count = out.get(key)
        if isinstance(count, float) and count.is_integer():
            count = out[key] = int(count)  # JavaScript and YAML write 2.0
        if not isinstance(count, int) or key in {"minContains", "maxContains"}:
            continue
        if (key.startswith("min") and count == 0) or (key.startswith("max") and count > MAX_COUNT):
            del out[key]
    for plain, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        # In draft 4 this keyword is a flag for the other bound.
        if isinstance(out.get(exclusive), bool) and out.pop(exclusive) and plain in out:
            out[exclusive] = out.pop(plain)


def _tidy_lists(out: dict[str, Any]) -> None:
    if out.get("uniqueItems") is False or out.get("maxItems") in (0, 1):
        out.pop("uniqueItems", None)
    optional = out.get("minContains") == 0 and "maxContains" not in out
    if "contains" not in out or optional:
        for key in ("contains", "minContains", "maxContains"):
            out.pop(key, None)
    remaining = out.get("unevaluatedItems", True)
    if _allows_anything(remaining):
        out.pop("unevaluatedItems", None)
    elif not any(key in out for key in (*_APPLICATORS, "items", "contains")):
        out["items"] = out.pop("unevaluatedItems")


def _tidy_conditions(out: dict[str, Any]) -> None:
    if "if" not in out or all(_allows_anything(out.get(key, True)) for key in ("then", "else")):
        for key in ("if", "then", "else"):
            out.pop(key, None)
    if out.get("not") is False:
        del out["not"]
    for key in ("dependentRequired", "dependentSchemas", "dependencies"):
        if out.get(key) == {}:
            del out[key]


def _tidy_names(out: dict[str, Any], root: Schema) -> None:
    """Convert rules about member names to lists of names or patterns."""
    remaining = out.get("unevaluatedProperties", True)
    if _allows_anything(remaining):
        out.pop("unevaluatedProperties", None)
    elif not any(key in out for key in (*_APPLICATORS, "additionalProperties")):
        out["additionalProperties"] = out.pop("unevaluatedProperties")
    rule = resolved(out.get("propertyNames", True), root)
    if _allows_anything(rule) or rule == {"type": "string"}:
        out.pop("propertyNames", None)
        return
    allowed = _allowed_names(rule, root)
    others, properties = out.get("additionalProperties", True), out.get("properties") or {}
    if allowed is None or "patternProperties" in out or not isinstance(properties, dict):
        return
    names, patterns = allowed
    if names is None:
        if len(patterns) > 1:
            return  # the engine has no intersection of patterns
        fitting = {name: part for name, part in properties.items() if _fits(name, patterns)}
        if fitting and not _allows_anything(others):
            return  # a pattern would apply to these members too
        out["patternProperties"] = dict.fromkeys(patterns, others)
        out["properties"] = fitting
    else:
        out["properties"] = {name: properties.get(name, others) for name in names if _fits(name, patterns)}
    out["additionalProperties"] = False
    del out["propertyNames"]


def _tidy_patterns(out: dict[str, Any]) -> None:
    """Remove named members that a pattern describes alike: the engine would compile both into one."""
    properties, patterns = out.get("properties"), out.get("patternProperties")
    if not isinstance(properties, dict) or not isinstance(patterns, dict) or not all(map(_is_pattern, patterns)):
        return
    required = required_names(out)
    for name, part in list(properties.items()):
        same = [patterns[pattern] == part for pattern in patterns if _fits(name, [pattern])]
        if same and all(same) and required is not None and name not in required:
            properties = out["properties"] = {key: value for key, value in properties.items() if key != name}


def _allowed_names(rule: Schema, root: Schema) -> tuple[list[str] | None, list[str]] | None:
    """The names that a rule lists (None: it lists none) and the patterns of all names; None if it is neither."""
    if rule is False:
        return [], []
    if not isinstance(rule, dict):
        return None
    if rule.keys() <= {"anyOf", "oneOf"}:
        return _names_of_branches(rule, root)
    if rule.keys() - _NAME_RULES or rule.get("type", "string") not in _STRING_TYPES:
        return None
    least, most = str(rule.get("minLength", 0)), str(rule.get("maxLength", ""))
    form = str(rule.get("format", ""))
    patterns = [str(rule["pattern"])] if "pattern" in rule else []
    patterns += [_NAME_FORMATS.get(form, "(")] if form else []
    patterns += [rf"^[\s\S]{{{least},{most}}}$"] if rule.keys() & {"minLength", "maxLength"} else []
    names = [rule["const"]] if "const" in rule else rule.get("enum")
    readable = all(map(_is_pattern, patterns)) and least.isdecimal() and (not most or most.isdecimal())
    if not readable or not isinstance(names, list | NoneType):
        return None
    return None if names is None else [name for name in names if isinstance(name, str)], patterns


def _names_of_branches(rule: dict[str, Any], root: Schema) -> tuple[list[str], list[str]] | None:
    """The names that the branches of an alternative list together."""
    (branches,) = rule.values() if len(rule) == 1 else ((),)
    names: list[str] = []
    for branch in branches if isinstance(branches, list) else ():
        allowed = _allowed_names(resolved(branch, root), root)
        if allowed is None or allowed[0] is None or allowed[1]:
            return None
        names += allowed[0]
    distinct = "anyOf" in rule or len(names) == len(set(names))
    return (list(dict.fromkeys(names)), []) if names and distinct else None


def _is_pattern(pattern: str) -> bool:
    try:
        re.compile(pattern, re.ASCII)
    except (re.error, OverflowError, RecursionError):
        return False
    return True


def _fits(name: str, patterns: list[str]) -> bool:
    return all(re.search(pattern, name, re.ASCII) for pattern in patterns)


def _differ(one: Schema, other: Schema, root: Schema) -> bool:
    """Whether no value fits both schemas, as shown by their types or by a member that both require."""
    if not isinstance(one, dict) or not isinstance(other, dict):
        return False
    types = [types_of(schema) for schema in (one, other)]
    if all(types) and not types[0] & types[1]:
        return True
    if types != [{"object"}, {"object"}]:
        return False
    members = [_required_values(schema, root) for schema in (one, other)]
    return any(not members[0][name] & members[1][name] for name in members[0].keys() & members[1].keys())


def types_of(schema: dict[str, Any]) -> set[str]:
    """The types that a schema lists; empty if it lists none."""
    kind = schema.get("type")
    types = set(map(str, kind)) if isinstance(kind, list) else {kind} if isinstance(kind, str) else set()
    return types | {"integer"} if "number" in types else types


def _required_values(schema: dict[str, Any], root: Schema) -> dict[str, set[str]]:
    """The allowed values of required members that list them, as JSON."""
    members, required = schema.get("properties"), schema.get("required")
    values_by_name: dict[str, set[str]] = {}
    if not isinstance(members, dict) or not isinstance(required, list):
        return values_by_name
    for name, part in members.items():
        member = resolved(part, root)
        values = [member["const"]] if isinstance(member, dict) and "const" in member else None
        if values is None and isinstance(member, dict):
            values = member.get("enum")
        if name in required and isinstance(values, list) and not any(isinstance(v, float) for v in values):
            values_by_name[name] = {json.dumps(value, sort_keys=True) for value in values}
    return values_by_name


def resolved(schema: Schema, root: Schema) -> Schema:
    """The target of a schema that is only a reference within the document, without annotations."""
    for _ in range(_MAX_REFERENCES):
        if not isinstance(schema, dict) or set(schema) != {"$ref"} or not str(schema["$ref"]).startswith("#/"):
            break
        target: Any = root
        for step in str(schema["$ref"])[2:].split("/"):
            target = target.get(step) if isinstance(target, dict) else None
        if not isinstance(target, dict):
            return schema
        schema = {key: value for key, value in target.items() if key not in _ANNOTATIONS}
    return schema
