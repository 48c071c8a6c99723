# ruff: noqa: RUF001 - DeepSeek writes its markers with full-width bars
"""Writing calls in a dialect's own words, for templates that cannot, and for the prompt that teaches them."""

import json
from collections.abc import Sequence

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
    """The calls as a model of this dialect would write them; the Hermes way where the dialect has no own."""
    if dialect.name == "lfm2":
        return f"<|tool_call_start|>[{', '.join(map(_python, calls))}]<|tool_call_end|>"
    if dialect.name == "deepseek":
        return f"<｜tool▁calls▁begin｜>{''.join(map(_deepseek, calls))}<｜tool▁calls▁end｜>"
    if dialect.name == "granite":
        return f"<|tool_call|>[{', '.join(map(_object, calls))}]"
    if dialect.name == "phi":
        return f"<|tool_call|>[{', '.join(map(_object, calls))}]<|/tool_call|>"
    return "\n".join(f"<tool_call>\n{_object(call)}\n</tool_call>" for call in calls)
