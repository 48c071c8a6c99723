"""Texts to paste into other programs so that they can read the user's documents through `tessera mcp`."""

import json
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from devices.child_command import own_command


@dataclass(frozen=True, kw_only=True)
class McpCommand:
    """The command that a program starts, under a name that programs accept, with its environment variables."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]

    @property
    def entry(self) -> dict[str, Any]:
        """The usual form of a server in JSON."""
        return {
            "command": self.argv[0],
            "args": list(self.argv[1:]),
            **({"env": dict(self.env)} if self.env else {}),
        }


def mcp_command(collections: Sequence[str], environment: Mapping[str, str] = os.environ) -> McpCommand:
    """The command of this installation for the named collections.

    Programs started by the desktop may have a different PATH from the shell's.
    """
    words = re.sub(r"[^a-z0-9]+", "-", collections[0].lower()).strip("-") if len(collections) == 1 else ""
    env = {name: environment[name] for name in ("TESSERA_HOME",) if environment.get(name)}
    return McpCommand(name=f"tessera-{words or 'documents'}", argv=own_command("mcp", "--", *collections), env=env)


@dataclass(frozen=True, kw_only=True)
class McpProgram:
    """A program: where the text belongs, and the text for a command."""

    name: str
    where: str
    text: Callable[[McpCommand], str]


def _json(*tables: str) -> Callable[[McpCommand], str]:
    def text(command: McpCommand) -> str:
        table_content: dict[str, Any] = {command.name: command.entry}
        for table in reversed(tables):
            table_content = {table: table_content}
        return json.dumps(table_content, indent=2, ensure_ascii=False) + "\n"

    return text


def _claude_code(command: McpCommand) -> str:
    env = [word for name, value in command.env.items() for word in ("-e", f"{name}={value}")]
    words = ["claude", "mcp", "add", command.name, "--scope", "user", *env, "--", *command.argv]
    return shlex.join(words) + "\n"


def _opencode(command: McpCommand) -> str:
    server: dict[str, Any] = {"type": "local", "command": list(command.argv), "enabled": True}
    if command.env:
        server["environment"] = dict(command.env)
    return json.dumps({"mcp": {command.name: server}}, indent=2, ensure_ascii=False) + "\n"


def _codex(command: McpCommand) -> str:
    rows = [
        f"[mcp_servers.{command.name}]",
        f"command = {json.dumps(command.argv[0], ensure_ascii=False)}",
        f"args = {json.dumps(command.argv[1:], ensure_ascii=False)}",
    ]
    if command.env:
        rows += ["", f"[mcp_servers.{command.name}.env]"]
        rows += [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in command.env.items()]
    return "\n".join(rows) + "\n"


MCP_PROGRAMS = (
    McpProgram(name="Claude Code", where="Paste into a terminal.", text=_claude_code),
    McpProgram(
        name="Claude Desktop",
        where="Add to claude_desktop_config.json: Settings, Developer, Edit Config.",
        text=_json("mcpServers"),
    ),
    McpProgram(name="Codex CLI", where="Add to ~/.codex/config.toml.", text=_codex),
    McpProgram(name="Cursor", where="Add to ~/.cursor/mcp.json.", text=_json("mcpServers")),
    McpProgram(name="OpenCode", where="Add to ~/.config/opencode/opencode.json.", text=_opencode),
    McpProgram(
        name="VS Code", where="Add to mcp.json: command MCP: Open User Configuration.", text=_json("servers")
    ),
    McpProgram(name="Zed", where="Add to settings.json.", text=_json("context_servers")),
    McpProgram(
        name="Another program", where="Most programs take this in their settings of MCP.", text=_json("mcpServers")
    ),
)
