"""Renders text in a dialect: calls that a template cannot write, and the head of a response to be continued."""

import json
from collections.abc import Sequence

from engine.chat.reasoning import Markers, open_markers
from engine.chat.tools.dialect import Dialect
from engine.chat.types import ToolCall


def _arguments(call: ToolCall) -> object:
    try:
        return json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        return {"arguments": call.arguments}


def _object(call: ToolCall) -> str:
    return json.dumps({"name": call.name, "arguments": _arguments(call)}, ensure_ascii=False)


def _python(call: ToolCall) -> str:
    arguments = _arguments(call)
    pairs = arguments.items() if isinstance(arguments, dict) else ()
    return f"{call.name}({', '.join(f'{key}={value!r}' for key, value in pairs)})"


def _deepseek(call: ToolCall) -> str:
    arguments = json.dumps(_arguments(call), ensure_ascii=False)
    return f"<｜tool▁call▁begin｜>{call.name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>"


def spell(dialect: Dialect, calls: Sequence[ToolCall]) -> str:
    """Render calls in this dialect; in Hermes format if it defines none."""
    if dialect.name == "lfm2":
        return f"<|tool_call_start|>[{', '.join(map(_python, calls))}]<|tool_call_end|>"
    if dialect.name == "deepseek":
        return f"<｜tool▁calls▁begin｜>{''.join(map(_deepseek, calls))}<｜tool▁calls▁end｜>"
    if dialect.name == "granite":
        return f"<|tool_call|>[{', '.join(map(_object, calls))}]"
    if dialect.name == "phi":
        return f"<|tool_call|>[{', '.join(map(_object, calls))}]<|/tool_call|>"
    return "\n".join(f"<tool_call>\n{_object(call)}\n</tool_call>" for call in calls)


def continuation(dialect: Dialect, source: str, prefill: str, reasoning: str, content: str) -> str:
    """Text between the template's `prefill` and the content, to continue a response with the family's own markers.

    `source`: the template, which shows whether the family puts its markers on separate lines.
    """
    opened = open_markers(prefill, dialect.reasoning)
    head = "" if prefill.endswith(dialect.content_opening) else dialect.content_opening
    visible = head + content if content else ""
    if opened is not None:
        return f"{reasoning}{_closing(opened, source)}{visible}" if content else reasoning
    if not reasoning:
        return visible
    if dialect.headers is not None and dialect.call_preamble is not None:
        start, end = dialect.call_preamble
        return f"{start}{reasoning}{end}{visible}" if content else start + reasoning
    own = dialect.reasoning
    if own is None:
        return visible or reasoning
    start = own.start + ("\n" if _on_lines(own.start, source) else "")
    return f"{start}{reasoning}{_closing(own, source)}{visible}" if content else start + reasoning


def _closing(markers: Markers, source: str) -> str:
    lines = _on_lines(markers.end, source)
    return f"\n{markers.end}\n\n" if lines else markers.end


def _on_lines(mark: str, source: str) -> bool:
    """Whether the template writes a line break after this marker, in its text or in a literal."""
    return f"{mark}\n" in source or f"{mark}\\n" in source
