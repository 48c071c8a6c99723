"""Calls in the forms that models were trained on are mapped to the agent's own tools."""

import contextlib

import msgspec
import pytest

from app.code.agent.aliases import translated
from app.tools.types import ToolRefused

A = {"path": "a.py"}


@pytest.mark.parametrize(
    ("name", "given", "own", "arguments"),
    [
        ("bash", {"command": "ls -a"}, "run", {"argv": ["bash", "-c", "ls -a"]}),
        ("Bash", {"command": "ls", "timeout": 90000}, "run", {"argv": ["bash", "-c", "ls"], "timeout_s": 90.0}),
        ("shell", {"command": ["ls", "-a"], "timeout_ms": 1000}, "run", {"argv": ["ls", "-a"], "timeout_s": 1.0}),
        ("run_terminal_cmd", {"command": "ls", "explanation": "x"}, "run", {"argv": ["bash", "-c", "ls"]}),
        ("execute_command", {"command": "x", "cwd": "sub"}, "run", {"argv": ["bash", "-c", "cd -- sub && x"]}),
        ("bash", {"command": "x", "workdir": "it's"}, "run", {"argv": ["bash", "-c", """cd -- 'it'"'"'s' && x"""]}),
        ("run", {"argv": ["ls"], "network": True}, "run", {"argv": ["ls"], "network": True}),
        ("str_replace", A | {"old_str": "x", "new_str": "y"}, "edit", A | {"search": "x", "replace": "y"}),
        ("edit", A | {"search": "x", "replace": "y"}, "edit", A | {"search": "x", "replace": "y"}),
        (
            "Edit",
            {"file_path": "a.py", "old_string": "x", "new_string": "y", "replace_all": True},
            "edit",
            A | {"search": "x", "replace": "y", "all": True},
        ),
        (
            "str_replace_editor",
            {"command": "str_replace", "path": "a.py", "old_str": "x"},
            "edit",
            A | {"search": "x", "replace": ""},
        ),
        (
            "str_replace_based_edit_tool",
            {"command": "view", "path": "a.py", "view_range": [3, -1]},
            "read",
            A | {"first": 3},
        ),
        ("str_replace_editor", {"command": "view", "path": "."}, "list", {}),
        (
            "str_replace_editor",
            {"command": "create", "path": "a.py", "file_text": "x"},
            "write",
            A | {"text": "x"},
        ),
        (
            "str_replace_based_edit_tool",
            {"command": "insert", "path": "a.py", "insert_line": 2, "insert_text": "x"},
            "insert",
            A | {"after": 2, "text": "x"},
        ),
        ("write_file", A | {"content": "x"}, "write", A | {"text": "x"}),
        ("Write", {"file_path": "a.py", "content": "x"}, "write", A | {"text": "x"}),
        ("create_file", {"filename": "a.py", "contents": "x"}, "write", A | {"text": "x"}),
        ("read_file", {"target_file": "a.py", "offset": 5, "limit": 2}, "read", A | {"first": 5, "last": 6}),
        ("Read", {"file_path": "a.py"}, "read", A),
        ("Read", A | {"offset": "5", "limit": "2"}, "read", A | {"first": 5, "last": 6}),
        ("apply_patch", {"input": "*** Begin"}, "patch", {"text": "*** Begin"}),
        ("replace_in_file", A | {"diff": "x"}, "patch", A | {"text": "x"}),
        ("list_directory", {"dir_path": "src"}, "list", {"path": "src"}),
        ("grep", {"pattern": "x", "path": "."}, "search", {"text": "x"}),
        ("delete_file", {"target_file": "a.py"}, "delete", A),
        ("rename", {"old_path": "a.py", "new_path": "b.py"}, "move", A | {"to": "b.py"}),
        (
            "update_plan",
            {"plan": [{"step": "look", "status": "in_progress"}], "explanation": "x"},
            "plan",
            {"items": [{"text": "look", "state": "doing"}]},
        ),
        (
            "TodoWrite",
            {"todos": [{"content": "look", "status": "completed", "activeForm": "x"}]},
            "plan",
            {"items": [{"text": "look", "state": "done"}]},
        ),
        ("functions.read_file", A, "read", A),
        ("frobnicate", A, "frobnicate", A),
        ("edit", A | {"serch": "x"}, "edit", A | {"serch": "x", "search": "", "replace": ""}),
        ("read", [1], "read", [1]),
    ],
)
def test_a_call_becomes_one_of_the_own_tools(name, given, own, arguments, monkeypatch):
    monkeypatch.setattr("app.code.agent.aliases.os.name", "posix")
    assert translated(name, given) == (own, arguments)
    assert msgspec.json.encode(given), "the given arguments are JSON"


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("bash", {"restart": True}),
        ("Bash", {"command": "x", "run_in_background": True}),
        ("shell", {"command": ["ls"], "workdir": "sub"}),
        ("str_replace_editor", {"command": "undo_edit", "path": "a.py"}),
        ("multi_edit", {"file_path": "a.py", "edits": []}),
    ],
)
def test_what_no_tool_does_is_refused_with_advice(name, given):
    with pytest.raises(ToolRefused, match=r"\w+ \w+ \w+"):
        translated(name, given)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("bash", {"command": "ls", "workdir": "sub", "timeout": 5}),
        ("str_replace_editor", {"command": "view", "path": "a.py", "view_range": [1, 2]}),
        ("read_file", {"path": "a.py", "offset": 5, "limit": 2}),
        ("edit", {"path": "a.py", "search": "x", "expected_replacements": 2}),
        ("TodoWrite", {"todos": [{"content": "look", "status": "pending"}], "content": "x", "status": "x"}),
    ],
)
def test_a_value_of_another_kind_is_left_to_the_check_of_the_arguments(name, given):
    for key in given:
        for odd in (None, [], {}, [[]], 1, True, "x"):
            todos = [{"content": "look", "status": "pending", key: odd}]
            with contextlib.suppress(ToolRefused):
                translated(name, {"todos": todos} if "todos" in given and key != "todos" else {**given, key: odd})
