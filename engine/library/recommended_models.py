"""Recommends a first model: a small curated table, and three proposals that fit this computer."""

import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

from devices.msgspec_lock import learned
from engine.library.hub.types import JobName, Starter
from engine.message_catalog.reasons import Reason, because

Recommended = Literal["", "reading_speed", "quickest", "smallest"]

_PROPOSALS = 3
# 238 words per minute of about 1.3 tokens. Source: Brysbaert 2019, "How many words do we read per minute?"
_FLUENT_TOK_S = 5.2
_USES: dict[JobName, str] = {
    "chat": "starter_chat",
    "coding": "starter_coding",
    "fim": "starter_fim",
    "embedding": "starter_embedding",
    "vision": "starter_vision",
    "tiny": "starter_tiny",
}


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """A recommended model that fits, and the reason."""

    starter: Starter
    reason: Reason


@cache
def starters() -> tuple[Starter, ...]:
    """The whole table of recommended models."""
    raw = tomllib.loads(Path(__file__).with_name("starters.toml").read_text(encoding="utf-8"))
    return msgspec.convert(raw["model"], learned(tuple[Starter, ...]))


def starter_repo(name: str) -> str | None:
    """The repository of a recommended model's id, or None."""
    return next((s.repo for s in starters() if s.id == name.lower()), None)


def propose(memory_bytes: int, jobs: tuple[JobName, ...] = ("tiny", "chat", "coding")) -> tuple[Proposal, ...]:
    """Up to three that fit into `memory_bytes`: the largest for each job, then the largest others."""
    picked: list[Proposal] = []
    for job in jobs:
        fitting = [s for s in starters() if s.job == job and s.expected_bytes <= memory_bytes]
        if fitting:
            picked.append(Proposal(starter=fitting[-1], reason=_reason(fitting[-1], memory_bytes)))
    for starter in sorted(starters(), key=lambda s: -s.parameters):
        names = {p.starter.id for p in picked}
        if len(picked) < _PROPOSALS and starter.id not in names and starter.expected_bytes <= memory_bytes:
            picked.append(Proposal(starter=starter, reason=_reason(starter, memory_bytes)))
    return tuple(picked[:_PROPOSALS])


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


def _reason(starter: Starter, memory_bytes: int) -> Reason:
    use, share = because(_USES[starter.job]), starter.expected_bytes / memory_bytes
    if starter.active:
        return because("starter_fits_sparse", use=use, share=share, active_b=starter.active / 1e9)
    return because("starter_fits", use=use, share=share)
