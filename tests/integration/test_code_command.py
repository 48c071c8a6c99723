"""`tessera code`, `launch` and `certify` against a complete server with scripted model output."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from app.cli.main import cli
from app.code.integrations.context_needs import NEEDS, ContextNeed
from tests.support.fakes.scripted import TOKEN, ScriptedServer

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"

ANSWER = """I would greet louder.

greet.py
<<<<<<< SEARCH
    return "hello " + name
=======
    return "HELLO " + name.upper()
>>>>>>> REPLACE
"""


@pytest.fixture
def project(tmp_path):
    root = tmp_path / "project"
    root.mkdir()
    (root / "greet.py").write_text('def greet(name):\n    return "hello " + name\n')
    (root / "other.py").write_text("def unrelated():\n    return 1\n")
    return root


@pytest.fixture
def server(tmp_path, tessera_home):
    server = ScriptedServer(tmp_path / "server", template=TEMPLATE)
    state = tessera_home / "state"
    state.mkdir()
    (state / "server.json").write_text(json.dumps({"url": server.url, "token": TOKEN, "pid": os.getpid()}))
    yield server
    server.stop()


def run(*arguments, **options):
    return CliRunner().invoke(cli, [str(a) for a in arguments], catch_exceptions=False, **options)


def test_a_question_is_answered_with_context_and_its_edit_applied(server, project):
    server.say(*ANSWER.splitlines(keepends=True))
    done = run("code", project, "-p", "Make greet() in @greet.py louder", "--apply")
    assert done.exit_code == 0, done.output
    assert 'return "HELLO " + name.upper()' in (project / "greet.py").read_text()
    (prompt,) = server.prompts()
    assert 'return "hello " + name' in prompt
    assert "SEARCH" in prompt


def test_a_session_shows_drops_applies_and_undoes(server, project):
    before = (project / "greet.py").read_text()
    server.say(ANSWER)
    server.say(ANSWER)
    lines = [
        "make @greet.py and @other.py louder", "/context", "/drop 2", "/diff", "/apply", "/undo", "/undo",
        "/nonsense", "/quit",
    ]  # fmt: skip
    done = run("code", project, input="\n".join(lines) + "\n")
    assert done.exit_code == 0, done.output
    assert '+    return "HELLO " + name.upper()' in done.output
    assert "written: greet.py" in done.output
    assert "taken back: greet.py" in done.output
    assert "no applied edit left" in done.output
    assert (project / "greet.py").read_text() == before
    first, second = server.prompts()
    assert "unrelated" in first
    assert "unrelated" not in second


def test_edits_without_a_place_fail_the_command_and_are_sent_back(server, project):
    server.say(ANSWER.replace('"hello " + name', '"hullo " + name'))
    done = run("code", project, "-p", "louder", "--apply")
    assert done.exit_code == 1
    assert "refused: greet.py" in done.output
    server.say(ANSWER.replace('"hello " + name', '"hullo " + name'))
    server.say(ANSWER)
    done = run("code", project, input="louder\n/retry\n/apply\n")
    assert "written: greet.py" in done.output
    assert "could not be applied" in server.prompts()[-1]


@pytest.mark.parametrize(
    ("answer", "reported"),
    [
        ("*** Begin Patch\n*** Update File: greet.py\n@@\n-x\n+y\n*** End Patch\n", "refused: greet.py"),
        ("*** Begin Patch\n*** Update File: greet.py\n@@\n-x\n+y\n", "not readable: greet.py"),
        ("diff --git a/greet.py b/b.py\ncopy from greet.py\ncopy to b.py\n", "not readable: b.py"),
        ("diff --git a/greet.py b/greet.py\nold mode 100644\nnew mode 120000\n", "not readable: greet.py"),
        ("```sh\ncat > greet.py <<EOF\nx\nEOF\n```\n", "not readable: an edit"),
        ("Write it yourself.\n", ""),
    ],
    ids=["Codex", "cut", "copy", "link", "shell", "no edit"],
)
def test_applying_an_answer_without_an_edit_that_can_be_read_fails(server, project, answer, reported):
    before = {path: path.read_text() for path in project.iterdir()}
    server.say(answer)
    done = run("code", project, "-p", "louder", "--apply")
    assert done.exit_code == 1
    assert "nothing to apply" in done.output
    assert reported in done.output
    assert {path: path.read_text() for path in project.iterdir()} == before


def test_a_commit_message_is_suggested_and_nothing_committed(server, project):
    for command in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=T", "-c", "user.email=t@x.org", "commit", "-qm", "Start"],
    ):
        subprocess.run(["git", *command], cwd=project, check=True)
    (project / "other.py").write_text("def unrelated():\n    return 2\n")
    server.say("Return two")
    done = run("code", project, input="/commit\n")
    assert "Return two" in done.output
    assert "+    return 2" in server.prompts()[0]
    assert "- Start" in server.prompts()[0]
    log = subprocess.run(["git", "log", "--format=%s"], cwd=project, check=True, capture_output=True, text=True)
    assert log.stdout.split() == ["Start"]


def test_an_editor_is_connected_and_taken_back(server, tmp_path, monkeypatch):
    home = tmp_path / "user"
    home.mkdir()
    monkeypatch.setattr(Path, "home", lambda: home)
    dry = run("launch", "codex", "--connect", "--dry-run")
    assert "model_providers.tessera" in dry.output
    assert not (home / ".codex").exists()
    assert run("launch", "codex", "--connect", input="n\n").exit_code == 1
    assert not (home / ".codex").exists()
    done = run("launch", "codex", "--connect", "--yes")
    assert server.url in (home / ".codex" / "config.toml").read_text()
    assert 'model_provider = "tessera"' in (home / ".codex" / "tessera.config.toml").read_text()
    assert "codex --profile tessera" in done.output
    assert "connected" in run("launch").output
    run("launch", "codex", "--remove", "--yes")
    assert not list((home / ".codex").glob("*.toml"))
    assert "not connected" in run("launch", "codex", "--remove", "--yes").output
    assert "http" in run("launch", "cline").output
    assert run("launch", "nothing-known").exit_code == 2


def test_an_agent_is_started_with_what_it_needs(server, tmp_path, monkeypatch):
    tool = tmp_path / "bin" / "claude"
    tool.parent.mkdir()
    seen_path = tmp_path / "seen"
    tool.write_text(
        f"#!{sys.executable}\nimport os, sys\n"
        f"open({str(seen_path)!r}, 'w').write(repr([dict(os.environ), sys.argv[1:]]))\nsys.exit(3)\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent), prepend=":")
    refused = run("launch", "claude", "--print", "hi there")
    assert refused.exit_code == 3
    assert "Claude Code needs 32,768 tokens of context" in refused.output
    assert not seen_path.exists()
    monkeypatch.setitem(NEEDS, "claude", ContextNeed(least=900, opening=400, source="a test"))
    done = run("launch", "claude", "--print", "hi there")
    assert done.exit_code == 3, done.output
    seen = seen_path.read_text()
    assert server.url in seen
    assert "['--print', 'hi there']" in seen
    monkeypatch.setenv("PATH", str(tmp_path))
    missing = run("launch", "opencode")
    assert "npm install -g opencode-ai" in missing.output


def test_the_certificate_of_a_model_without_tools_is_honest(server):
    done = run("certify", "spark", "--json")
    assert done.exit_code == 0, done.output
    (certificate,) = json.loads(done.output)
    assert certificate["model"] == "spark"
    assert len(certificate["results"]) >= 30
    assert all(result["passed"] or result["reason"] for result in certificate["results"])
    assert not any(r["passed"] for r in certificate["results"] if r["category"] in {"single", "parallel", "nested"})


HERMES = Path(__file__).resolve().parents[1] / "data" / "templates" / "Qwen-Qwen3-0.6B.jinja"


@pytest.fixture
def tool_server(tmp_path, tessera_home):
    server = ScriptedServer(tmp_path / "tool-server", template=HERMES.read_text("utf-8"))
    state = tessera_home / "state"
    state.mkdir()
    (state / "server.json").write_text(json.dumps({"url": server.url, "token": TOKEN, "pid": os.getpid()}))
    yield server
    server.stop()


def called(*calls):
    """Model output with these calls, in chunks like tokens."""
    text = "\n".join(
        f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
        for name, arguments in calls
    )
    return [text[i : i + 7] for i in range(0, len(text), 7)]


def test_an_agent_works_through_the_server_with_consent(tool_server, project, tessera_home):
    tool_server.say(*called(("plan", {"items": [{"text": "look"}]}), ("read", {"path": "greet.py"})))
    edit = {"path": "greet.py", "search": '    return "hello " + name', "replace": '    return "HELLO " + name'}
    tool_server.say(*called(("edit", edit)))
    tool_server.say(*called(("run", {"argv": [sys.executable, "-c", "print('ran')"]})))
    tool_server.say("It greets louder now.")
    done = run("code", project, "--agent", "-p", "Make it louder", input="y\nn\n")
    assert done.exit_code == 0, done.output
    assert "HELLO" in (project / "greet.py").read_text()
    assert '+    return "HELLO " + name' in done.output
    assert "It greets louder now." in done.output
    assert "[ ] look" in done.output
    # The second consent request, about the command, was declined.
    assert "declined this command" in tool_server.prompts()[-1]
    (transcript,) = (tessera_home / "state" / "code").rglob("transcripts/*.jsonl")
    kinds = [json.loads(line)["type"] for line in transcript.read_text().splitlines()]
    assert kinds[0] == "asked"
    assert kinds[-1] == "ended"
    assert kinds.count("called") == 4
    # Replay the session on the original file: the same calls, with consent again, without the model.
    asked = len(tool_server.prompts())
    (project / "greet.py").write_text('def greet(name):\n    return "hello " + name\n')
    done = run("code", project, "--replay", transcript, input="y\nn\n")
    assert done.exit_code == 0, done.output
    assert "HELLO" in (project / "greet.py").read_text()
    assert len(tool_server.prompts()) == asked


def test_the_certificate_counts_right_calls(tool_server):
    tool_server.say("Hello.")  # asked first, to detect whether the template supports tools
    for number in range(34):
        if number == 0:
            tool_server.say(*called(("get_weather", {"city": "Oslo"})))
        elif number == 1:
            tool_server.say(*called(("add", {"a": 17, "b": 26})))
        else:
            tool_server.say("I do not know.")
    done = run("certify", "spark", "--json")
    (certificate,) = json.loads(done.output)
    results = {result["name"]: result for result in certificate["results"]}
    assert results["weather"]["passed"], results["weather"]
    assert not results["integers"]["passed"]
    assert "17" in results["integers"]["reason"]


def test_uncommitted_changes_are_written_over_only_when_allowed(server, project):
    for command in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=T", "-c", "user.email=t@x.org", "commit", "-qm", "S"],
    ):
        subprocess.run(["git", *command], cwd=project, check=True)
    mine = (project / "greet.py").read_text() + "# mine\n"
    (project / "greet.py").write_text(mine)
    for _ in range(3):
        server.say(ANSWER)
    done = run("code", project, "-p", "louder @greet.py", "--apply")
    assert done.exit_code == 1
    assert "uncommitted" in done.output
    assert (project / "greet.py").read_text() == mine
    run("code", project, input="louder @greet.py\n/apply\nn\n")
    assert (project / "greet.py").read_text() == mine
    assert run("code", project, "-p", "louder @greet.py", "--apply", "--allow-uncommitted").exit_code == 0
    assert (project / "greet.py").read_text() == mine.replace('"hello " + name', '"HELLO " + name.upper()')
