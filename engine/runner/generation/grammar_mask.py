"""Structured output: llguidance decides which tokens may come next.

The tokenizer table is built once per model. A step first checks whether the freely sampled token is allowed
(microseconds). Only if it is not, the row of logits is masked and sampled again, which gives the same distribution
as always masking. No function here raises for a token: a failing grammar ends only its own request.
"""

import threading
from typing import Any

import numpy as np

from engine.core.errors import ConstraintRefused
from engine.core.types import Constraint
from engine.runner.generation.vocabulary import Vocabulary


class _TokenTable:
    """The vocabulary in the form that llguidance's tokenizer wrapper expects.

    Control tokens start with the byte 0xFF.
    """

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        hidden = vocabulary.control | vocabulary.ends
        self.tokens = [b"\xff" + p if t in hidden else p for t, p in enumerate(vocabulary.pieces)]
        self.eos_token_id = min(vocabulary.ends, default=vocabulary.size - 1)
        self.special_token_ids = sorted(hidden)
        self._vocabulary = vocabulary

    def __call__(self, text: bytes | str) -> list[int]:
        plain = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        return self._vocabulary.tokenize(plain, add_special=False, parse_special=False)


class ConstraintCompiler:
    """Compiles constraints for one vocabulary. `warm` builds the table in advance, off the scheduler's thread."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._tokenizer: Any = None

    def warm(self) -> None:
        """Build the tokenizer table in a separate thread (1.4 s for 150,000 tokens)."""
        if self._tokenizer is None and not self._lock.locked():
            threading.Thread(target=self._table, name="grammar-table", daemon=True).start()

    def compile(self, constraint: Constraint) -> "TokenConstraint":
        """Return the constraint state of one request.

        Raises: ConstraintRefused: the grammar is wrong or exceeds llguidance's limits.
        """
        import llguidance

        from engine.core.grammar import grammar_of, limits

        pieces = self._vocabulary.pieces
        controls = {pieces[t].decode("utf-8", "replace"): t for t in self._vocabulary.control if pieces[t]}
        grammar = grammar_of(constraint.kind, constraint.source, controls)
        matcher = llguidance.LLMatcher(self._table(), grammar, log_level=0, limits=limits())
        matcher.compute_bitmask()  # finds grammars that allow no first token
        if matcher.is_error():
            raise ConstraintRefused(matcher.get_error().splitlines()[0])
        return TokenConstraint(matcher, self._vocabulary, constraint)

    def _table(self) -> Any:
        import llguidance

        with self._lock:
            if self._tokenizer is None:
                wrapper = llguidance.TokenizerWrapper(_TokenTable(self._vocabulary))
                self._tokenizer = llguidance.LLTokenizer(wrapper, eos_token=sorted(self._vocabulary.ends) or None)
            return self._tokenizer


class TokenConstraint:
    """The constraint of one request, updated with each token.

    It is inactive, so every token passes, until `trigger` was generated, or during an optional or already open
    `preamble` (a reasoning block); the response may not end in a preamble. With both, the trigger counts only
    outside reasoning: a call that the model considers there is not enforced.
    """

    def __init__(self, matcher: Any, vocabulary: Vocabulary, constraint: Constraint) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._awaited: bytes | None = None
        self._may_end = False
        self._opening: bytes = b""
        self._opened = b""
        self._first_length = 1
        self._block: tuple[bytes, bytes] | None = None
        self._in_block = False
        if constraint.trigger is not None:
            self._awaited = constraint.trigger.encode()
            self._may_end = True
            if constraint.preamble is not None:
                self._block = (constraint.preamble[0].encode(), constraint.preamble[1].encode())
                self._in_block = constraint.preamble_open
        elif constraint.preamble is not None:
            start, end = (text.encode() for text in constraint.preamble)
            self._end = end
            if constraint.preamble_open:
                self._awaited = end
            else:
                self._opening = start
                # A stray `<` does not open the block: it opens only with its usual tokens.
                path = vocabulary.tokenize(constraint.preamble[0], add_special=False, parse_special=True)
                self._first_length = len(vocabulary.pieces[path[0]]) if path else 1
        self._seen = b""
        self.error = ""

    @property
    def finished(self) -> bool:
        """Whether the output is complete and cannot continue."""
        return self._awaited is None and not self._opened and bool(self._matcher.is_stopped())

    @property
    def complete(self) -> bool:
        """Whether the output so far satisfies the grammar."""
        return self._awaited is None and not self._opened and bool(self._matcher.is_accepting())

    def allows(self, token: int) -> bool:
        """Whether this token may come next."""
        if token in self._vocabulary.ends:
            return self._may_end if self._awaited is not None else self.complete
        if self._awaited is not None:
            return True
        return self._continues_opening(token) or (not self._opened and self._matcher.validate_tokens([token]) == 1)

    def forced(self, limit: int) -> list[int]:
        """Return up to `limit` tokens of text that the grammar fixes, such as field names and quotes.

        The text is certain, but its tokens are not: the model may sample a different split.
        """
        if limit <= 0 or self._awaited is not None or self._opening or self._matcher.is_stopped():
            return []
        if not self._matcher.compute_ff_bytes():  # takes a tenth of the time of tokenizing them
            return []
        return list(self._matcher.compute_ff_tokens()[:limit])

    def mask(self, row: Any) -> None:
        """Set the logits of all forbidden tokens to minus infinity, in place; `row` is (n_vocab,) float32."""
        ends = list(self._vocabulary.ends)
        if self._awaited is not None:
            if not self._may_end:
                row[ends] = -np.inf
            return
        keep = self._opening_tokens() if self._opening else np.empty(0, np.int64)
        opening_logits = row[keep].copy()
        if self._opened:
            row[:] = -np.inf
        else:
            bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
            allowed = np.unpackbits(bits, bitorder="little")[: len(row)].astype(bool)
            if not self._matcher.is_accepting():
                allowed[ends] = False
            row[: len(allowed)][~allowed] = -np.inf
            row[len(allowed) :] = -np.inf
        row[keep] = opening_logits
        self._note_error()
        if not self.error and not np.isfinite(row.max()):
            self.error = "no token of this vocabulary can continue the output"

    def accept(self, token: int) -> None:
        """Record the sampled token. A failed grammar sets `error`."""
        if token in self._vocabulary.ends:
            return
        piece = self._vocabulary.pieces[token]
        if self._awaited is not None:
            self._await(piece)
        elif self._continues_opening(token):
            self._opened += piece
            if len(self._opened) >= len(self._opening):
                self._seen = self._opened[len(self._opening) :]
                self._opening, self._opened = b"", b""
                self._awaited = self._end
                self._await(b"")
        else:
            self._opening = b""
            self._matcher.consume_token(token)
            self._note_error()

    def _await(self, piece: bytes) -> None:
        """Search for the awaited text; the rest of the same token already counts for the grammar."""
        assert self._awaited is not None
        self._seen += piece
        if self._block is not None and not self._pass_blocks(*self._block):
            return
        at = self._seen.find(self._awaited)
        if at < 0:
            longest = max(len(self._awaited), len(self._block[0]) if self._block else 0)
            self._seen = self._seen[-longest:]
            return
        remaining = self._seen[at + len(self._awaited) :]
        self._awaited, self._seen = None, b""
        if remaining.strip():
            tokens = self._vocabulary.tokenize(
                remaining.decode("utf-8", "replace"), add_special=False, parse_special=False
            )
            self._matcher.try_consume_tokens(tokens)

    def _pass_blocks(self, start: bytes, end: bytes) -> bool:
        """Drop reasoning blocks from the text seen so far; return whether the rest is outside of reasoning."""
        assert self._awaited is not None
        while True:
            if self._in_block:
                _, closing, after = self._seen.partition(end)
                if not closing:
                    self._seen = self._seen[-len(end) :]
                    return False
                self._seen, self._in_block = after, False
            before, opening, after = self._seen.partition(start)
            if not opening or self._awaited in before:
                return True
            self._seen, self._in_block = after, True

    def _continues_opening(self, token: int) -> bool:
        if not self._opening:
            return False
        piece = self._vocabulary.pieces[token]
        text = self._opened + piece
        return len(piece) >= (1 if self._opened else self._first_length) and (
            self._opening.startswith(text) or text.startswith(self._opening)
        )

    def _opening_tokens(self) -> Any:
        return np.fromiter((t for t in range(self._vocabulary.size) if self._continues_opening(t)), np.int64)

    def _note_error(self) -> None:
        if self._matcher.is_error() and not self.error:
            self.error = self._matcher.get_error().splitlines()[0]
