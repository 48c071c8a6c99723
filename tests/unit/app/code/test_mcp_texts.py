"""Every program's text contains the same: the command to start, and its variables."""

import json
import shlex
import tomllib

import pytest

from app.code.integrations.mcp_texts import MCP_PROGRAMS, mcp_command
from devices.child_command import own_command

NAMES = ('Ida\'s "papers" – 日本', "--http")


def started(program, text):
    """(name, argv, variables) as the program reads them."""
    if program == "Claude Code":
        words = shlex.split(text)
        assert words[:3] == ["claude", "mcp", "add"]
        end = words.index("--")
        env = dict(words[at + 1].split("=", 1) for at in range(end) if words[at] == "-e")
        return words[3], words[end + 1 :], env
    found = tomllib.loads(text) if program == "Codex CLI" else json.loads(text)
    ((table, servers),) = found.items()
    assert table in {"mcpServers", "mcp_servers", "servers", "context_servers", "mcp"}
    ((name, server),) = servers.items()
    if program == "OpenCode":
        assert (server["type"], server["enabled"]) == ("local", True)
        return name, server["command"], server.get("environment", {})
    return name, [server["command"], *server["args"]], server.get("env", {})


@pytest.mark.parametrize("program", MCP_PROGRAMS, ids=lambda each: each.name)
@pytest.mark.parametrize("env", [{}, {"TESSERA_HOME": "/home/ida/a b", "OTHER": "x"}])
def test_every_program_starts_the_same_command(program, env):
    found = started(program.name, program.text(mcp_command(NAMES, env)))
    kept = {name: value for name, value in env.items() if name == "TESSERA_HOME"}
    assert found == ("tessera-documents", list(own_command("mcp", "--", *NAMES)), kept)


@pytest.mark.parametrize(
    ("name", "expected"), [("Papers 2026", "tessera-papers-2026"), ("日本", "tessera-documents")]
)
def test_one_collection_gives_its_name(name, expected):
    assert mcp_command((name,), {}).name == expected
