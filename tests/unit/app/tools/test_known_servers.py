"""The list of well-known MCP servers: dated, with a source each, and every entry can be added as it is."""

import json
import shlex
from datetime import date
from pathlib import Path

import pytest

from app.tools.mcp_config import known_servers, parse_servers


@pytest.mark.parametrize("server", known_servers()[1], ids=lambda server: server.name)
def test_each_is_from_a_named_page_and_starts_a_program_or_names_an_address(server):
    assert date.fromisoformat(known_servers()[0])
    assert server.source.startswith("https://github.com/")
    where = server.where(Path("/home/ann o'hara/Documents"))
    entry = {"url": where} if server.url else {"command": shlex.split(where)[0], "args": shlex.split(where)[1:]}
    (made,) = parse_servers(json.dumps({"mcpServers": {server.name: entry}}))
    assert bool(server.needs) == bool(made.argv)
    assert "{" not in where
    assert "{folder}" not in server.command or made.argv[-1] == "/home/ann o'hara/Documents"


@pytest.mark.parametrize("entry", [{"command": "a", "args": []}, {"command": "a", "args": ["b"], "timeout": 7.0}])
def test_an_entry_is_exported_as_it_was_imported(entry):
    (made,) = parse_servers(json.dumps({"mcpServers": {"a": entry}}))
    assert made.as_json() == entry
