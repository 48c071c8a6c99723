"""Makes schemas enforceable that the grammar engine does not take: overlapping branches, and unknown keywords.

Branches of a oneOf are narrowed until no value fits two of them. `Loosening` drops and names what cannot be
enforced; callers that need a guarantee reject the schema instead.
"""

import itertools
import json
import re
from collections.abc import Callable
from typing import Any, Final

from engine.chat.schemas import (
    COUNTS,
    LISTS,
    MAPS,
    NUMBERS,
    TYPES,
    Schema,
    change_parts,
    required_names,
    resolved,
    types_of,
)

# Returns why a schema does not compile; empty if it does.
Compile = Callable[[Schema], str]

_UNENFORCEABLE: Final = (
    "uniqueItems", "contains", "minContains", "maxContains", "not", "if", "then", "else", "dependentRequired",
    "dependentSchemas", "dependencies", "propertyNames", "unevaluatedProperties", "unevaluatedItems", "$dynamicRef",
    "$recursiveRef",
)  # fmt: skip
# Compiling a part takes about a millisecond; a schema that needs more tests is dropped as a whole.
_MAX_TRIALS: Final = 120
# Characters of schemas that may be compiled in these tests: a fifth of a second.
_MAX_COMPILED: Final = 4_000_000
TOO_MUCH: Final = "too much of it cannot be enforced"
# Characters of schemas that may be compiled to compare branches: a tenth of a second.
_MAX_COMPARED: Final = 2_000_000


class Separation:
    """Replaces oneOf by anyOf where no value fits two branches, or where the branches can be narrowed to that.

    All values of the result are valid for the given schema.
    """

    def __init__(self, compile_schema: Compile) -> None:
        self._compile = compile_schema
        self._compared = 0
        self._root: Schema = True
        self._defs: dict[str, Any] = {}

    def separated(self, schema: Schema) -> Schema:
        """The schema with exclusive branches; each oneOf whose branches stay comparable is unchanged."""
        if not isinstance(schema, dict):
            return schema
        self._root = schema
        self._defs = {key: schema[key] for key in ("$defs", "definitions") if isinstance(schema.get(key), dict)}
        return self._node(schema)

    def _node(self, node: Schema) -> Schema:
        if not isinstance(node, dict):
            return node
        out = dict(node)
        change_parts(out, lambda part, _: self._node(part))
        listed = out.get("oneOf")
        if isinstance(listed, list) and listed and "anyOf" not in out:
            outer = {key: value for key, value in out.items() if key not in {"oneOf", *self._defs}}
            branches = self._exclusive(outer, [resolved(branch, self._root) for branch in listed])
            if branches is not None:
                del out["oneOf"]
                out["anyOf"] = branches
        return out

    def _exclusive(self, outer: dict[str, Any], branches: list[Schema]) -> list[Schema] | None:
        absent: list[list[str]] = [[] for _ in branches]
        for one, other in itertools.combinations(range(len(branches)), 2):
            if self._is_disjoint(outer, branches[one], branches[other]):
                continue
            for this, that in ((one, other), (other, one)):
                name = _distinguishing(outer, branches[this], branches[that])
                if name is None:
                    return None
                absent[this].append(name)
        pairs = zip(branches, absent, strict=True)
        return [_without(branch, names) if names else branch for branch, names in pairs]

    def _is_disjoint(self, outer: dict[str, Any], one: Schema, other: Schema) -> bool:
        both = {"allOf": [outer, one, other], **self._defs}
        text = json.dumps(both)
        self._compared += len(text)
        pointers = re.findall(r'"\$ref": "([^"]*)"', text)
        if self._compared > _MAX_COMPARED or not all(
            p.startswith(("#/$defs/", "#/definitions/")) for p in pointers
        ):
            return False  # too much text, or a reference that has no target in `both`
        return self._compile(both).startswith("Unsatisfiable")


