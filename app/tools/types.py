"""A tool as a model sees it, and what it answers."""

from typing import Any

import msgspec


class ToolOutcome(msgspec.Struct, frozen=True):
    """A tool's answer to the model."""

    text: str
    ok: bool = True


class ToolRefused(Exception):
    """A call that is not carried out; the text goes back to the model."""


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
