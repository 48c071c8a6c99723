"""Summarize what is too long, part by part: each summary is kept before the next is begun."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import Any

from app.client import Answer, WholeAnswer
from app.compaction.plan import FOLD_AT, Part, Sent, next_part, sent, system_prompt, tokens_of
from app.compaction.summary import (
    INSTRUCTION,
    SUMMARY_TOKENS,
    merge_question,
    put_together,
    quotes_in,
    quotes_of,
    text_question,
)
from app.db.records import Fold, Message

# Characters a token has at least in prose: what is cut by it fits.
_CHARS_A_TOKEN = 2.5
_MOST_PARTS = 64


@dataclass
class Compaction:
    """One conversation's. `ask` streams the answer to messages; `keep` writes a fold and gives it back with its id.

    `render` turns messages into those of a request; `count` counts tokens as the model does, `of` a message's.
    """

    path: Sequence[Message]
    folds: list[Fold]
    own_prompt: str
    n_ctx: int
    ask: Callable[[list[dict[str, Any]], int], Any]
    keep: Callable[[Part, str], Fold]
    render: Callable[[Sequence[Message]], list[dict[str, Any]]]
    count: Callable[[str], int]
    of: Callable[[Message], int]
    cancelled: Event = field(default_factory=Event)

    def run(self, limit: float = FOLD_AT) -> int:
        """Fold until the context is below `limit` of what there is; returns how many folds were made.

        Raises: ApiError, ServerUnreachable: the server could not be asked; what was folded stays.
        """
        made = 0
        for _ in range(_MOST_PARTS):
            if self.cancelled.is_set() or self.tokens() < limit * self.n_ctx:
                break
            part = next_part(self.path, self.folds, self.n_ctx, self.count, self.of)
            if part is None:
                break
            summary = self._summary(part)
            if self.cancelled.is_set():
                break
            fold = self.keep(part, summary)
            gone = {old.id for old in part.merges}
            self.folds = [f for f in self.folds if f.id not in gone] + [fold]
            made += 1
        return made

    def tokens(self) -> int:
        """Tokens of the context as it is now."""
        return tokens_of(sent(self.path, self.folds), self.own_prompt, self.count, self.of)

    def _summary(self, part: Part) -> str:
        if part.merges:
            words = self._asked([{"role": "user", "content": merge_question(part.merges)}])
            return put_together(words, quotes_in(part.merges))
        ids = [message.id for message in self.path]
        upto = self.path[: ids.index(part.last_id) + 1]
        seen: Sent = sent(upto, self.folds)
        used = tokens_of(seen, self.own_prompt, self.count, self.of)
        if used + SUMMARY_TOKENS + self.count(INSTRUCTION) < 0.95 * self.n_ctx:
            # As the chat has it, so that the model has read nearly all of it already.
            prompt = system_prompt(self.own_prompt, seen.summaries)
            asked = [{"role": "system", "content": prompt}] if prompt else []
            words = self._asked([*asked, *self.render(seen.messages), {"role": "user", "content": INSTRUCTION}])
        else:
            most = int((0.9 * self.n_ctx - 2 * SUMMARY_TOKENS) * _CHARS_A_TOKEN)
            words = self._asked([{"role": "user", "content": text_question(part.messages, most)}])
        return put_together(words, quotes_of(part.messages))

    def _asked(self, messages: list[dict[str, Any]]) -> str:
        whole = WholeAnswer()
        stream = self.ask(messages, SUMMARY_TOKENS)
        try:
            chunk: Answer
            for chunk in stream:
                whole.take(chunk)
                if self.cancelled.is_set():
                    break
        finally:
            stream.close()
        return whole.content
