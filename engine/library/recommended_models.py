"""Recommends a first model: a small curated table, and three proposals that fit this computer."""

import tomllib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from devices.msgspec_lock import learned
from engine.library.hub.types import JobName, Proposal, Recommended, Starter, Want
from engine.message_catalog.reasons import because

_WANTS: tuple[tuple[Want, JobName], ...] = (("fast", "tiny"), ("balanced", "chat"), ("pictures", "vision"))

_PROPOSALS = 3
# Without a known speed: more parameters for each token are slow without a large GPU.
_MOST_READ = 9e9
# 238 words per minute of about 1.3 tokens. Source: Brysbaert 2019, "How many words do we read per minute?"
_FLUENT_TOK_S = 5.2
_USES: dict[JobName, str] = {
    "chat": "starter_chat",
    "coding": "starter_coding",
    "fim": "starter_fim",
    "edit": "starter_edit",
    "embedding": "starter_embedding",
    "rerank": "starter_rerank",
    "vision": "starter_vision",
    "tiny": "starter_tiny",
}


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("starters.toml").read_text(encoding="utf-8"))


@cache
def starters() -> tuple[Starter, ...]:
    """The whole table of recommended models."""
    return msgspec.convert(_table()["model"], learned(tuple[Starter, ...]))


def listed_on() -> str:
    """The date of the table: year, month, day."""
    return str(_table()["dated"])


def starter_repo(name: str) -> str | None:
    """The repository of a recommended model's id, or None."""
    return next((s.repo for s in starters() if s.id == name.lower()), None)


def propose(
    memory_bytes: int,
    speed: Callable[[int], float] = lambda _bytes: 0.0,
    without: frozenset[str] = frozenset(),
) -> tuple[Proposal, ...]:
    """Up to three models that fit into `memory_bytes`: one for each need, then the largest of the others.

    `speed` estimates the tokens per second from the bytes that are read for each token; 0 is unknown. `without` are
    ids that are not proposed.
    """
    fitting = [
        starter for starter in starters() if starter.expected_bytes <= memory_bytes and starter.id not in without
    ]
    picked: list[Proposal] = []
    for want, job in _WANTS:
        candidates = [starter for starter in fitting if starter.job == job]
        if candidates:
            chosen = _sized(candidates, memory_bytes, speed)
            picked.append(_proposal(chosen, memory_bytes, want))
    names = {proposal.starter.id for proposal in picked}
    for starter in sorted(fitting, key=lambda s: -s.parameters):
        if len(picked) < _PROPOSALS and starter.id not in names:
            picked.append(_proposal(starter, memory_bytes))
    return tuple(picked[:_PROPOSALS])


def _sized(choices: Sequence[Starter], memory_bytes: int, speed: Callable[[int], float]) -> Starter:
    """The largest that leaves half of the memory free and writes at reading speed; else the smallest."""

    def is_quick(starter: Starter) -> bool:
        tok_s = speed(starter.bytes_per_token)
        return tok_s >= _FLUENT_TOK_S if tok_s else (starter.active or starter.parameters) <= _MOST_READ

    roomy = [starter for starter in choices if starter.expected_bytes <= memory_bytes / 2] or choices[:1]
    return max([s for s in roomy if is_quick(s)] or roomy[:1], key=lambda s: s.parameters)


def recommend(offered: Sequence[tuple[Starter, float]]) -> tuple[str, Recommended]:
    """The id of the best first model, and why. `offered` pairs models with tokens per second (0: unknown)."""
    talkers = [pair for pair in offered if pair[0].job in {"chat", "tiny"}] or list(offered)
    if not talkers:
        return "", ""
    fluent = [starter for starter, speed in talkers if speed >= _FLUENT_TOK_S]
    if fluent:
        return max(fluent, key=lambda s: s.parameters).id, "reading_speed"
    timed = [pair for pair in talkers if pair[1]]
    if timed:
        return max(timed, key=lambda pair: pair[1])[0].id, "quickest"
    return min(talkers, key=lambda pair: pair[0].expected_bytes)[0].id, "smallest"


def _proposal(starter: Starter, memory_bytes: int, want: Want = "") -> Proposal:
    use, share = because(_USES[starter.job]), starter.expected_bytes / memory_bytes
    reason = because("starter_fits", use=use, share=share)
    if starter.active:
        reason = because("starter_fits_sparse", use=use, share=share, active_b=starter.active / 1e9)
    return Proposal(starter=starter, reason=reason, want=want, expected_bytes=starter.expected_bytes)
