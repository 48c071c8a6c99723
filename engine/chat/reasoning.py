"""Reasoning blocks: their markers, and splitting them from the answer while it streams."""

from typing import Final, NamedTuple


class Markers(NamedTuple):
    """The texts that open and close a reasoning block."""

    start: str
    end: str


# Source: the chat templates in tests/data/templates and the model cards of their makers.
MARKERS: Final = (
    Markers("<think>", "</think>"),
    Markers("[THINK]", "[/THINK]"),
    Markers("<seed:think>", "</seed:think>"),
    Markers("<|START_THINKING|>", "<|END_THINKING|>"),
    Markers("<|channel>thought", "<channel|>"),
    Markers("<|inner_prefix|>", "<|inner_suffix|>"),
    Markers("<reasoning>", "</reasoning>"),
)


def open_markers(prefill: str, own: Markers | None = None) -> Markers | None:
    """The markers of a reasoning block that the head of the answer leaves open; `own`: the dialect's."""
    for markers in (own, *MARKERS) if own else MARKERS:
        start = prefill.rfind(markers.start)
        if start >= 0 and markers.end not in prefill[start:]:
            return markers
    return None


def close_open_reasoning(prefill: str, reasoning: str, content: str) -> str:
    """The text that continues an answer after `prefill`: reasoning inside its markers, then the content."""
    opened = open_markers(prefill)
    if opened is None:
        return f"<think>\n{reasoning}\n</think>\n\n{content}" if reasoning and content else reasoning + content
    if not content:
        return reasoning
    return f"{reasoning}\n{opened.end}\n\n{content}"