def _distinguishing(outer: dict[str, Any], one: Schema, other: Schema) -> str | None:
    """A member that `other` requires and `one` does not; None if both are not known to be objects."""
    if not isinstance(one, dict) or not isinstance(other, dict) or (types_of(one) | types_of(outer)) - {"object"}:
        return None
    listed = [required_names(part) for part in (outer, one, other)]
    if None in listed:
        return None
    always, here, there = ([*(names or ())] for names in listed)
    free = [name for name in there if name not in here and name not in always]
    properties = one.get("properties")
    unnamed = [name for name in free if not isinstance(properties, dict) or name not in properties]
    return next(iter(unnamed or free), None)


def _without(branch: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """The schema of objects that have none of these members."""
    properties = branch.get("properties")
    members = {**(properties if isinstance(properties, dict) else {}), **dict.fromkeys(names, False)}
    return {**branch, "type": "object", "properties": members}


class Loosening:
    """Drops the parts of a schema that cannot be enforced. `dropped` lists them: where, and what.

    `reason`: why the schema as a whole was dropped.
    """

    def __init__(self, compile_schema: Compile) -> None:
        self._compile = compile_schema
        self._trials = 0
        self._compiled = 0
        self._defs: dict[str, Any] = {}
        self.dropped: list[str] = []
        self.reason = ""

    def loosen(self, schema: Schema) -> tuple[Schema, str]:
        """A schema that compiles, and the reason if there is none."""
        if not isinstance(schema, dict):
            return schema, self._problem(schema)
        supported = self._supported(schema, "")
        problem = self._problem(supported)
        if not problem or problem.startswith("Unsatisfiable"):
            return supported, problem
        for key in ("$defs", "definitions"):
            if isinstance(supported.get(key), dict):
                self._defs[key] = supported[key]
        for change in (self._unmerged, self._part) if _is_about_branches(problem) else (self._part,):
            for key, defs in self._defs.items():
                for name in list(defs):
                    defs[name] = change(defs[name], f"{key}/{name}")
            supported = change({**supported, **self._defs}, "")
            self._defs = {key: supported[key] for key in self._defs if key in supported}
            problem = self._problem(supported)
            if not problem:
                return supported, ""
        if problem and not self._compile(plain := {"type": "object"} if schema.get("type") == "object" else {}):
            self.dropped, self.reason = ["the schema as a whole"], problem
            return plain, ""
        return supported, problem

    def _unmerged(self, schema: Schema, path: str) -> Schema:
        """The schema without branches and patterns that the engine cannot merge."""
        if not isinstance(schema, dict):
            return schema
        out = dict(schema)
        change_parts(out, lambda part, name: self._unmerged(part, _joined(path, name)))
        if "oneOf" in out and "anyOf" not in out and _is_about_branches(self._alone({"oneOf": out["oneOf"]})):
            out["anyOf"] = out.pop("oneOf")
            self._note(path, "the exclusiveness of oneOf")
        if out.get("properties") and "patternProperties" in out and _is_about_branches(self._alone(out)):
            del out["patternProperties"]  # a member that is also named would have to match both
            out.pop("additionalProperties", None)
            self._note(path, "patternProperties")
        return out

    def _note(self, path: str, what: str) -> None:
        where = f"{path}: " if path else ""
        self.dropped.append(f"{where}{what}")

    def _problem(self, schema: Schema) -> str:
        self._trials += 1
        if self._trials > _MAX_TRIALS or self._compiled > _MAX_COMPILED:
            return TOO_MUCH
        self._compiled += len(json.dumps(schema))
        return self._compile(schema)

    def _alone(self, part: Schema) -> str:
        """Why a part does not compile by itself."""
        return self._problem({**part, **self._defs} if isinstance(part, dict) else part)

    def _supported(self, schema: Schema, path: str) -> Schema:
        """The schema without keywords that the engine is known not to support."""
        if not isinstance(schema, dict):
            return schema
        out = dict(schema)
        for key in _UNENFORCEABLE:
            if key in out:
                del out[key]
                self._note(path, key)
        self._drop_malformed(out, path)
        for pattern in list(out.get("patternProperties") or ()):
            if self._problem({"type": "string", "pattern": pattern}):
                del out["patternProperties"][pattern]
                out.pop("additionalProperties", None)
                self._note(path, f"patternProperties {pattern!r}")
        if "pattern" in out and self._problem({"type": "string", "pattern": out["pattern"]}):
            self._note(path, f"pattern {out.pop('pattern')!r}")
        required = out.get("required") or ()
        if any(name not in required for name in out.get("properties") or ()):
            for key in ("minProperties", "maxProperties"):
                if key in out:
                    del out[key]
                    self._note(path, key)
        change_parts(out, lambda part, name: self._supported(part, _joined(path, name)))
        return out

    def _drop_malformed(self, out: dict[str, Any], path: str) -> None:
        """Drop keywords whose value is invalid by the standard."""
        wrong = [key for key in MAPS if not isinstance(out.get(key, {}), dict)]
        wrong += [key for key in (*LISTS, "required", "enum") if not isinstance(out.get(key, []), list)]
        wrong += [key for key in (*COUNTS, *NUMBERS) if not _is_number(out.get(key, 0))]
        wrong += [key for key in ("pattern", "$ref") if not isinstance(out.get(key, ""), str)]
        for key in wrong:
            del out[key]
            self._note(path, key)
        kinds = out.get("type", [])
        if any(str(kind) not in TYPES for kind in (kinds if isinstance(kinds, list) else [kinds])):
            self._note(path, f"type {out.pop('type')!r}")

    def _part(self, part: Schema, path: str) -> Schema:
        """The smallest change that makes a part compile by itself."""
        if not isinstance(part, dict) or not self._alone(part):
            return part
        out = dict(part)
        if "oneOf" in out and "anyOf" not in out:
            out["anyOf"] = out.pop("oneOf")
            self._note(path, "the exclusiveness of oneOf")
            if not self._alone(out):
                return out
        change_parts(out, lambda inner, name: self._part(inner, _joined(path, name)))
        for key in [k for k in out if k not in {"type", "properties", "$defs", "definitions"}]:
            if not self._alone(out):
                return out
            del out[key]
            self._note(path, key)
        if not self._alone(out):
            return out
        self._note(path, "all but its type")
        plain = {"type": part["type"]} if "type" in part else {}
        return {} if self._alone(plain) else plain


def _is_about_branches(problem: str) -> bool:
    """Whether the engine failed to merge the branches of a oneOf, or a part that refers to itself with another."""
    return "coerce_one_of" in problem or problem.startswith("circular references")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _joined(path: str, name: str) -> str:
    if not name:
        return path
    return f"{path}{name}" if name == "[]" else f"{path}.{name}" if path else name


# A location in a grammar that the client did not write.
_LOCATION: Final = re.compile(r"^at \d+\(\d+\): (?=invalid regex)")


def readable(problem: str) -> str:
    """A message of the grammar engine, reworded for a client's schema."""
    if problem.startswith("regex parse error"):
        last = problem.splitlines()[-1].removeprefix("error: ")
        return f"a pattern cannot be enforced ({last})"
    first, *details = problem.splitlines() or [""]
    if first.endswith("regex parse error:"):
        why = next((line.removeprefix("error: ") for line in details if line.startswith("error: ")), "")
        first = f"{_LOCATION.sub('', first).removesuffix(' (in regex): regex parse error:')}: {why}"
    if first == "NoExtensionBias":
        return "no text fits it"
    if "coerce_one_of" in first:
        return "the branches of a oneOf may overlap"
    return re.sub(r"^at \d+\(\d+\): failed to compile JSON schema: ", "", first)
