"""Reasoning blocks: their markers, and splitting them from the response while it streams."""

from typing import Final, NamedTuple


class Markers(NamedTuple):
    """The texts that open and close a reasoning block."""

    start: str
    end: str


# Source: the chat templates in tests/data/templates and the model cards of their publishers.
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
    """The markers of a reasoning block that `prefill` leaves open; `own`: the dialect's."""
    for markers in (own, *MARKERS) if own else MARKERS:
        start = prefill.rfind(markers.start)
        if start >= 0 and markers.end not in prefill[start:]:
            return markers
    return None


def last_opening(prefill: str, markers: Markers) -> int:
    """Position in `prefill` where the text of the open block starts."""
    return prefill.rfind(markers.start) + len(markers.start)
