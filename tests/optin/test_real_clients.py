"""Real coding agents, installed from their registries, complete a scripted change of two files through the server.

    python -m pytest tests/optin/test_real_clients.py -o addopts= -q

Not run in CI: they download about 300 MB. TESSERA_CLIENTS names a folder that stores the installations.
"""

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from app.client import Client
from app.code.integrations.context_needs import load_for, need_of
from app.code.integrations.registry import INTEGRATIONS
from app.code.integrations.store import write_private
from app.code.integrations.types import Endpoint
from tests.support.fakes.scripted import TOKEN, ScriptedServer
from tests.support.models.shapes import scaled, write_hollow, write_shape

pytestmark = pytest.mark.timeout(900)
ROOT = Path(__file__).resolve().parents[2]
HERMES = ROOT / "tests" / "data" / "templates" / "Qwen-Qwen3-0.6B.jinja"


@pytest.fixture(scope="module")
def clients(tmp_path_factory):
    folder = Path(os.environ.get("TESSERA_CLIENTS") or tmp_path_factory.mktemp("clients"))
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def project(tmp_path):
    root = tmp_path / "project"
    root.mkdir()
    (root / "one.py").write_text("ONE = 1\n")
    (root / "two.py").write_text("TWO = 2\n")
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    return root


@pytest.fixture
def server(tmp_path):
    server = ScriptedServer(tmp_path / "server", template=HERMES.read_text("utf-8"))
    yield server
    server.stop()


@pytest.fixture
def long_server(tmp_path):
    """The real runner and its cache, with prescribed tokens. The model's tokens are single bytes."""
    home = tmp_path / "server"
    (home / "models").mkdir(parents=True)
    shape = scaled("llama", layers=1, embd=64, heads=2, kv_heads=1, head_dim=32, ffn=64, vocab=260, context=1 << 18)
    write_shape(home / "models" / "long.gguf", shape, template=HERMES.read_text("utf-8"))
    server = ScriptedServer(home, dispatched=True, runner="prescribed_runner.py")
    yield server
    server.stop()


def launch(name, server, project, tmp_path, program, *arguments, model="spark", context=65536, settings=None):
    """Start the client as `tessera launch` would, in a home of its own.

    goose has another subcommand for a single task than the one that opens a conversation.
    """
    integration = INTEGRATIONS[name]
    endpoint = Endpoint(url=server.url, model=model, context=context)
    folder = tmp_path / "launch"
    start = integration.launch(endpoint, folder)
    for file, text in start.files.items():
        write_private(folder / file, text)
    home = tmp_path / "home"
    home.mkdir()
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "GOOSE_DISABLE_SESSION_NAMING": "true",
        **start.env,
        **(settings or {}),
    }
    first = [] if name == "goose" else start.argv[1:]
    return run(program, first, arguments, project, environment)


def run(program, first, then, project, environment):
    return subprocess.run(
        [str(program), *first, *then],
        cwd=project,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=400,
    )


def local_home(tmp_path, **more):
    """The environment of a program that must not look outside: everything but loopback goes to a closed port."""
    home = tmp_path / "home"
    home.mkdir(exist_ok=True)
    nowhere = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    return {"PATH": os.environ["PATH"], "HOME": str(home), "NO_PROXY": "127.0.0.1", "CI": "1", **nowhere, **more}


def tool_calls(*calls):
    return "\n".join(
        f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
        for name, arguments in calls
    )


