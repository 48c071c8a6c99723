"""Structured output: converts a request to a constraint that can be enforced, or rejects it with a reason."""

import hashlib
import json
from collections import OrderedDict
from typing import Any, Final, Literal

import msgspec

from devices.child import BoundedChild, ChildFailed
from devices.msgspec_lock import learned
from engine.chat.reasoning import Markers, open_markers
from engine.chat.render_protocol import GrammarCheckRequest, GrammarCheckResult
from engine.chat.schemas import MAX_COUNT
from engine.core.errors import InputFault
from engine.core.types import Constraint

Kind = Literal["json_schema", "json_object", "regex", "lark", "gbnf"]

# A constraint that takes longer to compile is rejected: it would hold up every other request.
TIME_LIMIT_S: Final = 1.0
MEMORY_LIMIT_BYTES: Final = 1 << 30
MAX_SOURCE_BYTES: Final = 1 << 20
# llguidance's own parser stops at 128 levels; clients' validators earlier.
MAX_DEPTH: Final = 100
# Larger maximums bound nothing that can be generated.
_COUNTS: Final = ("minItems", "minLength", "minProperties")
_MAX_VERDICTS: Final = 1024  # agents send a hundred tools or more, each of which is tested once


class ConstraintImpossible(InputFault):
    """The requested output format cannot be guaranteed; `reason` says why."""

    code = "unsupported_constraint"

    def __init__(self, reason: str, param: str) -> None:
        super().__init__(f"{param}: this form of output cannot be guaranteed: {reason}", param)
        self.reason = reason


def of_schema(schema: object, param: str, *, strict: bool = True) -> Constraint:
    """The constraint of a JSON schema; without `strict`, of its enforceable parts.

    Raises: ConstraintImpossible: it is too deep, too long, or demands more elements than can be generated.
    """
    if not isinstance(schema, dict):
        raise ConstraintImpossible("a schema is a JSON object", param)
    try:
        source = json.dumps(schema, ensure_ascii=False)
    except (RecursionError, ValueError) as error:
        raise ConstraintImpossible(f"the schema cannot be read ({error})", param) from None
    _check_shape(schema, param, 1, counts=strict)
    kind: Literal["json_schema", "json_object"] = "json_schema" if schema else "json_object"
    return _bounded(Constraint(kind=kind, source=source, strict=strict), param)


def check_parameters(schema: object, param: str) -> None:
    """Check whether the schema of a tool can be shown to a model.

    Raises: ConstraintImpossible: it is not an object, or is too deep or too long.
    """
    if not isinstance(schema, dict):
        raise ConstraintImpossible("a schema is a JSON object", param)
    _check_shape(schema, param, 1, counts=False)
    try:
        _bounded(Constraint(kind="json_schema", source=json.dumps(schema, ensure_ascii=False)), param)
    except (RecursionError, ValueError) as error:
        raise ConstraintImpossible(f"the schema cannot be read ({error})", param) from None


def of_grammar(kind: Kind, source: object, param: str) -> Constraint:
    """The constraint of a regular expression, a Lark or a GBNF grammar.

    Raises: ConstraintImpossible: it is not text, or is empty or too long.
    """
    if not isinstance(source, str) or not source.strip():
        raise ConstraintImpossible("a grammar is a text", param)
    return _bounded(Constraint(kind=kind, source=source), param)


def _bounded(constraint: Constraint, param: str) -> Constraint:
    size = len(constraint.source.encode("utf-8", "replace"))
    if size > MAX_SOURCE_BYTES:
        raise ConstraintImpossible(f"it has {size} bytes, {MAX_SOURCE_BYTES} are allowed", param)
    return constraint


