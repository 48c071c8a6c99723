"""A tool as a model sees it, what it is called with, and what it answers."""

import json
import shlex
from collections.abc import Sequence
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


# Text that others wrote, where a person reads it: what a terminal would obey is spelled out.


def shown_argv(argv: Sequence[str]) -> str:
    """A command so that it can be read without doubt: quoted, with invisible characters spelled out."""
    return " ".join(
        shlex.quote(word) if word.isprintable() else "$" + ascii(word).replace('"', '\\"') for word in argv
    )


def shown_line(text: str) -> str:
    """A title or a warning, which is one line: line breaks and tabs are spelled out too."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def shown_text(text: str) -> str:
    """Text for a terminal or a label: control characters but line breaks and tabs are spelled out."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)
