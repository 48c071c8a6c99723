"""Tools in `tessera chat`: called with consent, their results used, and never called without a user."""

import json
import sys

import pytest
from click.testing import CliRunner

from app.answer_facts import AnswerFacts
from app.cli import chat_tools
from app.cli.conversation import Conversation
from app.cli.main import cli
from app.client import ChatDelta
from app.tools.mcp_config import McpServerConfig, ServerList
from engine.api.chat import FunctionDelta, ToolCallDelta
from tests.support.fakes.mcp_servers import demo


class Scripted:
    """A server whose model calls the calculator once and then answers."""

    def __init__(self):
        self.requests = []

    def chat(self, model, messages, **options):
        self.requests.append((json.loads(json.dumps(messages)), options))
        return _Pieces(len(self.requests) == 1)


class _Pieces:
    def __init__(self, calling):
        self._calling = calling

    def __iter__(self):
        if self._calling:
            function = FunctionDelta(name="calculate", arguments='{"expression": "6*7"}')
            yield ChatDelta(text="Let me see.", tool_calls=(ToolCallDelta(index=0, id="c1", function=function),))
        else:
            yield ChatDelta(text="It is 42.", facts=AnswerFacts(finish_reason="stop"))

    def close(self):
        pass


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TESSERA_HOME", str(tmp_path / "home"))


@pytest.mark.parametrize(("decision", "result"), [("once", "42"), ("no", "The person declined this call.")])
@pytest.mark.process
def test_a_call_is_carried_out_with_consent_and_the_model_goes_on(monkeypatch, capsys, decision, result):
    asked = []
    monkeypatch.setattr(chat_tools, "ask_person", lambda request: asked.append(request) or decision)
    server, tools = Scripted(), chat_tools.ChatTools(("tessera:calculator",))
    Conversation(server, "m", None, {}, tools).ask("6 times 7?", as_json=False)
    tools.close()
    assert '"6*7"' in asked[0].detail
    messages, options = server.requests[1]
    assert messages[1]["content"] == "Let me see."
    assert messages[1]["tool_calls"][0]["id"] == messages[2]["tool_call_id"] == "c1"
    assert messages[2]["content"] == result
    assert options["tools"][0]["function"]["name"] == "calculate"
    assert "It is 42." in capsys.readouterr().out


def test_servers_are_added_listed_and_removed(tmp_path):
    def run(*words, **more):
        return CliRunner().invoke(cli, ["tools", *words], **more)

    assert run("add", "clock", "uvx", "mcp-server-time", "--local-timezone", "Europe/Vienna").exit_code == 0
    pasted = json.dumps({"mcpServers": {"far": {"url": "https://x.example/mcp", "headers": {"A": "b"}}}})
    assert run("add", "--from", "-", input=pasted).exit_code == 0
    told = json.loads(run("list", "--json").stdout)
    assert {row["name"]: row["detail"] for row in told["tools"] if not row["built_in"]} == {
        "clock": "uvx mcp-server-time --local-timezone Europe/Vienna",
        "far": "https://x.example/mcp",
    }
    assert (tmp_path / "home" / "config" / "mcp.json").stat().st_mode & 0o077 == 0
    for wrong in (("add",), ("add", "a b", "x"), ("add", "x", "ftp://y", "--env", "novalue"), ("remove", "gone")):
        assert run(*wrong).exit_code != 0, wrong
    assert (
        run("add", "--from", "-", input='{"mcpServers": {"s": {"type": "sse", "url": "http://y"}}}').exit_code != 0
    )
    assert run("remove", "clock").exit_code == 0
    assert "clock" not in run("list").stdout


@pytest.mark.process
def test_a_server_is_tested_and_shows_its_tools_or_why_it_failed(tmp_path):
    broken = McpServerConfig("broken", (sys.executable, "-c", "import sys; sys.exit('no key')"))
    ServerList().add([demo(tmp_path), broken])
    works = CliRunner().invoke(cli, ["tools", "test", "demo"])
    assert works.exit_code == 0
    assert works.stdout.splitlines() == [
        "add                      Add two numbers.", "fail", "wait                     Take very long.",
    ]  # fmt: skip
    assert "offers 3 tools" in works.stderr
    failed = CliRunner().invoke(cli, ["tools", "test", "broken"])
    assert (failed.exit_code, "did not start" in failed.stderr, "no key" in failed.stderr) == (1, True, True)
    gone = CliRunner().invoke(cli, ["tools", "test", "gone"])
    assert (gone.exit_code, "no server 'gone'" in gone.stderr) == (3, True)
