"""The child that tries grammars out before a model sees them: compiling one can take minutes or all memory."""

from typing import Any, Final

import llguidance
import msgspec

from devices.learned import learned
from engine.chat import child_service
from engine.chat.constraint_protocol import Trial, Verdict
from engine.errors import ConstraintRefused
from engine.grammar import grammar_of, lark_of_gbnf

_END: Final = 256


class _Bytes:
    """The smallest vocabulary: every byte and an end."""

    eos_token_id = _END
    bos_token_id = None
    special_token_ids = (_END,)

    def __init__(self) -> None:
        self.tokens = [*(bytes([value]) for value in range(256)), b"\xff<end>"]

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


class Checker:
    """Compiles each trial and takes a first step in it."""

    def __init__(self) -> None:
        self._tokenizer: Any = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes()))

    def answer(self, body: bytes) -> bytes:
        """One trial to one verdict, both msgpack."""
        trial = msgspec.msgpack.decode(body, type=learned(Trial))
        return msgspec.msgpack.encode(self.check(trial))

    def check(self, trial: Trial) -> Verdict:
        """Find out whether the constraint can be honoured."""
        kind, source = trial.kind, trial.source
        try:
            if kind == "gbnf":
                kind, source = "lark", lark_of_gbnf(source)
            grammar = grammar_of(kind, source, {})
        except ConstraintRefused as refusal:
            return Verdict(kind=kind, source=source, problem=str(refusal))
        matcher = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0)
        if not matcher.is_error():
            mask = matcher.compute_bitmask()
            # One step shows what explodes only after the first byte, such as thousands of optional members.
            first = next((b for b in b'{["' if mask[b // 8] >> b % 8 & 1), None)
            if first is not None and not matcher.is_error():
                matcher.consume_token(first)
                matcher.compute_bitmask()
        problem = matcher.get_error().splitlines()[0] if matcher.is_error() else ""
        return Verdict(kind=kind, source=source, problem=problem)


if __name__ == "__main__":
    child_service.serve(Checker().answer)
