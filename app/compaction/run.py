"""Summarizes a long conversation part by part; each summary is stored before the next one starts."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import Any, Final

from app.client import ChatDelta, ChatResponse
from app.compaction.plan import FOLD_AT, CompactedContext, SummaryRange, next_part, sent, system_prompt, tokens_of
from app.db.records import Message, Summary

# Minimum characters per token in prose: a text cut by this estimate fits.
_CHARS_A_TOKEN = 2.5
_MOST_PARTS = 64


@dataclass
class Compaction:
    """Functions for one conversation.

    `ask` streams the answer to messages; `keep` stores a fold and returns it with its id. `render` turns messages
    into those of a request; `count` counts tokens as the model does, `of` a message's.
    """

    path: Sequence[Message]
    folds: list[Summary]
    own_prompt: str
    n_ctx: int
    ask: Callable[[list[dict[str, Any]], int], Any]
    keep: Callable[[SummaryRange, str], Summary]
    render: Callable[[Sequence[Message]], list[dict[str, Any]]]
    count: Callable[[str], int]
    of: Callable[[Message], int]
    cancelled: Event = field(default_factory=Event)

    def run(self, limit: float = FOLD_AT) -> int:
        """Fold until the messages take less than the share `limit` of the context; returns the number of new folds.

        Raises: ApiError, ServerUnreachable: no response from the server; existing folds stay.
        """
        num_made = 0
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
            merged = {old.id for old in part.merges}
            self.folds = [f for f in self.folds if f.id not in merged] + [fold]
            num_made += 1
        return num_made

    def tokens(self) -> int:
        """Tokens of the context as it is now."""
        return tokens_of(sent(self.path, self.folds), self.own_prompt, self.count, self.of)

    def _summary(self, part: SummaryRange) -> str:
        if part.merges:
            words = self._generate([{"role": "user", "content": merge_question(part.merges)}])
            return put_together(words, quotes_in(part.merges))
        ids = [message.id for message in self.path]
        upto = self.path[: ids.index(part.last_id) + 1]
        seen: CompactedContext = sent(upto, self.folds)
        used = tokens_of(seen, self.own_prompt, self.count, self.of)
        if used + SUMMARY_TOKENS + self.count(INSTRUCTION) < 0.95 * self.n_ctx:
            # The same messages as in the chat, so that nearly all of the prompt is cached.
            prompt = system_prompt(self.own_prompt, seen.summaries)
            system = [{"role": "system", "content": prompt}] if prompt else []
            words = self._generate([*system, *self.render(seen.messages), {"role": "user", "content": INSTRUCTION}])
        else:
            most = int((0.9 * self.n_ctx - 2 * SUMMARY_TOKENS) * _CHARS_A_TOKEN)
            words = self._generate([{"role": "user", "content": text_question(part.messages, most)}])
        return put_together(words, quotes_of(part.messages))

    def _generate(self, messages: list[dict[str, Any]]) -> str:
        whole = ChatResponse()
        stream = self.ask(messages, SUMMARY_TOKENS)
        try:
            chunk: ChatDelta
            for chunk in stream:
                whole.take(chunk)
                if self.cancelled.is_set():
                    break
        finally:
            stream.close()
        return whole.content


# Requests and assembles a summary: the model's words, and lines that must be repeated unchanged.

# Tokens of the model's own words.
SUMMARY_TOKENS: Final = 220
INSTRUCTION: Final = (
    "Summarize our conversation above in at most 120 words for yourself, so that you can go on without it. Keep "
    "names, numbers, dates, decisions, what was asked for and what is still open. Write only the summary."
)
_MERGE: Final = (
    "These are summaries of successive parts of one conversation. Write one summary of at most 150 words that "
    "keeps names, numbers, dates, decisions and what is still open. Write only the summary.\n\n"
)
# Maximum number of lines that are quoted verbatim, and the maximum length of each.
_QUOTES: Final = 8
_QUOTE_CHARS: Final = 180
_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+|\n+")
_QUOTED: Final = "Word for word:"
_NUMBER: Final = re.compile(r"\d")
_NAME: Final = re.compile(r"(?<!^)(?<![.!?] )\b[A-Z][\w-]+")
_REQUEST: Final = re.compile(
    r"\b(remember|must|never|always|prefer|important|my|called|named|decided|agreed)\b", re.IGNORECASE
)


def merge_question(folds: Sequence[Summary]) -> str:
    """The prompt that requests one summary of several."""
    return _MERGE + "\n\n".join(without_quotes(fold.summary) for fold in folds)


def text_question(messages: Sequence[Message], most_chars: int) -> str:
    """The prompt for a summary of messages that are too long: their middle is cut out and marked."""
    share = max(200, most_chars // max(1, len(messages)))
    lines = []
    for message in messages:
        text = message.content
        if len(text) > share:
            text = f"{text[: share // 2]}\n[… {len(text) - share} characters left out …]\n{text[-share // 2 :]}"
        lines.append(f"{message.role}: {text}")
    return "\n\n".join(lines)[:most_chars] + f"\n\n{INSTRUCTION}"


def put_together(words: str, quotes: Sequence[str]) -> str:
    """The text of a fold."""
    parts = [words.strip()]
    if quotes:
        parts.append("\n".join([_QUOTED, *(f"- {quote}" for quote in quotes)]))
    return "\n".join(part for part in parts if part)


def quotes_of(messages: Sequence[Message]) -> list[str]:
    """Sentences of the user with names, numbers or requirements, in order: small models lose these first."""
    ranked: list[tuple[int, int, str]] = []
    for message in messages:
        if message.role != "user":
            continue
        for sentence in _SENTENCE.split(message.content):
            text = " ".join(sentence.split())
            if not text or len(text) > _QUOTE_CHARS:
                continue
            weight = (
                2 * bool(_NUMBER.search(text)) + min(2, len(_NAME.findall(text))) + 2 * bool(_REQUEST.search(text))
            )
            if weight > 1:
                ranked.append((weight, len(ranked), text))
    best = sorted(ranked, key=lambda entry: (-entry[0], entry[1]))[:_QUOTES]
    return list(dict.fromkeys(text for _, _, text in sorted(best, key=lambda entry: entry[1])))


def quotes_in(folds: Sequence[Summary]) -> list[str]:
    """Passages that the summaries of these folds contain verbatim."""
    lines = [
        line[2:] for fold in folds for line in fold.summary.partition(_QUOTED)[2].splitlines() if line[:2] == "- "
    ]
    return list(dict.fromkeys(lines))[: 2 * _QUOTES]


def without_quotes(summary: str) -> str:
    """The part of a summary that the model wrote."""
    return summary.partition(_QUOTED)[0].strip()
