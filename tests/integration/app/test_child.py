"""Child processes of a frozen build, which has no separate interpreter."""

import asyncio
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest

from app.child import CHILDREN, EXIT_UNKNOWN
from app.cli.main import cli, main
from app.client import Client
from app.server_process import ServerProcess
from devices.child import run_child
from devices.child_command import child_command, interpreter, own_command
from engine.chat.template import TemplateRenderer
from engine.chat.types import ChatTemplate, Message
from engine.core.types import Delta, GenerationRequest
from engine.runner.process import RunnerProcess
from engine.runner.protocol import LoadSettings
from quantize.child import run_task

ROOT = Path(__file__).resolve().parents[3]
STARTS = re.compile(r"(?:child_command|BoundedChild)\(\s*\"([a-z_.]+)\"")


@pytest.fixture
def frozen(tmp_path, monkeypatch):
    """This program as a frozen build: one executable with its own arguments and no `-m`."""
    executable = tmp_path / "tessera"
    executable.write_text(f"#!{sys.executable}\nfrom app.cli.main import main\nmain()\n", encoding="utf-8")
    executable.chmod(0o755)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(sys, "executable", str(executable))
    return executable


def test_the_table_names_every_child_and_nothing_else():
    packages = [ROOT / name for name in ("app", "devices", "engine", "quantize")]
    sources = [path.read_text(encoding="utf-8") for package in packages for path in package.rglob("*.py")]
    assert {found for source in sources for found in STARTS.findall(source)} == CHILDREN
    assert all(find_spec(module) for module in CHILDREN)
    ways = [line for source in sources for line in source.splitlines() if "sys.executable" in line]
    assert all("return (sys.executable" in line for line in ways), "start children through devices.child_command"


def test_foreign_code_is_never_given_to_the_frozen_program(frozen, monkeypatch):
    """`tessera solution.py` would run a Tessera command, not that program."""
    assert interpreter("-c", "1")[0] != str(frozen)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(FileNotFoundError, match="no Python is installed"):
        interpreter("-c", "1")


@pytest.mark.parametrize("name", ["TESSERA_HOME", "TESSERA_SPEECH"])
def test_a_relative_folder_is_the_same_one_for_a_child_in_another_folder(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(name, "mine")
    program = f"import os; print(os.path.abspath(os.environ[{name!r}]))"
    folders = []

    def run(**_):
        child = subprocess.run(interpreter("-c", program), cwd="/", capture_output=True, text=True, check=True)
        folders.append(child.stdout.strip())

    monkeypatch.setattr(cli, "main", run)
    with pytest.raises(SystemExit):
        main()
    assert folders == [str(tmp_path / "mine")]


def test_from_source_the_interpreter_runs_the_module():
    assert child_command("engine.runner.main", "llama")[:1] == (sys.executable,)
    assert child_command("engine.runner.main", "llama")[-2:] == ("engine.runner.main", "llama")
    assert own_command("serve")[-2:] == ("app", "serve")


class TestInAFolderWithModulesOfItsOwn:
    """Modules in the current folder, such as a user's project, must not replace modules of this program."""

    @pytest.fixture(autouse=True)
    def hostile(self, tmp_path, monkeypatch):
        folder = tmp_path / "project"
        for package in ("app", "engine", "devices", "quantize"):
            (folder / package).mkdir(parents=True)
            (folder / package / "__init__.py").write_text("open('OWNED', 'w').close()\n")
        for module in ("json", "msgspec", "click", "sitecustomize", "start_module"):
            (folder / f"{module}.py").write_text("open('OWNED', 'w').close()\n")
        monkeypatch.chdir(folder)
        # Like in the installed program, whose folder is on the path.
        monkeypatch.setenv("PYTHONPATH", str(ROOT))
        yield folder
        assert not (folder / "OWNED").exists()

    def test_a_server_starts_and_renders_and_generates(self):
        server = ServerProcess()
        try:
            with server.connect(Client) as client:
                answer = list(client.chat("spark", [{"role": "user", "content": "Hi"}], max_tokens=2))
                assert answer
        finally:
            server.stop()

    def test_a_quantizer_child_speaks(self):
        with pytest.raises(Exception, match="no-such-task"):
            run_task("no-such-task", {}, lambda _progress: None, lambda: False)

    def test_a_probe_answers(self, bundled_model):
        settings = msgspec.json.encode(LoadSettings(path=str(bundled_model), n_ctx=256)).decode()
        outcome = run_child(child_command("engine.runner.llama.memory_probe", settings), 60)
        assert outcome.answer is not None, outcome.reason


@pytest.mark.skipif(sys.platform == "win32", reason="the stand-in for the executable is a script")
class TestFrozen:
    def test_a_runner_serves(self, frozen, bundled_model):
        async def scenario():
            runner = await RunnerProcess.start("llama", str(bundled_model))
            try:
                await runner.load(LoadSettings(path=str(bundled_model), n_ctx=256, n_parallel=1, n_threads=1))
                request = GenerationRequest(prompt="Once upon a time", max_tokens=3, ignore_eos=True)
                return [e async for e in runner.generate(request) if isinstance(e, Delta)]
            finally:
                await runner.stop()

        assert child_command("x")[0] == str(frozen)
        assert asyncio.run(scenario())

    def test_a_dry_run_answers(self, frozen, bundled_model):
        settings = msgspec.json.encode(LoadSettings(path=str(bundled_model), n_ctx=256)).decode()
        outcome = run_child(child_command("engine.runner.llama.memory_probe", settings), 60)
        assert outcome.answer is not None, outcome.reason
        assert outcome.answer["kv_bytes"] > 0

    def test_a_template_is_rendered(self, frozen):
        renderer = TemplateRenderer()
        try:
            message = Message(role="user", content="Hi")
            source = "{{ messages[0]['content'] }}!"
            assert asyncio.run(renderer.render(ChatTemplate(source=source), (message,))).prompt == "Hi!"
        finally:
            renderer.close()

    def test_a_quantizer_child_speaks(self, frozen):
        with pytest.raises(Exception, match="no-such-task"):
            run_task("no-such-task", {}, lambda _progress: None, lambda: False)

    def test_a_server_of_its_own_starts(self, frozen):
        server = ServerProcess()
        try:
            with server.connect(Client) as client:
                assert client.healthy()
        finally:
            server.stop()

    @pytest.mark.parametrize("module", ["os", "app.cli.main", "", "engine.runner.main.x"])
    def test_nothing_else_is_run(self, frozen, module):
        done = subprocess.run([frozen, "--child", module], capture_output=True, text=True, check=False)
        assert done.returncode == EXIT_UNKNOWN
        assert "child processes" in done.stderr


def test_a_child_that_gets_little_of_the_processor_is_waited_for():
    computing = "import time\nfor _ in range(32): time.sleep(.1); sum(range(200_000))\nprint('{\"done\": 1}')"
    found = run_child((sys.executable, "-c", computing), 3.0)
    assert found.answer == {"done": 1}, found
    assert found.seconds > 3
    hanging = run_child((sys.executable, "-c", "import time; time.sleep(60)"), 1.0)
    assert (hanging.answer, hanging.seconds < 30) == (None, True)
    spinning = run_child((sys.executable, "-c", "while True: pass"), 1.0)
    assert (spinning.answer, "within 1 s" in spinning.reason) == (None, True)
