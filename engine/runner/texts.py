"""Prompts of text become tokens beside the model: neither its steps nor a short text wait for a long one."""

import itertools
import queue
import sys
import threading
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final, Protocol

from engine.runner import protocol
from engine.runner.text_limits import Stopped, TooManyTokens

# About 4,000 tokens, which take a few milliseconds.
SHORT_CHARS: Final = 16 << 10
# Counting tokens is useful beyond the context too; a text of this size has about a million.
TOKENIZE_CHARS: Final = 4 << 20

Text = protocol.Submit | protocol.Tokenize


class Tokenizer(Protocol):
    """What a service asks of its runner's vocabulary."""

    @property
    def size(self) -> int:
        """Tokens there are."""

    @property
    def pieces(self) -> Sequence[bytes]:
        """The bytes of each token."""

    @property
    def control(self) -> AbstractSet[int]:
        """Tokens that are not shown by default."""

    def tokenize(
        self,
        text: str,
        *,
        add_special: bool,
        parse_special: bool,
        limit: int | None = None,
        stopped: Callable[[], bool] = ...,
    ) -> list[int]:
        """Token ids of `text`. Raises: TooManyTokens: more than `limit`; Stopped."""


@dataclass(frozen=True)
class Prompt:
    """A submitted request with its tokens."""

    message: protocol.Submit
    tokens: list[int]


def text_of(message: object) -> str | None:
    """The text that is to be tokenized here; None where there is none, or pictures are among it."""
    if isinstance(message, protocol.Tokenize):
        return message.text
    if isinstance(message, protocol.Submit) and isinstance(message.request.prompt, str):
        return None if message.request.images else message.request.prompt
    return None


def too_long(request_id: int, at_least: int, n_ctx: int) -> protocol.Fault:
    """The prompt has more tokens than the context, and was not tokenized to its end."""
    facts: dict[str, int | float | str | None] = {
        "prompt_tokens": at_least,
        "context_tokens": n_ctx,
        "at_least": 1,
    }
    return protocol.Fault(id=request_id, code="context_length_exceeded", message="", facts=facts)


class Texts:
    """Two threads: one for short texts, one for long ones, the shortest first.

    A `Prompt` goes to `deliver`; tokens that were asked for, and faults, to `send`. `n_ctx` bounds prompts.
    """

    def __init__(
        self,
        vocabulary: Tokenizer,
        n_ctx: int,
        deliver: Callable[[Prompt], None],
        send: Callable[[protocol.FromRunner], None],
    ) -> None:
        self._vocabulary = vocabulary
        self._n_ctx = n_ctx
        self._deliver = deliver
        self._send = send
        self._order = itertools.count()
        self._pending: dict[int, bool] = {}  # id: cancelled
        self._lock = threading.Lock()
        self._short: queue.PriorityQueue[tuple[int, int, Text]] = queue.PriorityQueue()
        self._long: queue.PriorityQueue[tuple[int, int, Text]] = queue.PriorityQueue()
        for name, texts in (("texts", self._short), ("long-texts", self._long)):
            threading.Thread(target=self._work, args=(texts,), name=name, daemon=True).start()

    def add(self, message: Text, text: str) -> None:
        """Tokenize this soon."""
        with self._lock:
            self._pending[message.id] = False
        short = len(text) <= SHORT_CHARS
        (self._short if short else self._long).put((0 if short else len(text), next(self._order), message))

    def cancel(self, request_id: int) -> None:
        """Nobody waits for it any more: it is dropped, or stopped at its next part."""
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
            except Exception as error:  # noqa: BLE001 - one text must not end the thread for all
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
        request = message.request
        assert isinstance(request.prompt, str)
        try:
            tokens = self._vocabulary.tokenize(
                request.prompt,
                add_special=request.add_special,
                parse_special=request.parse_special,
                limit=self._n_ctx,
                stopped=stopped,
            )
        except TooManyTokens as error:
            self._send(too_long(message.id, error.at_least, self._n_ctx))
            return
        with self._lock:  # a cancel comes before this, or finds the request where the model works
            if self._pending.pop(message.id, True):
                return
            self._deliver(Prompt(message, tokens))

    def _count(self, message: protocol.Tokenize, stopped: Callable[[], bool]) -> None:
        if len(message.text) > TOKENIZE_CHARS:
            words = f"The text has {len(message.text)} characters; at most {TOKENIZE_CHARS} are tokenized at once."
            self._send(protocol.Fault(id=message.id, code="invalid_request", message=words, param="content"))
            return
        tokens = self._vocabulary.tokenize(
            message.text, add_special=message.add_special, parse_special=message.parse_special, stopped=stopped
        )
        self._send(protocol.Tokens(id=message.id, token_ids=tokens))
