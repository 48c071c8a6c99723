"""Tool specifications, arguments and results."""

import json
import shlex
from collections.abc import Sequence
from typing import Any

import msgspec

from app.answer_facts import WebSource


class ToolOutcome(msgspec.Struct, frozen=True):
    """A tool result for the model, and the pages of the web that it is based on."""

    text: str
    ok: bool = True
    sources: tuple[WebSource, ...] = ()


class ToolRefused(Exception):
    """A call that is refused; the message goes to the model."""


def decode_arguments(tool: str, text: str) -> dict[str, Any]:
    """Parse the arguments of a tool call. Raises: ToolRefused: they are not a JSON object."""
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise ToolRefused(f"The arguments of {tool} are no JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise ToolRefused(f"The arguments of {tool} must be an object.")
    return arguments


def object_schema(required: Sequence[str], **properties: Any) -> dict[str, Any]:
    """JSON schema of a tool's arguments."""
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


class ToolSpec(msgspec.Struct, frozen=True):
    """Specification of a tool for the model; `parameters` is a JSON schema."""

    name: str
    description: str
    parameters: dict[str, Any]

    def as_openai(self) -> dict[str, Any]:
        """Format for chat completions."""
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": self.parameters},
        }


# Display untrusted text: characters that a terminal would interpret are escaped.


def shown_argv(argv: Sequence[str]) -> str:
    """Format a command unambiguously: quoted, with invisible characters escaped."""
    return " ".join(
        shlex.quote(word) if word.isprintable() else "$" + ascii(word).replace('"', '\\"') for word in argv
    )


def shown_line(text: str) -> str:
    """A title or warning on one line: line breaks and tabs are escaped too."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def shown_text(text: str) -> str:
    """Text for a terminal or a label: control characters except line breaks and tabs are escaped."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)
