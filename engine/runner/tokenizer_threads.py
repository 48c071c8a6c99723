"""Tokenizes prompts and compiles constraints in threads, so that neither steps nor short texts wait."""

import itertools
import queue
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

import msgspec

from engine.core.errors import ConstraintRefused
from engine.core.types import Constraint
from engine.runner import protocol
from engine.runner.generation.vocabulary import Vocabulary
from engine.runner.text_limits import Stopped, TooManyTokens

# About 4,000 tokens, which take a few milliseconds.
SHORT_CHARS: Final = 16 << 10
# Counting tokens is useful beyond the context too; a text of this size has about a million.
TOKENIZE_CHARS: Final = 4 << 20

Text = protocol.Submit | protocol.Tokenize


class Prompt(msgspec.Struct, frozen=True):
    """A submitted request with its tokens (None: its text contains images) and its compiled constraint."""

    message: protocol.Submit
    tokens: list[int] | None
    constraint: Any = None


def text_of(message: object) -> str | None:
    """Return the text to process in these threads; None if there is nothing to do.

    A prompt of ids or with images counts as empty text if its constraint must be compiled.
    """
    if isinstance(message, protocol.Tokenize):
        return message.text
    if not isinstance(message, protocol.Submit):
        return None
    if isinstance(message.request.prompt, str) and not message.request.images:
        return message.request.prompt
    return "" if message.request.constraint is not None else None


def too_long(request_id: int, at_least: int, n_ctx: int) -> protocol.Fault:
    """Return the Fault of a prompt that is longer than the context and was not fully tokenized."""
    facts: dict[str, int | float | str | None] = {
        "prompt_tokens": at_least,
        "context_tokens": n_ctx,
        "at_least": 1,
    }
    return protocol.Fault(id=request_id, code="context_length_exceeded", message="", facts=facts)


class TokenizerPool:
    """Three threads: for short texts, for long ones (shortest first), and for prompts with a constraint.

    A `Prompt` goes to `deliver`; requested tokens and faults go to `send`. `n_ctx` limits prompts; `compiled`
    compiles a constraint, which may take seconds.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        n_ctx: int,
        deliver: Callable[[Prompt], None],
        send: Callable[[protocol.FromRunner], None],
        compiled: Callable[[Constraint], Any],
    ) -> None:
        self._vocabulary = vocabulary
        self._n_ctx = n_ctx
        self._deliver = deliver
        self._send = send
        self._compiled = compiled
        self._order = itertools.count()
        self._pending: dict[int, bool] = {}  # id: cancelled
        self._lock = threading.Lock()
        self._short: queue.PriorityQueue[tuple[int, int, Text]] = queue.PriorityQueue()
        self._long: queue.PriorityQueue[tuple[int, int, Text]] = queue.PriorityQueue()
        self._formed: queue.PriorityQueue[tuple[int, int, Text]] = queue.PriorityQueue()
        for name, texts in (("texts", self._short), ("long-texts", self._long), ("formats", self._formed)):
            threading.Thread(target=self._work, args=(texts,), name=name, daemon=True).start()

    def add(self, message: Text, text: str) -> None:
        """Queue a text for tokenizing."""
        with self._lock:
            self._pending[message.id] = False
        short = len(text) <= SHORT_CHARS
        formed = isinstance(message, protocol.Submit) and message.request.constraint is not None
        texts = self._formed if formed else self._short if short else self._long
        texts.put((0 if short else len(text), next(self._order), message))

    def cancel(self, request_id: int) -> None:
        """Cancel a request: it is dropped, or stopped at its next part."""
        with self._lock:
            if request_id in self._pending:
                self._pending[request_id] = True

    def _work(self, texts: "queue.PriorityQueue[tuple[int, int, Text]]") -> None:
        while True:
            _, _, message = texts.get()
            try:
                self._tokenize(message)
            except Stopped:
                pass
            except ConstraintRefused as error:
                self._send(
                    protocol.Fault(
                        id=message.id, code="invalid_request", message=str(error), param="response_format"
                    )
                )
            except Exception as error:  # noqa: BLE001 - one text must not end the thread
                sys.stderr.write(f"tokenizing: {error!r}\n")
                self._send(
                    protocol.Fault(id=message.id, code="internal", message="The text could not be tokenized.")
                )
            finally:
                with self._lock:
                    self._pending.pop(message.id, None)

    def _tokenize(self, message: Text) -> None:
        def stopped() -> bool:
            return self._pending.get(message.id, False)

        if isinstance(message, protocol.Tokenize):
            self._count(message, stopped)
            return
        tokens = self._tokens(message, stopped)
        if tokens is None and isinstance(message.request.prompt, str) and not message.request.images:
            return
        constraint = None if message.request.constraint is None else self._compiled(message.request.constraint)
        with self._lock:  # a cancel comes before this, or finds the request in the scheduler
            if self._pending.pop(message.id, True):
                return
            self._deliver(Prompt(message, tokens, constraint))

    def _tokens(self, message: protocol.Submit, stopped: Callable[[], bool]) -> list[int] | None:
        """Return the prompt's tokens; None if it has images, or does not fit (this has been reported)."""
        request = message.request
        if isinstance(request.prompt, list):
            return request.prompt
        if request.images:
            return None
        try:
            return self._vocabulary.tokenize(
                request.prompt,
                add_special=request.add_special,
                parse_special=request.parse_special,
                limit=self._n_ctx,
                stopped=stopped,
            )
        except TooManyTokens as error:
            self._send(too_long(message.id, error.at_least, self._n_ctx))
            return None

    def _count(self, message: protocol.Tokenize, stopped: Callable[[], bool]) -> None:
        if len(message.text) > TOKENIZE_CHARS:
            words = f"The text has {len(message.text)} characters; at most {TOKENIZE_CHARS} are tokenized at once."
            self._send(protocol.Fault(id=message.id, code="invalid_request", message=words, param="content"))
            return
        tokens = self._vocabulary.tokenize(
            message.text, add_special=message.add_special, parse_special=message.parse_special, stopped=stopped
        )
        self._send(protocol.Tokens(id=message.id, token_ids=tokens))