def _check_shape(value: Any, param: str, depth: int, *, counts: bool) -> None:
    if depth > MAX_DEPTH:
        raise ConstraintImpossible(f"it is nested more than {MAX_DEPTH} levels deep", param)
    if isinstance(value, dict):
        for key in _COUNTS if counts else ():
            count = value.get(key)
            if isinstance(count, int) and count > MAX_COUNT:
                raise ConstraintImpossible(f"{key} {count} is beyond {MAX_COUNT}", param)
        for inner in value.values():
            _check_shape(inner, param, depth + 1, counts=counts)
    elif isinstance(value, list):
        for inner in value:
            _check_shape(inner, param, depth + 1, counts=counts)


def after_reasoning(constraint: Constraint, own: Markers | None, prefill: str) -> Constraint:
    """The constraint for a response that may start with reasoning.

    If the template opened reasoning, the constraint starts at its end. If the model may open it itself, the block
    may come first. Otherwise the constraint starts at once.
    """
    opened = open_markers(prefill, own)
    if opened is not None:
        return msgspec.structs.replace(constraint, preamble=(opened.start, opened.end), preamble_open=True)
    if own is None or (own.end in prefill and constraint.trigger is None):
        return constraint
    return msgspec.structs.replace(constraint, preamble=(own.start, own.end))


class ConstraintChecker:
    """One warm child that tests constraints; results are cached, because clients repeat their schemas."""

    def __init__(self) -> None:
        self.child = BoundedChild(
            "engine.chat.grammar_check_child", timeout_s=TIME_LIMIT_S, memory_bytes=MEMORY_LIMIT_BYTES
        )
        self._verdicts: OrderedDict[bytes, GrammarCheckResult] = OrderedDict()

    async def check(self, constraint: Constraint, param: str) -> Constraint:
        """The constraint in the form that the runner accepts.

        Raises: ConstraintImpossible: it is invalid, cannot be enforced, or is too expensive.
        """
        return (await self.fit(constraint, param))[0]

    async def fit(self, constraint: Constraint, param: str) -> tuple[Constraint, tuple[str, ...]]:
        """The constraint for the runner, and its parts that are not enforced (none if it is strict).

        Raises: ConstraintImpossible: it is invalid, cannot be enforced, or is too expensive.
        """
        text = f"{constraint.kind}\0{constraint.strict}\0{constraint.source}"
        key = hashlib.sha256(text.encode("utf-8", "replace")).digest()
        verdict = self._verdicts.get(key)
        if verdict is None:
            verdict = await self._try(constraint)
            self._verdicts[key] = verdict
            if len(self._verdicts) > _MAX_VERDICTS:
                self._verdicts.popitem(last=False)
        if verdict.problem:
            raise ConstraintImpossible(verdict.problem, param)
        notes = tuple(f"{param}: {what} is not enforced" for what in verdict.dropped)
        if verdict.kind in {"lark", "json_schema"}:
            constraint = msgspec.structs.replace(constraint, kind=verdict.kind, source=verdict.source)
        return msgspec.structs.replace(constraint, strict=True), notes

    async def _try(self, constraint: Constraint) -> GrammarCheckResult:
        try:
            body = msgspec.msgpack.encode(
                GrammarCheckRequest(kind=constraint.kind, source=constraint.source, strict=constraint.strict)
            )
        except UnicodeEncodeError:
            return GrammarCheckResult(kind="", source="", problem="it is not valid Unicode")
        try:
            return msgspec.msgpack.decode(await self.child.ask(body), type=learned(GrammarCheckResult))
        except ChildFailed as failure:
            if constraint.kind == "json_schema" and not constraint.strict:
                whole = json.loads(constraint.source)
                plain = {"type": "object"} if whole.get("type") == "object" else {}
                return GrammarCheckResult(
                    kind="json_schema", source=json.dumps(plain), dropped=("the schema as a whole",)
                )
            why = f"takes more than {TIME_LIMIT_S:g} s" if failure.timed_out else "needs too much memory"
            return GrammarCheckResult(kind="", source="", problem=f"preparing it {why}")

    def warm(self) -> None:
        """Start the child in the background."""
        self.child.warm()

    def close(self) -> None:
        self.child.close()
