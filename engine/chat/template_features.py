"""What a template can express, found out by rendering small probes and looking for their words."""

from collections.abc import Callable, Sequence
from typing import Any

from jinja2 import TemplateError

from engine.chat.types import TemplateTraits

Render = Callable[..., str]

_SYSTEM, _USER, _ANSWER, _THOUGHT = "qzsystemqz", "qzuserqz", "qzanswerqz", "qzthoughtqz"
_TOOL, _KEY, _VALUE, _RESULT, _OTHER = "qztoolqz", "qzkeyqz", "qzvalueqz", "qzresultqz", "qzotherqz"
_ID = "qzcallid1"  # nine letters and digits: Mistral's templates insist
_ID_2 = "qzcallid2"


def _tool(name: str) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {_KEY: {"type": "string", "description": "probe"}},
        "required": [_KEY],
    }
    function = {"name": name, "description": "probe", "parameters": parameters}
    return {"type": "function", "function": function}


def _call(call_id: str, name: str, arguments: object) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _try(render: Render, messages: Sequence[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> str:
    """The rendering, or nothing where the template refuses or breaks."""
    try:
        return render(messages, tools, add_generation_prompt=False)
    except (TemplateError, TypeError, ValueError, KeyError, AttributeError, IndexError, ArithmeticError):
        return ""


def probe(render: Render, *, indexed_ids: bool = False) -> TemplateTraits:
    """Learn the traits of a template.

    `render(messages, tools, add_generation_prompt=False)` renders it; a dozen short renders are made.
    `indexed_ids`: the template reads the function's name out of the call's id.
    """
    first_id, second_id = (f"functions.{_TOOL}:0", f"functions.{_OTHER}:1") if indexed_ids else (_ID, _ID_2)
    user: dict[str, Any] = {"role": "user", "content": _USER}
    typed = [{"type": "text", "text": _USER}]
    typed_content = _USER not in _try(render, [user]) and _USER in _try(
        render, [{"role": "user", "content": typed}]
    )
    if typed_content:
        user = {"role": "user", "content": typed}

    def content(text: str) -> Any:
        return [{"type": "text", "text": text}] if typed_content else text

    def turn(arguments: object, *more: dict[str, Any]) -> list[dict[str, Any]]:
        calls = [_call(first_id, _TOOL, arguments), *more]
        return [user, {"role": "assistant", "content": content(""), "tool_calls": calls}]

    tools = [_tool(_TOOL)]
    as_object = _try(render, turn({_KEY: _VALUE}), tools)
    as_text = _try(render, turn(f'{{"{_KEY}": "{_VALUE}"}}'), tools)
    arguments_as_text = not _shows_call(as_object) and _shows_call(as_text)
    arguments: object = f'{{"{_KEY}": "{_VALUE}"}}' if arguments_as_text else {_KEY: _VALUE}
    tool_calls = _shows_call(as_text if arguments_as_text else as_object)
    answers = [{"role": "tool", "tool_call_id": first_id, "name": _TOOL, "content": content(_RESULT)}]
    system = {"role": "system", "content": content(_SYSTEM)}
    thought = {
        "role": "assistant",
        "content": content(_ANSWER),
        "reasoning_content": _THOUGHT,
        "reasoning": _THOUGHT,
        "thinking": _THOUGHT,
    }
    return TemplateTraits(
        # Some templates are written for conversations with tools only.
        system_role=any(_SYSTEM in _try(render, [system, user], given) for given in (None, tools)),
        tools=_TOOL in _try(render, [user], tools),
        tool_calls=tool_calls,
        tool_results=_RESULT in _try(render, [*turn(arguments), *answers], tools),
        parallel_calls=tool_calls
        and _shows_both(
            _try(render, turn(arguments, _call(second_id, _OTHER, arguments)), [*tools, _tool(_OTHER)])
        ),
        arguments_as_text=arguments_as_text,
        typed_content=typed_content,
        reasoning=_THOUGHT in _try(render, [user, thought]) or _THOUGHT in _try(render, [user, thought, user]),
    )


def _shows_call(text: str) -> bool:
    """Whether a call is there with its argument, and not as Python's own notation of a dictionary."""
    start = text.rfind(_TOOL)
    tail = text[start:]
    return start >= 0 and _KEY in tail and _VALUE in tail and f"'{_KEY}'" not in tail and '\\"' not in tail


def _shows_both(text: str) -> bool:
    """Whether both calls of one turn are there, beyond their definitions."""
    return text.count(_TOOL) > 1 and text.rfind(_OTHER) > text.rfind(_VALUE, 0, text.rfind(_OTHER)) > 0
