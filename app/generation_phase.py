"""Where an answer is before and while it is written: the same words in the window and in the terminal.

`tr` translates; the terminal passes the text on as it is.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from engine.api.chat import ChatChunk

# From so many seconds on the words say how long it has taken.
_MIN_SHOWN_S = 1.0
# An idle machine has read a usual prompt by then.
_MIN_BUSY_S = 3.0
_BUSY_LOAD = 1.5


@dataclass(frozen=True)
class Phase:
    """`done` of `total` tokens of the prompt, or of 100 % of a load, where `name` is one of these."""

    name: Literal["waiting", "loading", "reading", "thinking", "writing"] = "waiting"
    done: int = 0
    total: int = 0
    before: int = 0
    compiling: bool = False


WAITING, THINKING, WRITING = Phase("waiting"), Phase("thinking"), Phase("writing")


def phase_of(chunk: ChatChunk) -> Phase | None:
    """What a chunk of a streamed answer says about where it is; None: nothing new."""
    load, prompt = chunk.load_progress, chunk.prompt_progress
    if load is not None:
        return Phase("loading", round(100 * load.fraction), 100, load.waiting, load.compiling)
    if prompt is not None:
        return Phase("reading", prompt.processed, prompt.total)
    for choice in chunk.choices:
        if choice.delta.content or choice.delta.tool_calls:
            return WRITING
        if choice.delta.reasoning_content:
            return THINKING
        if choice.delta.role:
            return Phase("reading")
    return None


def phase_text(phase: Phase, seconds: float, tr: Callable[[str], str], number: Callable[[int], str]) -> str:
    """`Reading your prompt 1,204 of 2,831 · 12 s`."""
    if phase.name == "loading" and phase.compiling:
        words = tr("Compiling the model for its device {n} % (the first time only)").format(n=phase.done)
    elif phase.name == "loading":
        words = tr("Starting the model {n} %").format(n=phase.done)
    elif phase.name == "reading" and phase.total:
        words = tr("Reading your prompt {n} of {total}").format(n=number(phase.done), total=number(phase.total))
    else:
        words = {
            "waiting": tr("Waiting for its turn"),
            "reading": tr("Reading your prompt"),
            "thinking": tr("Thinking"),
            "writing": tr("Writing"),
        }[phase.name]
    if phase.before:
        words = f"{words} · " + tr("{n} before this one").format(n=phase.before)
    if seconds < _MIN_SHOWN_S:
        return words
    words = f"{words} · " + tr("{n} s").format(n=int(seconds))
    return f"{words} · " + tr("this computer is busy") if seconds >= _MIN_BUSY_S and is_busy() else words


def is_busy() -> bool:
    """More programs want to compute than there are processors, so that answers begin late.

    The load is the mean of a minute; a model of our own adds as many as it has threads, one for each processor.
    """
    try:
        load, _, _ = os.getloadavg()
    except (AttributeError, OSError):  # Windows has none
        return False
    return load > _BUSY_LOAD * (os.cpu_count() or 1)
