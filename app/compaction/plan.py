"""Selects the part of a conversation to summarize next, and the text of it that the model gets.

Sends no request.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from app.db.records import Message, Summary

# Shares of the context. Above FOLD_AT, the older part is folded until the rest takes up only KEEP.
FOLD_AT: Final = 0.7
KEEP: Final = 0.35
# One summary reads at most this much, so that it fits together with the summaries before it and its own text.
_CHUNK: Final = 0.4
# Summaries that take more than this are summarized together.
_SUMMARIES: Final = 0.2
_OVERHEAD: Final = 8  # tokens that a chat template adds to a message, rounded up


@dataclass(frozen=True)
class SummaryRange:
    """The contents of a new fold: messages, or older folds (`merges`) in the order of the conversation."""

    first_id: int
    last_id: int
    messages: tuple[Message, ...] = ()
    merges: tuple[Summary, ...] = ()


@dataclass(frozen=True)
class CompactedContext:
    """The prompt's contents: summaries, oldest first, then unchanged messages."""

    summaries: tuple[Summary, ...]
    messages: tuple[Message, ...]


def in_force(path: Sequence[Message], folds: Iterable[Summary]) -> list[Summary]:
    """The folds of this branch that no later fold includes, oldest first."""
    places = {message.id: place for place, message in enumerate(path)}
    summaries = [
        fold
        for fold in folds
        if fold.inside_id is None
        and fold.first_id in places
        and fold.last_id in places
        and places[fold.first_id] <= places[fold.last_id]
    ]
    apart: list[Summary] = []
    for fold in sorted(summaries, key=lambda fold: places[fold.first_id]):
        if not apart or places[fold.first_id] > places[apart[-1].last_id]:
            apart.append(fold)
    return apart


def inside(path: Sequence[Message], fold: Summary) -> list[Message]:
    """The originals of a fold."""
    ids = [message.id for message in path]
    return list(path[ids.index(fold.first_id) : ids.index(fold.last_id) + 1])


def sent(path: Sequence[Message], folds: Iterable[Summary]) -> CompactedContext:
    """The messages of a branch that the model gets: originals of an open fold, the summary of a closed one."""
    closed = [fold for fold in in_force(path, folds) if not fold.opened]
    hidden = {message.id for fold in closed for message in inside(path, fold)}
    return CompactedContext(tuple(closed), tuple(message for message in path if message.id not in hidden))


def system_prompt(own: str, summaries: Sequence[Summary]) -> str:
    """The system prompt followed by the summaries, so that a new summary leaves its beginning unchanged."""
    parts = [own.strip()] if own.strip() else []
    if summaries:
        parts.append("Earlier parts of this conversation, summarized:")
    parts += [f"[Part {number}]\n{fold.summary.strip()}" for number, fold in enumerate(summaries, 1)]
    return "\n\n".join(parts)


def tokens_of(
    what: CompactedContext, own_prompt: str, count: Callable[[str], int], of: Callable[[Message], int]
) -> int:
    """Count the tokens of a context; `of` counts one message with its documents."""
    return count(system_prompt(own_prompt, what.summaries)) + sum(
        of(message) + _OVERHEAD for message in what.messages
    )


def next_part(
    path: Sequence[Message],
    folds: Iterable[Summary],
    n_ctx: int,
    count: Callable[[str], int],
    of: Callable[[Message], int],
) -> SummaryRange | None:
    """The messages to fold now; None if there are none. The last question is never folded."""
    current = in_force(path, folds)
    closed = [fold for fold in current if not fold.opened]
    if len(closed) > 1 and sum(count(fold.summary) for fold in closed) > _SUMMARIES * n_ctx:
        oldest = _neighbours(path, closed)
        if len(oldest) > 1:
            return SummaryRange(oldest[0].first_id, oldest[-1].last_id, merges=tuple(oldest))
    summarized = {message.id for fold in current for message in inside(path, fold)}
    turns = _turns(path, summarized)[:-1]
    chosen: list[Message] = []
    size = 0
    size_left = sum(of(message) + _OVERHEAD for message in path if message.id not in summarized)
    for turn in turns:
        cost = sum(of(message) + _OVERHEAD for message in turn)
        if chosen and (size + cost > _CHUNK * n_ctx or size_left - size <= KEEP * n_ctx):
            break
        chosen += turn
        size += cost
    return SummaryRange(chosen[0].id, chosen[-1].id, tuple(chosen)) if chosen else None


def _neighbours(path: Sequence[Message], closed: list[Summary]) -> list[Summary]:
    """The older half of the folds, as far as they follow each other without a message between them."""
    ids = [message.id for message in path]
    neighbours = [closed[0]]
    for fold in closed[1 : max(2, (len(closed) + 1) // 2)]:
        if ids.index(neighbours[-1].last_id) + 1 != ids.index(fold.first_id):
            break
        neighbours.append(fold)
    return neighbours


def _turns(path: Sequence[Message], summarized: set[int]) -> list[list[Message]]:
    """The messages that are not folded yet, up to the first gap, split before each question."""
    turns: list[list[Message]] = []
    started = False
    for message in path:
        if message.id in summarized:
            if started:
                break
            continue
        started = True
        if message.role == "user" or not turns:
            turns.append([])
        turns[-1].append(message)
    return turns
