"""Child process that tests grammars before a model gets them: compiling one can take minutes or all memory."""

import json
from typing import Any, Final

import llguidance
import msgspec

from devices import child_service
from devices.msgspec_lock import learned
from engine.chat.render_protocol import GrammarCheckRequest, GrammarCheckResult
from engine.chat.schema_loosening import TOO_MUCH, Loosening, Separation, readable
from engine.chat.schemas import Schema, closed, tidy, typed
from engine.core.errors import ConstraintRefused
from engine.core.grammar import grammar_of, lark_of_gbnf, limits

_END: Final = 256


class _Bytes:
    """A minimal vocabulary: every byte and an end token."""

    eos_token_id = _END
    bos_token_id = None
    special_token_ids = (_END,)

    def __init__(self) -> None:
        self.tokens = [*(bytes([value]) for value in range(256)), b"\xff<end>"]

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


class Checker:
    """Compiles each constraint and takes a first step in it."""

    def __init__(self) -> None:
        self._tokenizer: Any = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes()))

    def answer(self, body: bytes) -> bytes:
        """Check one constraint; request and result are msgpack."""
        trial = msgspec.msgpack.decode(body, type=learned(GrammarCheckRequest))
        return msgspec.msgpack.encode(self.check(trial))

    def check(self, trial: GrammarCheckRequest) -> GrammarCheckResult:
        """Check whether the constraint can be enforced."""
        kind, source = trial.kind, trial.source
        try:
            if kind == "gbnf":
                kind, source = "lark", lark_of_gbnf(source)
            problem = self._problem(kind, source)
        except ConstraintRefused as refusal:
            return GrammarCheckResult(kind=kind, source=source, problem=str(refusal))
        if kind == "json_schema":
            return self._enforceable_form(source, strict=trial.strict) if problem else self._closed(source)
        return GrammarCheckResult(kind=kind, source=source, problem=readable(problem))

    def _problem(self, kind: str, source: str) -> str:
        matcher = llguidance.LLMatcher(self._tokenizer, grammar_of(kind, source, {}), log_level=0, limits=limits())
        if not matcher.is_error():
            mask = matcher.compute_bitmask()
            # One step finds what explodes only after the first byte, such as thousands of optional members.
            first = next((b for b in b'{["' if mask[b // 8] >> b % 8 & 1), None)
            if first is not None and not matcher.is_error():
                matcher.consume_token(first)
                matcher.compute_bitmask()
        return str(matcher.get_error()) if matcher.is_error() else ""

    def _schema_problem(self, schema: Schema) -> str:
        if isinstance(schema, bool):
            return "" if schema else "Unsatisfiable schema: it is false"
        try:
            return self._problem("json_schema", json.dumps(schema))
        except ConstraintRefused as refusal:
            return str(refusal)

    def _closed(self, source: str) -> GrammarCheckResult:
        """A schema that compiles; closed if the closed form compiles too."""
        schema = json.loads(source)
        exact = tidy(typed(schema))
        problem = ""
        for form in (closed(exact), exact):
            problem = "" if form == schema else self._schema_problem(form)
            if not problem:
                return GrammarCheckResult(kind="json_schema", source=json.dumps(form, ensure_ascii=False))
        # Some formats are checked only in the exact form, which may show that no value fits.
        problem = readable(problem) if problem.startswith("Unsatisfiable") else ""
        return GrammarCheckResult(kind="json_schema", source=source, problem=problem)

    def _enforceable_form(self, source: str, *, strict: bool) -> GrammarCheckResult:
        """A schema in an enforceable form; without `strict`, only its enforceable parts."""
        schema = tidy(typed(json.loads(source)))
        shut = closed(Separation(self._schema_problem).separated(closed(schema)))
        verdict = self._enforceable(shut, strict=strict)
        if not verdict.problem or shut == schema or TOO_MUCH in verdict.problem:
            return verdict
        return self._enforceable(schema, strict=strict)

    def _enforceable(self, schema: Schema, *, strict: bool) -> GrammarCheckResult:
        problem = self._schema_problem(schema)
        dropped: tuple[str, ...] = ()
        if problem:
            loosening = Loosening(self._schema_problem)
            loose, impossible = loosening.loosen(schema)
            if strict or impossible:
                names = "; ".join(f"{what} cannot be enforced" for what in loosening.dropped[:3])
                why = readable(impossible or loosening.reason or problem)
                plain = why.startswith("Unimplemented keys")
                problem = (names if plain else f"{names} ({why})") if names and not impossible else why
            else:
                schema, problem, dropped = loose, "", tuple(loosening.dropped)
        return GrammarCheckResult(kind="json_schema", source=json.dumps(schema), problem=problem, dropped=dropped)


if __name__ == "__main__":
    child_service.serve(Checker().answer)
