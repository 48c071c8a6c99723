"""Checks what a request says about tools before it is used."""

import re
from typing import Final

from engine.chat.query import ChatQuery
from engine.chat.types import NamedTool
from engine.core.errors import InputFault

# Call names that break no grammar or template; OpenAI allows 64 of [A-Za-z0-9_-].
_NAME: Final = re.compile(r"[^\s\"'<>{}\[\]()\\]{1,128}")


def check_tools(query: ChatQuery) -> None:
    """Check for valid names, no duplicates, and a choice that names one of them.

    Raises: InputFault: naming the field.
    """
    names = [tool.name for tool in query.tools]
    for index, name in enumerate(names):
        if not _NAME.fullmatch(name):
            raise InputFault(f"{query.tools_param}[{index}]: {name!r} cannot be a tool's name.", query.tools_param)
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputFault(f"{query.tools_param}: {twice!r} is defined twice.", query.tools_param)
    if isinstance(query.tool_choice, NamedTool) and query.tool_choice.name not in names:
        raise InputFault(f"tool_choice names {query.tool_choice.name!r}, which is not in tools.", "tool_choice")
    if query.tool_choice == "required" and not names:
        raise InputFault("tool_choice is required, but there are no tools.", "tool_choice")
