"""The phase of a response (waiting, loading, reading, writing); window and terminal show the same texts.

`tr` translates; the terminal passes the text through unchanged.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from devices.host import is_busy
from engine.api.chat import ChatChunk

# Show the elapsed seconds from this time on.
_MIN_SHOWN_S = 1.0
# An idle machine finishes a typical prompt within this time.
_MIN_BUSY_S = 3.0
# Show the remaining time from the first value on, in minutes from the second value on.
_MIN_LEFT_S, _MINUTES_FROM_S = 2.0, 90.0


@dataclass(frozen=True)
class GenerationPhase:
    """`done` of `total`: prompt tokens while reading, percent while loading. `busy`: as the server measured.

    `left_s`: about so many seconds until the response starts (0: unknown).
    """

    name: Literal["waiting", "permission", "loading", "reading", "thinking", "writing"] = "waiting"
    done: int = 0
    total: int = 0
    before: int = 0
    compiling: bool = False
    busy: bool = False
    left_s: float = 0.0


WAITING, THINKING, WRITING = GenerationPhase("waiting"), GenerationPhase("thinking"), GenerationPhase("writing")
PERMISSION = GenerationPhase("permission")  # the user is asked whether a tool may run


def phase_of(chunk: ChatChunk) -> GenerationPhase | None:
    """The phase that a chunk of a streamed response reports; None if it reports nothing new."""
    load, prompt = chunk.load_progress, chunk.prompt_progress
    if load is not None:
        return GenerationPhase("loading", round(100 * load.fraction), 100, load.waiting, load.compiling)
    if prompt is not None:
        return GenerationPhase("reading", prompt.processed, prompt.total, busy=prompt.busy, left_s=prompt.left_s)
    for choice in chunk.choices:
        if choice.delta.content or choice.delta.tool_calls:
            return WRITING
        if choice.delta.reasoning_content:
            return THINKING
        if choice.delta.role:
            return GenerationPhase("reading")
    return None


def phase_text(
    phase: GenerationPhase, seconds: float, tr: Callable[[str], str], number: Callable[[int], str]
) -> str:
    """Describe the phase, for example `Reading your prompt 1,204 of 2,831 · 12 s · about 16 s left`."""
    if phase.name == "loading" and phase.compiling:
        words = tr("Compiling the model for its device {n} % (the first time only)").format(n=phase.done)
    elif phase.name == "loading":
        words = tr("Starting the model {n} %").format(n=phase.done)
    elif phase.name == "reading" and phase.total:
        words = tr("Reading your prompt {n} of {total}").format(n=number(phase.done), total=number(phase.total))
    else:
        words = {
            "waiting": tr("Waiting for its turn"),
            "permission": tr("Waiting for your permission"),
            "reading": tr("Reading your prompt"),
            "thinking": tr("Thinking"),
            "writing": tr("Writing"),
        }[phase.name]
    if phase.before:
        words = f"{words} · " + tr("{n} before this one").format(n=phase.before)
    if seconds < _MIN_SHOWN_S or phase.name == "permission":
        return words
    words = f"{words} · " + tr("{n} s").format(n=int(seconds))
    if phase.left_s >= _MIN_LEFT_S:
        minutes = phase.left_s >= _MINUTES_FROM_S
        remaining = (
            tr("{n} min").format(n=round(phase.left_s / 60))
            if minutes
            else tr("{n} s").format(n=round(phase.left_s))
        )
        words += " · " + tr("about {time} left").format(time=remaining)
    busy = phase.busy or (seconds >= _MIN_BUSY_S and is_busy())
    return f"{words} · " + tr("this computer is busy") if busy else words
