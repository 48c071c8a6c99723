"""Five unmodified MCP servers in the window's chat: pasted as JSON, allowed, called, shown.

    python -m pytest tests/optin/test_real_mcp_servers.py -o addopts="--import-mode=importlib" -q

Not run in CI: they download about 80 MB. TESSERA_MCP_SERVERS names a folder that stores the installations. The
model is scripted; the servers, the window's page and the store are real.
"""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from PySide6.QtCore import Qt

from app.gui.chat.chat_transcript import ToolItem
from app.gui.chat.page import ChatPage
from tests.gui.conftest import home, look, qtbot, server, services, show  # noqa: F401 - fixtures of the window's tests

pytestmark = pytest.mark.timeout(600)
NPM = ("@modelcontextprotocol/server-filesystem", "@modelcontextprotocol/server-memory")
# A virtual environment each: the server for SQLite was written against the first major version of the SDK.
PYPI = {"py": ("mcp-server-git", "mcp-server-time"), "py-1": ("mcp-server-sqlite", "mcp<2")}


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    kept = os.environ.get("TESSERA_MCP_SERVERS")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("servers")
    if not (folder / "py").exists():
        if shutil.which("npm") is None:
            pytest.skip("needs npm")
        subprocess.run(["npm", "init", "-y"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["npm", "install", "--silent", *NPM], cwd=folder, check=True)
        for name, packages in PYPI.items():
            subprocess.run([sys.executable, "-m", "venv", folder / name], check=True)
            subprocess.run([folder / name / "bin" / "pip", "install", "-q", *packages], check=True)
    return folder


def files(installed, work):
    (work / "note.txt").write_text("The keeper is Berta Quill.")
    command = str(installed / "node_modules" / ".bin" / "mcp-server-filesystem")
    entry = {"command": command, "args": [str(work)]}
    return entry, "mcp__it__read_text_file", {"path": str(work / "note.txt")}, "Berta Quill"


def memory(installed, work):
    entry = {
        "command": str(installed / "node_modules" / ".bin" / "mcp-server-memory"),
        "env": {"MEMORY_FILE_PATH": str(work / "memory.jsonl")},
    }
    what = {"entities": [{"name": "Berta", "entityType": "keeper", "observations": ["minds the light"]}]}
    return entry, "mcp__it__create_entities", what, "minds the light"


def git(installed, work):
    subprocess.run(["git", "init", "-q", work], check=True)
    (work / "a.txt").write_text("a")
    command = str(installed / "py" / "bin" / "mcp-server-git")
    entry = {"command": command, "args": ["--repository", str(work)]}
    return entry, "mcp__it__git_status", {"repo_path": str(work)}, "a.txt"


def clock(installed, work):
    command = str(installed / "py" / "bin" / "mcp-server-time")
    return {"command": command}, "mcp__it__get_current_time", {"timezone": "Europe/Vienna"}, "Europe/Vienna"


def sqlite(installed, work):
    with closing(sqlite3.connect(work / "lights.db")) as made, made:
        made.execute("CREATE TABLE keepers(name)")
        made.execute("INSERT INTO keepers VALUES ('Berta Quill')")
    command = str(installed / "py-1" / "bin" / "mcp-server-sqlite")
    entry = {"command": command, "args": ["--db-path", str(work / "lights.db")]}
    return entry, "mcp__it__read_query", {"query": "SELECT name FROM keepers"}, "Berta Quill"


@pytest.mark.parametrize("case", [files, memory, git, clock, sqlite], ids=lambda case: case.__name__)
def test_a_real_server_is_used_end_to_end(case, installed, tmp_path, qtbot, show, services, server):  # noqa: F811
    work = tmp_path / "work"
    work.mkdir()
    entry, tool, arguments, expected = case(installed, work)
    page = show(ChatPage(services))
    page.tools.toggle()
    panel = page.tools.panel
    qtbot.waitUntil(lambda: "tessera certify" in panel.certificate.text())
    panel.add()
    panel.dialog.json.setPlainText(json.dumps({"mcpServers": {"it": entry}}))
    qtbot.mouseClick(panel.dialog.accept_button, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: page.controller.conversation.tools == ("it",))

    server.pieces = []
    server.tool_calls = [{"index": 0, "id": "c1", "function": {"name": tool, "arguments": json.dumps(arguments)}}]

    def over(number):
        if page.controller.tree[number].role == "tool":
            server.tool_calls, server.pieces = [], ["There it is."]

    page.controller.message_added.connect(over)
    page.composer.set_text("Look it up.")
    page.composer.send()
    for _ in range(2):  # the server's start, the tool
        qtbot.waitUntil(page.tools.card.isVisible, timeout=60_000)
        qtbot.mouseClick(page.tools.card.once, Qt.MouseButton.LeftButton)
        assert not page.banner.isVisible(), page.banner.text
    qtbot.waitUntil(lambda: not page.controller.busy and page.controller.tree.path()[-1].content == "There it is.")
    offered = {given["function"]["name"] for given in server.bodies[0]["tools"]}
    assert tool in offered
    (item,) = [i for i in page.transcript.items() if isinstance(i, ToolItem)]
    qtbot.mouseClick(item.fold, Qt.MouseButton.LeftButton)
    assert expected in item.text.toPlainText()
    assert expected in server.bodies[-1]["messages"][-1]["content"]
