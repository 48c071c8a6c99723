"""How much a model reasons: the variables of its template, and a budget that the runner enforces."""

from typing import Any, Final

from engine.chat.query import ChatQuery
from engine.chat.reasoning import Markers, open_markers
from engine.chat.tools.dialect import Dialect
from engine.chat.types import Rendered
from engine.core.types import ReasoningBudget

# Words for `reasoning_effort` that mean: do not reason.
_NO_EFFORT: Final = frozenset({"none", "minimal", "off"})
# Tokens of reasoning where the template knows no such word. Source: low is the smallest budget that Anthropic's API
# takes, medium four times that; more effort than that is left to the model.
LEVELS: Final = {"low": 1024, "medium": 4096}
_SWITCHES: Final = ("enable_thinking", "thinking", "reasoning_effort")


def marks_of(dialect: Dialect, rendered: Rendered, source: str) -> Markers | None:
    """The dialect's reasoning marks if this very model can be expected to use them."""
    marks = dialect.reasoning
    if marks is not None and (rendered.traits.reasoning or marks.end in source):
        return marks
    return None


def template_variables(query: ChatQuery) -> dict[str, Any]:
    """The template's variables for reasoning; the client's own win."""
    variables: dict[str, Any] = {}
    thinking = query.thinking
    if query.reasoning_effort is not None:
        variables["reasoning_effort"] = query.reasoning_effort
        if thinking is None and query.reasoning_effort in _NO_EFFORT:
            thinking = False
    if query.reasoning_budget is not None:
        variables["thinking_budget"] = query.reasoning_budget
        if thinking is None and query.reasoning_budget == 0:
            thinking = False
    if thinking is not None:
        variables |= {"enable_thinking": thinking, "thinking": thinking}
    return variables | query.template_variables


def budget_of(
    query: ChatQuery, dialect: Dialect, rendered: Rendered, source: str, *, formed: bool
) -> ReasoningBudget | None:
    """The bound of a request's reasoning with this family's own marks; None where there is none to keep.

    `formed`: a constraint begins right behind the closing mark, so nothing else may stand there.
    """
    tokens = _tokens(query, source)
    if tokens is None:
        return None
    opened = open_markers(rendered.prefill, dialect.reasoning)
    marks = opened or marks_of(dialect, rendered, source)
    if marks is not None:
        # Families with tags of their own put the answer into the next paragraph.
        close = f"\n{marks.end}\n\n" if marks.end.startswith("</") else marks.end
        close = close.rstrip() if formed else close
        is_open = opened is not None
        return ReasoningBudget(tokens=tokens, start=marks.start, end=marks.end, close=close, is_open=is_open)
    if dialect.headers is not None and dialect.call_preamble is not None:
        start, next_message = dialect.call_preamble
        return ReasoningBudget(
            tokens=tokens,
            start=start,
            end=dialect.headers.body_ends[0],
            close=next_message + dialect.content_opening,
            is_open=False,
        )
    return None


def _tokens(query: ChatQuery, source: str) -> int | None:
    if query.reasoning_budget is not None:
        return query.reasoning_budget
    if query.thinking is False or query.reasoning_effort is None or "reasoning_effort" in source:
        return None
    return LEVELS.get(query.reasoning_effort)


def notes_of(query: ChatQuery, budget: ReasoningBudget | None, source: str) -> tuple[str, ...]:
    """What of the request's wishes about the template and its reasoning had no effect."""
    notes = [
        f"the template reads no variable {name!r}: it had no effect"
        for name in query.template_variables
        if name not in source
    ]
    if query.reasoning_budget is not None and budget is None:
        notes.append("this model marks no reasoning that could be bounded: the budget had no effect")
    wanted = query.thinking is not None or query.reasoning_effort is not None
    if wanted and budget is None and not any(name in source for name in _SWITCHES):
        notes.append("the template has no switch for reasoning: the request's setting had no effect")
    return tuple(notes)
