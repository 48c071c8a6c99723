"""Tools with free-text input, shown to the model as functions with that text as their only argument."""

import json
from typing import Any, Final

from engine.chat.types import ToolDefinition

TEXT_PARAMETER: Final = "input"


def definition(
    name: str, description: str, syntax: str | None = None, grammar: str | None = None
) -> ToolDefinition:
    """The function that the model sees; a grammar is added to its description."""
    if grammar is not None:
        description += f"\n\nThe input must follow this {syntax} grammar:\n{grammar}"
    properties = {TEXT_PARAMETER: {"type": "string"}}
    schema = {"type": "object", "properties": properties, "required": [TEXT_PARAMETER]}
    return ToolDefinition(name=name, description=description, parameters=schema)


def as_arguments(text: str) -> str:
    """The arguments of a call with this text, as JSON."""
    return json.dumps({TEXT_PARAMETER: text}, ensure_ascii=False)


def custom_input(arguments: str) -> str:
    """The free text in a call's arguments; if there is none, the arguments unchanged."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    text = value.get(TEXT_PARAMETER) if isinstance(value, dict) else None
    return text if isinstance(text, str) else arguments


def chat_call(call: dict[str, Any], custom: frozenset[str]) -> dict[str, Any]:
    """A complete call of a chat completion, in the format of its tool."""
    function = call["function"]
    if function["name"] not in custom:
        return call
    text = custom_input(function["arguments"])
    return {"id": call["id"], "type": "custom", "custom": {"name": function["name"], "input": text}}
