"""A tool as a model sees it, what it is called with, and what it answers."""

import json
from typing import Any

import msgspec


class ToolOutcome(msgspec.Struct, frozen=True):
    """A tool's answer to the model."""

    text: str
    ok: bool = True


class ToolRefused(Exception):
    """A call that is not carried out; the text goes back to the model."""


def decode_arguments(tool: str, text: str) -> dict[str, Any]:
    """The arguments a model wrote for a tool. Raises: ToolRefused: they are no JSON object."""
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise ToolRefused(f"The arguments of {tool} are no JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise ToolRefused(f"The arguments of {tool} must be an object.")
    return arguments


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool as the model sees it; `parameters` is a JSON schema."""

    name: str
    description: str
    parameters: dict[str, Any]

    def as_openai(self) -> dict[str, Any]:
        """The form of chat completions."""
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": self.parameters},
        }
