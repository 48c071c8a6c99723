"""Tools that Anthropic defines and the client runs, with the descriptions that other models need."""

import re
from typing import Any, Final

_TEXT: Final = {"type": "string"}
_WHOLE: Final = {"type": "integer"}
_PAIR: Final = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}
_DATED: Final = re.compile(r"(.+)_(\d{8})")
# Source: Anthropic's reference of each tool. Older editors call the text to insert new_str.
_EDITS: Final = {
    "path": _TEXT, "file_text": _TEXT, "old_str": _TEXT, "new_str": _TEXT, "insert_line": _WHOLE,
    "insert_text": _TEXT, "view_range": _PAIR,
}  # fmt: skip
_ACTIONS: Final = (
    "key", "type", "mouse_move", "left_click", "left_click_drag", "right_click", "middle_click", "double_click",
    "triple_click", "left_mouse_down", "left_mouse_up", "scroll", "hold_key", "wait", "screenshot",
    "cursor_position", "zoom",
)  # fmt: skip
# Tool families by the start of their type: description, parameters and required parameters.
_DEFINED: Final[dict[str, tuple[str, dict[str, Any], list[str]]]] = {
    "bash": (
        "Run a command in a bash shell that stays open. `restart` restarts it.",
        {"command": _TEXT, "restart": {"type": "boolean"}},
        [],
    ),
    "text_editor": (
        "View, create and edit text files. `str_replace` replaces the one place where `old_str` occurs.",
        {"command": {"enum": ["view", "create", "str_replace", "insert", "undo_edit"]}, **_EDITS},
        ["command", "path"],
    ),
    "memory": (
        "Keep notes in files under /memories, which last from one conversation to the next.",
        {
            "command": {"enum": ["view", "create", "str_replace", "insert", "delete", "rename"]},
            **_EDITS, "old_path": _TEXT, "new_path": _TEXT,
        },
        ["command"],
    ),
    "computer": (
        "Use the mouse and keyboard of a computer and take screenshots of its screen.",
        {
            "action": {"enum": list(_ACTIONS)}, "coordinate": _PAIR, "start_coordinate": _PAIR, "text": _TEXT,
            "duration": {"type": "number"}, "scroll_amount": _WHOLE,
            "scroll_direction": {"enum": ["up", "down", "left", "right"]},
        },
        ["action"],
    ),
}  # fmt: skip
# Tools that run on Anthropic's servers and are not available here.
SERVER_TOOLS: Final = ("web_search", "web_fetch", "code_execution", "tool_search", "mcp_toolset", "advisor")


def client_tool(kind: str, more: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """Description and schema of a tool of that type, or None if it is not a client tool. `more`: its settings."""
    dated = _DATED.fullmatch(kind)
    defined = _DEFINED.get(dated[1]) if dated else None
    if defined is None:
        return None
    words, properties, required = defined
    if isinstance(more.get("display_width_px"), int) and isinstance(more.get("display_height_px"), int):
        words += f" The screen has {more['display_width_px']} x {more['display_height_px']} pixels."
    return words, {"type": "object", "properties": properties, "required": required}