def npm_program(clients, package, program, path=None):
    """The program of a package; `path` is where npm finds its node."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    folder = clients / "npm"
    folder.mkdir(exist_ok=True)
    found = folder / "node_modules" / ".bin" / program
    if not found.exists():
        subprocess.run(
            ["npm", "install", "--no-audit", "--no-fund", package], cwd=folder, check=True, timeout=600,
            env={**os.environ, "PATH": path or os.environ["PATH"]},
        )  # fmt: skip
    return found


def aider_program(clients):
    program = clients / "aider" / "bin" / "aider"
    if not program.exists():
        subprocess.run([sys.executable, "-m", "venv", str(clients / "aider")], check=True)
        subprocess.run([str(program.parent / "pip"), "install", "-q", "aider-chat"], check=True, timeout=800)
    return program


def test_aider_changes_two_files(clients, server, project, tmp_path):
    program = aider_program(clients)
    answer = "".join(
        f"{path}\n```python\n<<<<<<< SEARCH\n{old}\n=======\n{new}\n>>>>>>> REPLACE\n```\n\n"
        for path, old, new in (("one.py", "ONE = 1", "ONE = 10"), ("two.py", "TWO = 2", "TWO = 20"))
    )
    server.say(*answer.splitlines(keepends=True))
    done = launch(
        "aider", server, project, tmp_path, program, "--edit-format", "diff", "--yes-always", "--no-auto-commits",
        "--no-check-update", "--no-analytics", "--no-show-release-notes", "--map-tokens", "0",
        "--message", "Multiply the numbers by ten.", "one.py", "two.py",
    )  # fmt: skip
    assert (project / "one.py").read_text() == "ONE = 10\n", done.stdout + done.stderr
    assert (project / "two.py").read_text() == "TWO = 20\n"
    assert "ONE = 1" in server.prompts()[0]


def test_opencode_changes_two_files(clients, server, project, tmp_path):
    program = npm_program(clients, "opencode-ai", "opencode")
    one, two = str(project / "one.py"), str(project / "two.py")
    server.say(tool_calls(("read", {"filePath": one}), ("read", {"filePath": two})))
    server.say(
        tool_calls(
            ("edit", {"filePath": one, "oldString": "ONE = 1", "newString": "ONE = 10"}),
            ("edit", {"filePath": two, "oldString": "TWO = 2", "newString": "TWO = 20"}),
        )
    )
    server.say("Both numbers are ten times as large.")
    done = launch(
        "opencode", server, project, tmp_path, program, "run", "--title", "t", "Multiply the numbers by ten."
    )
    assert (project / "one.py").read_text() == "ONE = 10\n", done.stdout + done.stderr
    assert (project / "two.py").read_text() == "TWO = 20\n"
    assert "ten times" in done.stdout
    # The results of the calls went back to the model.
    assert "ONE = 1" in server.prompts()[1]


def test_codex_changes_two_files(clients, server, project, tmp_path):
    program = npm_program(clients, "@openai/codex", "codex")
    script = "sed -i 's/ = \\([0-9]\\)/ = \\10/' one.py two.py"
    server.say(tool_calls(("exec_command", {"cmd": script})))
    server.say(tool_calls(("shell", {"command": ["bash", "-lc", script]})))
    server.say("Done.")
    done = launch(
        "codex", server, project, tmp_path, program, "exec", "--dangerously-bypass-approvals-and-sandbox",
        "--skip-git-repo-check", "Multiply the numbers by ten.",
    )  # fmt: skip
    assert (project / "one.py").read_text().startswith("ONE = 10"), done.stdout + done.stderr
    assert (project / "two.py").read_text().startswith("TWO = 20")


def test_claude_code_changes_two_files(clients, server, project, tmp_path):
    program = npm_program(clients, "@anthropic-ai/claude-code", "claude")
    one, two = str(project / "one.py"), str(project / "two.py")
    server.say(tool_calls(("Read", {"file_path": one}), ("Read", {"file_path": two})))
    server.say(
        tool_calls(
            ("Edit", {"file_path": one, "old_string": "ONE = 1", "new_string": "ONE = 10"}),
            ("Edit", {"file_path": two, "old_string": "TWO = 2", "new_string": "TWO = 20"}),
        )
    )
    server.say("Both numbers are ten times as large.")
    done = launch(
        "claude", server, project, tmp_path, program, "--print", "--permission-mode", "acceptEdits",
        "Multiply the numbers by ten.",
    )  # fmt: skip
    assert (project / "one.py").read_text() == "ONE = 10\n", done.stdout + done.stderr
    assert (project / "two.py").read_text() == "TWO = 20\n"
    # Turn by turn the prompt only grows: what was computed for one turn serves the next.
    prompts = [p for p in server.prompts() if "Multiply the numbers" in p]
    assert len(prompts) >= 3
    for earlier, later in itertools.pairwise(prompts):
        shared = next((i for i, (a, b) in enumerate(zip(earlier, later, strict=False)) if a != b), len(earlier))
        assert shared >= 0.95 * len(earlier)


def test_pi_changes_two_files(clients, server, project, tmp_path):
    program = npm_program(clients, "@earendil-works/pi-coding-agent", "pi")
    server.say(tool_calls(("read", {"path": "one.py"})))
    server.say(tool_calls(("bash", {"command": "sed -i 's/ = \\([0-9]\\)/ = \\10/' one.py two.py"})))
    server.say("Both numbers are ten times as large.")
    done = launch("pi", server, project, tmp_path, program, "--no-session", "-p", "Multiply the numbers by ten.")
    assert (project / "one.py").read_text() == "ONE = 10\n", done.stdout + done.stderr
    assert (project / "two.py").read_text() == "TWO = 20\n"
    assert "ten times" in done.stdout
    assert "ONE = 1" in server.prompts()[1]


GOOSE = "@aaif/goose-binary-linux-x64"  # goose's releases for npm
ONE_TASK = ["run", "--no-session", "--with-builtin", "developer", "-t"]


def test_goose_changes_two_files(clients, server, project, tmp_path):
    program = npm_program(clients, GOOSE, "goose-binary-linux-x64")
    server.say(tool_calls(("shell", {"command": "cat one.py"})))
    server.say(tool_calls(("shell", {"command": "sed -i 's/ = \\([0-9]\\)/ = \\10/' one.py two.py"})))
    server.say("Both numbers are ten times as large.")
    done = launch("goose", server, project, tmp_path, program, *ONE_TASK, "Multiply the numbers by ten.")
    assert (project / "one.py").read_text() == "ONE = 10\n", done.stdout + done.stderr
    assert (project / "two.py").read_text() == "TWO = 20\n"
    assert "ten times" in done.stdout
    assert any("ONE = 1" in prompt for prompt in server.prompts())


def openclaw(clients, url, project, tmp_path, task, *, model="spark", context=65536):
    """Run one task of OpenClaw, with the configuration that `tessera launch openclaw --connect` writes."""
    node = npm_program(clients, "node@24", "node").resolve().parent
    path = f"{node}{os.pathsep}{os.environ['PATH']}"
    program = npm_program(clients, "openclaw", "openclaw", path)
    environment = local_home(tmp_path, PATH=path)
    endpoint = Endpoint(url=url, model=model, context=context)
    for edit in INTEGRATIONS["openclaw"].edits(Path(environment["HOME"]), endpoint):
        write_private(edit.path, edit.after)
    return run(program, ["agent", "exec", "--cwd", str(project)], [task], project, environment)


def test_openclaw_changes_two_files(clients, server, project, tmp_path):
    server.say(tool_calls(("read", {"path": "one.py"})))
    server.say(tool_calls(("exec", {"command": "sed -i 's/ = \\([0-9]\\)/ = \\10/' one.py two.py"})))
    server.say("Both numbers are ten times as large.")
    done = openclaw(clients, server.url, project, tmp_path, "Multiply the numbers by ten.")
    assert (project / "one.py").read_text() == "ONE = 10\n", done.stdout + done.stderr
    assert (project / "two.py").read_text() == "TWO = 20\n"
    assert "ten times" in done.stdout
    assert any("ONE = 1" in prompt for prompt in server.prompts())


TASK = "Multiply the number by ten."
TEN_TIMES = "The number is ten times as large."


def answers_of_claude(files):
    edit = {"file_path": files[-1], "old_string": "ONE = 1", "new_string": "ONE = 10"}
    return [*(tool_calls(("Read", {"file_path": file})) for file in files), tool_calls(("Edit", edit)), TEN_TIMES]


def answers_of_opencode(files):
    edit = {"filePath": files[-1], "oldString": "ONE = 1", "newString": "ONE = 10"}
    return [*(tool_calls(("read", {"filePath": file})) for file in files), tool_calls(("edit", edit)), TEN_TIMES]


def answers_of_codex(files):
    change = f"sed -i 's/ONE = 1/ONE = 10/' {files[-1]}"
    commands = (*(f"cat {file}" for file in files), change)
    return [*(tool_calls(("exec_command", {"cmd": command})) for command in commands), TEN_TIMES]


def answers_of_aider(files):
    def block(old, new):
        return f"one.py\n```python\n<<<<<<< SEARCH\n{old}\n=======\n{new}\n>>>>>>> REPLACE\n```\n\n{TEN_TIMES}"

    return [block("ONE = 2", "ONE = 20"), block("ONE = 1", "ONE = 10")]  # it reports that the first does not match


def answers_of_cline(files):
    edit = {"path": files[-1], "old_text": "ONE = 1", "new_text": "ONE = 10"}
    reads = (tool_calls(("read_files", {"files": [{"path": file}]})) for file in files)
    return [*reads, tool_calls(("editor", edit)), TEN_TIMES]


def answers_of_pi(files):
    edit = {"path": files[-1], "edits": [{"oldText": "ONE = 1", "newText": "ONE = 10"}]}
    return [*(tool_calls(("read", {"path": file})) for file in files), tool_calls(("edit", edit)), TEN_TIMES]


def answers_of_goose(files):
    change = f"sed -i 's/ONE = 1/ONE = 10/' {files[-1]}"
    commands = (*(f"cat {file}" for file in files), change)
    return [*(tool_calls(("shell", {"command": command})) for command in commands), TEN_TIMES]


def answers_of_openclaw(files):
    reads = (tool_calls(("read", {"path": file})) for file in files)
    change = f"sed -i 's/ONE = 1/ONE = 10/' {files[-1]}"
    return [*reads, tool_calls(("exec", {"command": change})), TEN_TIMES]


# Package, answers, arguments.
LONG = {
    "claude": (
        "@anthropic-ai/claude-code",
        answers_of_claude,
        ["--print", "--permission-mode", "acceptEdits", TASK],
    ),
    "opencode": ("opencode-ai", answers_of_opencode, ["run", "--title", "t", TASK]),
    "codex": (
        "@openai/codex",
        answers_of_codex,
        ["exec", "--dangerously-bypass-approvals-and-sandbox", "--skip-git-repo-check", TASK],
    ),
    "aider": (
        "",
        answers_of_aider,
        [
            "--edit-format", "diff", "--yes-always", "--no-auto-commits", "--no-check-update", "--no-analytics",
            "--no-show-release-notes", "--map-tokens", "0", "--message", TASK, "long0.py", "long1.py", "one.py",
        ],
    ),
    "cline": ("cline", answers_of_cline, [TASK]),
    "openclaw": ("", answers_of_openclaw, []),
    "goose": (GOOSE, answers_of_goose, [*ONE_TASK, TASK]),
    "pi": ("@earendil-works/pi-coding-agent", answers_of_pi, ["--no-session", "-p", TASK]),
}  # fmt: skip


@pytest.mark.parametrize("name", LONG)
def test_a_task_of_over_40000_tokens_goes_through_the_real_cache(clients, long_server, project, tmp_path, name):
    """Default settings: the context grows while the client works, and each turn computes only what is new."""
    package, answers, arguments = LONG[name]
    command = "goose-binary-linux-x64" if name == "goose" else name
    program = npm_program(clients, package, command) if package else None
    if name == "aider":
        program = aider_program(clients)
    for part in range(2):
        lines = (f"N{i} = {i}  # number {i} of part {part}\n" for i in range(700))
        (project / f"long{part}.py").write_text("".join(lines))
    for answer in answers([str(project / file) for file in ("long0.py", "long1.py", "one.py")]):
        long_server.say(answer)
    if name == "cline":
        environment = local_home(tmp_path, CLINE_TELEMETRY_DISABLED="1")
        first = cline_arguments(tmp_path, "openai-compatible", f"{long_server.url}/v1", "long")
        done = run(program, first, arguments, project, environment)
    elif name == "openclaw":
        done = openclaw(clients, long_server.url, project, tmp_path, TASK, model="long", context=1 << 17)
    else:
        # Codex compacts near the end of its context, and here its own instructions have four times their tokens.
        context = 1 << 17 if name == "codex" else 1 << 16
        done = launch(name, long_server, project, tmp_path, program, *arguments, model="long", context=context)
    assert (project / "one.py").read_text() == "ONE = 10\n", done.stdout + done.stderr
    assert "ten times" in done.stdout
    counted = httpx2.get(f"{long_server.url}/metrics", headers={"authorization": f"Bearer {TOKEN}"}).text
    prompts, cached = (
        float(re.search(rf'^tessera_{kind}_tokens_total{{model="long"}} (.*)$', counted, re.MULTILINE)[1])
        for kind in ("prompt", "cached")
    )
    print(f"{name}: {prompts:.0f} tokens of prompts, {cached:.0f} from the cache")
    assert prompts - cached > 40_000
    # Each turn computes only what is new. Aider puts the files behind the conversation, so they are computed again.
    assert cached > (5_000 if name == "aider" else prompts / 3)


def test_hermes_works_only_with_the_context_that_launch_loads(clients, tmp_path, project):
    """Its own command writes its configuration; it refuses a model that is loaded with less than 64,000 tokens."""
    program = clients / "hermes" / "bin" / "hermes"
    if not program.exists():
        subprocess.run([sys.executable, "-m", "venv", str(clients / "hermes")], check=True)
        subprocess.run([str(program.parent / "pip"), "install", "-q", "hermes-agent"], check=True, timeout=800)
    models = tmp_path / "server" / "models"
    models.mkdir(parents=True)
    write_hollow(models / "long.gguf", scaled("llama", layers=1, vocab=100, context=131_072))
    served = ScriptedServer(tmp_path / "server", template=HERMES.read_text("utf-8"))
    environment = local_home(tmp_path)
    endpoint = Endpoint(url=served.url, model="long", context=65_536)
    for line in INTEGRATIONS["hermes"].steps(endpoint).splitlines()[1:]:
        run(program, line.split()[1:], [], project, environment)
    script = "sed -i 's/ = \\([0-9]\\)/ = \\10/' one.py two.py"
    served.say(tool_calls(("terminal", {"command": script})))
    served.say("Both numbers are ten times as large.")
    start = INTEGRATIONS["hermes"].launch(endpoint, tmp_path)
    ask = ["--yolo", "-z", "Multiply the numbers by ten."]
    try:
        refused = run(program, start.argv[1:], ask, project, environment)
        assert "at least 64,000 tokens" in refused.stdout
        with Client(served.url, TOKEN) as client:
            assert load_for(client, "long", "Hermes Agent", need_of("hermes", "agent")) == 65_536
        done = run(program, start.argv[1:], ask, project, environment)
    finally:
        served.stop()
    assert (project / "one.py").read_text() == "ONE = 10\n", done.stdout + done.stderr
    assert (project / "two.py").read_text() == "TWO = 20\n"
    assert "ten times" in done.stdout


def test_continue_changes_two_files(clients, server, project, tmp_path):
    """With the configuration that `tessera connect continue` writes."""
    program = npm_program(clients, "@continuedev/cli", "cn")
    environment = local_home(tmp_path, CONTINUE_TELEMETRY_ENABLED="0", CONTINUE_METRICS_ENABLED="0")
    endpoint = Endpoint(url=server.url, model="spark", context=65536)
    [edit] = INTEGRATIONS["continue"].edits(Path(environment["HOME"]), endpoint)
    write_private(edit.path, edit.after)
    one, two = str(project / "one.py"), str(project / "two.py")
    server.say(tool_calls(("Read", {"filepath": one}), ("Read", {"filepath": two})))
    server.say(
        tool_calls(
            ("Edit", {"file_path": one, "old_string": "ONE = 1", "new_string": "ONE = 10"}),
            ("Edit", {"file_path": two, "old_string": "TWO = 2", "new_string": "TWO = 20"}),
        )
    )
    server.say("Both numbers are ten times as large.")
    arguments = ["--config", str(edit.path), "--auto", "-p", "Multiply the numbers by ten."]
    done = run(program, [], arguments, project, environment)
    assert (project / "one.py").read_text() == "ONE = 10\n", done.stdout + done.stderr
    assert (project / "two.py").read_text() == "TWO = 20\n"
    assert "ten times" in done.stdout
    assert "ONE = 1" in server.prompts()[1]


def cline_arguments(tmp_path, provider, url, model):
    """Write its settings, and return the arguments that choose them."""
    chosen = {"provider": provider, "apiKey": "unused", "model": model, "baseUrl": url}
    about = {"settings": chosen, "updatedAt": "2026-01-01T00:00:00.000Z", "tokenSource": "manual"}
    settings = {"version": 1, "lastUsedProvider": provider, "modes": {}, "providers": {provider: about}}
    data = tmp_path / "cline"
    write_private(data / "settings" / "providers.json", json.dumps(settings))
    return ["--json", "-P", provider, "-m", model, "--thinking", "low", "--data-dir", str(data)]


@pytest.mark.parametrize("provider", ["openai-compatible", "ollama"])
def test_cline_changes_two_files(clients, server, project, tmp_path, provider):
    """Its program for the terminal, which shares the core of its extension; both of its ways to a local server."""
    program = npm_program(clients, "cline", "cline")
    environment = local_home(tmp_path, CLINE_TELEMETRY_DISABLED="1")
    url = server.url if provider == "ollama" else f"{server.url}/v1"
    first = cline_arguments(tmp_path, provider, url, "spark")
    one, two = str(project / "one.py"), str(project / "two.py")
    server.say(tool_calls(("read_files", {"files": [{"path": one}, {"path": two}]})))
    server.say(
        tool_calls(
            ("editor", {"path": one, "old_text": "ONE = 1", "new_text": "ONE = 10"}),
            ("editor", {"path": two, "old_text": "TWO = 2", "new_text": "TWO = 20"}),
        )
    )
    server.say("Both numbers are ten times as large.")
    done = run(program, first, ["Multiply the numbers by ten."], project, environment)
    assert (project / "one.py").read_text() == "ONE = 10\n", done.stdout + done.stderr
    assert (project / "two.py").read_text() == "TWO = 20\n"
    assert "ten times" in done.stdout
    assert "ONE = 1" in server.prompts()[1]


def mcp_papers(tmp_path):
    """A collection in a home of its own, and how a client starts the MCP server for it."""
    papers = tmp_path / "papers"
    papers.mkdir()
    (papers / "lease.md").write_text("# Lease\n\nThe rent is due on the fifth of the month, by transfer.\n")
    environment = {"TESSERA_HOME": str(tmp_path / "documents"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "app"]
    subprocess.run(
        [*command, "collections", "add", "papers", str(papers)], cwd=ROOT, env={**os.environ, **environment},
        check=True, stdout=subprocess.DEVNULL, timeout=300,
    )  # fmt: skip
    return [*command, "mcp", "papers"], environment


def test_claude_code_reads_a_collection_through_mcp(clients, server, project, tmp_path):
    program = npm_program(clients, "@anthropic-ai/claude-code", "claude")
    (first, *arguments), environment = mcp_papers(tmp_path)
    config = tmp_path / "mcp.json"
    entry = {"command": first, "args": arguments, "env": environment}
    config.write_text(json.dumps({"mcpServers": {"papers": entry}}))
    server.say(tool_calls(("WaitForMcpServers", {})), again="Still connecting")
    server.say(tool_calls(("mcp__papers__search", {"question": "When is the rent due?"})))
    server.say("The rent is due on the fifth.")
    done = launch(
        "claude", server, project, tmp_path, program, "--print", "--mcp-config", str(config), "--strict-mcp-config",
        "--allowedTools", "mcp__papers__search", "--", "When is my rent due? Look into my papers.",
        settings={"MCP_TIMEOUT": "300000"},  # ms; its default is too short for a busy computer
    )  # fmt: skip
    assert "due on the fifth" in done.stdout, done.stdout + done.stderr
    # The passage went back to the model.
    prompts = [p for p in server.prompts() if "Look into my papers" in p]
    assert any("fifth of the month, by transfer" in p for p in prompts), prompts[-1][-2000:]


def test_opencode_reads_a_collection_through_mcp(clients, server, project, tmp_path):
    program = npm_program(clients, "opencode-ai", "opencode")
    command, environment = mcp_papers(tmp_path)
    entry = {"type": "local", "command": command, "environment": environment, "timeout": 60_000}
    (project / "opencode.json").write_text(json.dumps({"mcp": {"papers": entry}}))
    server.say(tool_calls(("papers_search", {"question": "When is the rent due?"})))
    server.say("The rent is due on the fifth.")
    done = launch(
        "opencode", server, project, tmp_path, program, "run", "--title", "t", "When is my rent due? Look it up."
    )
    assert "due on the fifth" in done.stdout, done.stdout + done.stderr
    assert any("fifth of the month, by transfer" in p for p in server.prompts())
