"""Configurations of MCP servers in the forms of other clients."""

import json

import pytest

from app.tools.mcp_config import BadMcpConfig, McpServerConfig, parse_servers

ARGV = ("npx", "-y", "a b")
LOCAL = McpServerConfig("files", ARGV, {"KEY": "1"})
REMOTE = McpServerConfig("files", url="https://notes.example/mcp", headers={"Authorization": "Bearer x"})
HEADERS = {"Authorization": "Bearer x"}

FORMS = {
    "Claude, Cursor, Cline": (
        {"mcpServers": {"files": {"command": "npx", "args": ["-y", "a b"], "env": {"KEY": 1}, "disabled": False}}},
        LOCAL,
    ),
    "VS Code": (
        {"servers": {"files": {"type": "stdio", "command": "npx", "args": ["-y", "a b"], "env": {"KEY": "1"}}}},
        LOCAL,
    ),
    "VS Code's user settings": ({"mcp": {"servers": {"files": {"type": "http", "url": REMOTE.url}}}}, None),
    "Zed": (
        {"context_servers": {"files": {"command": "npx", "args": ["-y", "a b"], "env": {"KEY": "1"}}}},
        LOCAL,
    ),
    "Zed's earlier form": (
        {
            "context_servers": {
                "files": {"command": {"path": "npx", "args": ["-y", "a b"], "env": {"KEY": "1"}}, "settings": {}}
            }
        },
        LOCAL,
    ),
    "OpenCode, local": (
        {"mcp": {"files": {"type": "local", "command": list(ARGV), "environment": {"KEY": "1"}, "enabled": True}}},
        LOCAL,
    ),
    "OpenCode, remote": ({"mcp": {"files": {"type": "remote", "url": REMOTE.url, "headers": HEADERS}}}, REMOTE),
    "Gemini CLI": ({"mcpServers": {"files": {"httpUrl": REMOTE.url, "headers": HEADERS}}}, REMOTE),
    "Windsurf": ({"mcpServers": {"files": {"serverUrl": REMOTE.url, "headers": HEADERS}}}, REMOTE),
    "only the entries": ({"files": {"httpUrl": REMOTE.url, "headers": HEADERS}}, REMOTE),
    "arguments in one text": (
        {"mcpServers": {"files": {"command": "npx", "args": "-y 'a b'", "env": {"KEY": "1"}}}},
        LOCAL,
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_server_in_the_form_of_another_client_is_that_server(form):
    pasted, wanted = FORMS[form]
    (server,) = parse_servers(json.dumps(pasted))
    assert server == (wanted or McpServerConfig("files", url=REMOTE.url))


def test_what_is_written_is_read_again():
    written = json.dumps({"mcpServers": {server.name: server.as_json() for server in (LOCAL,)}})
    assert parse_servers(written) == [LOCAL]


@pytest.mark.parametrize(("limit", "call_s"), [(60, 60), ("90", 90), (None, 120), (30_000, 30), (600_000, 600)])
def test_a_long_time_limit_is_in_milliseconds(limit, call_s):
    (server,) = parse_servers(json.dumps({"mcpServers": {"files": {"command": "npx", "timeout": limit}}}))
    assert server.call_s == call_s


@pytest.mark.parametrize(
    "entry",
    [
        {"command": []},
        {"command": {}},
        {"command": [""]},
        {"command": {"args": ["x"]}},
        {"command": "x", "url": "https://a.example"},
        {"command": "x", "args": "'"},
        {"command": "x", "env": ["A=1"]},
        {"command": "x", "timeout": [1]},
        {"command": "x", "timeout": -1},
        {"command": "x", "timeout": 1e300},
        {"url": "file:///etc/passwd"},
        {},
        [],
        None,
    ],
)
def test_an_entry_that_names_no_server_is_refused(entry):
    with pytest.raises(BadMcpConfig):
        parse_servers(json.dumps({"mcpServers": {"files": entry}}))
