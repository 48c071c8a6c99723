"""The server as an OS service: units are parsed like the managers do; fake managers record their calls.

Service managers do not run where tests run. If systemd's own checker is installed, it checks the unit.
"""

import functools
import json
import os
import plistlib
import shlex
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from app import os_service
from devices.child_command import own_command
from tests.support.servers import free_port, wait_for

ROOT = Path(__file__).resolve().parents[2]
# A fake manager that records its calls in a file, and runs a unit's command while it is "active".
SYSTEMCTL = """#!{python}
import json, pathlib, sys
state = pathlib.Path({state!r})
told = json.loads(state.read_text()) if state.exists() else {{"asked": [], "active": False}}
words = sys.argv[1:]
told["asked"].append(words)
if "restart" in words:
    told["active"] = True
if "disable" in words:
    told["active"] = False
state.write_text(json.dumps(told))
if "enable" in words and pathlib.Path({broken!r}).exists():
    sys.exit("Failed to enable unit: Access denied \\x1b[2J")
if "is-active" in words:
    print("active" if told["active"] else "inactive")
    sys.exit(0 if told["active"] else 3)
"""


@pytest.fixture
def systemctl(tmp_path, monkeypatch):
    """A fake systemctl in PATH, and its recorded calls."""
    tools = tmp_path / "bin"
    tools.mkdir()
    program = tools / "systemctl"
    text = SYSTEMCTL.format(python=sys.executable, state=str(tmp_path / "asked"), broken=str(tmp_path / "broken"))
    program.write_text(text, encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return lambda: json.loads((tmp_path / "asked").read_text(encoding="utf-8"))["asked"]


@pytest.fixture
def tessera(in_process):
    return functools.partial(in_process, "service")


pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="systemd is Linux's")


def test_installed_asked_for_and_removed(tessera, systemctl, tmp_path):
    told = json.loads(tessera("status", "--json").stdout)
    assert (told["installed"], told["running"]) == (False, False)
    settings = Path(os.environ["TESSERA_HOME"]) / "config" / "settings.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text(f"[models]\nfolder = '{tmp_path / 'models'}'\n")
    done = tessera("install", "--", "--port", "8123", "--host", "127.0.0.1")
    assert done.returncode == 0, done.stderr
    unit = tmp_path / "config" / "systemd" / "user" / "tessera.service"
    assert str(unit) in done.stdout
    assert "loginctl enable-linger" in done.stdout
    assert [words[1] for words in systemctl()] == ["daemon-reload", "enable", "restart"]
    told = json.loads(tessera("status", "--json").stdout)
    assert (told["installed"], told["running"]) == (True, True)
    assert "TESSERA_MODELS_FOLDER" not in unit.read_text(encoding="utf-8"), "the setting is read from its file"
    assert tessera("restart").stdout.strip() == "Restarted."
    assert systemctl()[-1] == ["--user", "restart", "tessera.service"]
    assert tessera("remove").stdout.strip() == "Removed."
    assert not unit.exists()
    assert tessera("remove").stdout.strip() == "It was not installed."
    assert tessera("status").stdout.startswith("not installed")
    assert "is not installed" in tessera("restart").stderr


def test_the_units_command_is_the_server(tessera, systemctl, tmp_path):
    """The words of the unit's command, with --help, reach the program."""
    assert tessera("install", "--", "--port", "0").returncode == 0
    unit = (tmp_path / "config" / "systemd" / "user" / "tessera.service").read_text(encoding="utf-8")
    (line,) = [line for line in unit.splitlines() if line.startswith("ExecStart=")]
    words = shlex.split(line.removeprefix("ExecStart="))
    assert words[-3:] == ["serve", "--port", "0"]
    done = subprocess.run([*words, "--help"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--port" in done.stdout


@pytest.mark.parametrize("options", [("--nosuch", "5"), ("--port", "999999"), ("--kv", "q9")])
def test_wrong_options_of_the_server_are_refused_and_nothing_is_installed(tessera, systemctl, tmp_path, options):
    done = tessera("install", "--", *options)
    assert (done.returncode, options[0] in done.stderr) == (2, True)
    assert tessera("status").stdout.startswith("not installed")


def test_a_manager_that_refuses_is_quoted_without_its_control_characters(tessera, systemctl, tmp_path):
    (tmp_path / "broken").touch()
    done = tessera("install")
    assert done.returncode == 4
    assert "`systemctl --user enable tessera.service` failed: Failed to enable unit: Access denied" in done.stderr
    assert "\x1b" not in done.stderr


def test_a_user_without_a_login_is_told_that_services_need_one(tessera, systemctl, tmp_path):
    program = tmp_path / "bin" / "systemctl"
    program.write_text(
        "#!/bin/sh\necho 'Failed to connect to bus: No medium found' >&2\nexit 1\n", encoding="utf-8"
    )
    done = tessera("install")
    assert done.returncode == 4
    assert "No medium found. Services need a login of this user" in done.stderr


def test_no_manager_is_said_with_what_to_do(tessera, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("PATH", str(tmp_path))
    done = tessera("install")
    assert done.returncode == 4
    assert "systemctl is not here" in done.stderr
    assert not (tmp_path / "config").exists()


@pytest.mark.parametrize("word", ["/opt/My Models/100%/$HOME", 'a "quoted" \\ word', "-plain"])
def test_words_reach_the_program_as_they_are(tmp_path, word):
    found = os_service.manager(("/bin/true", word), "linux", {"HOME": str(tmp_path)})
    (line,) = [line for line in found.text.splitlines() if line.startswith("ExecStart=")]
    plain = line.removeprefix("ExecStart=").replace("%%", "%").replace("$$", "$")
    assert shlex.split(plain) == ["/bin/true", word]
    checker = shutil.which("systemd-analyze")
    if checker is None:
        return
    path = tmp_path / "tessera.service"
    path.write_text(found.text, encoding="utf-8")
    done = subprocess.run([checker, "verify", "--user", str(path)], capture_output=True, text=True, check=False)
    assert "tessera.service:" not in done.stderr, done.stderr


def test_launchds_description_reads_back():
    command = own_command("serve", "--port", "8000")
    found = os_service.manager(command, "darwin", {"HOME": "/Users/ada & co"})
    facts = plistlib.loads(found.text.encode())
    assert facts["ProgramArguments"] == list(command)
    assert facts["Label"] == found.path.stem == "io.github.tessera.Tessera"
    assert found.install[0][:2] == ("launchctl", "bootstrap")


def test_the_task_schedulers_description_reads_back():
    env = {"LOCALAPPDATA": "C:/Users/ada/AppData/Local", "USERDOMAIN": "DESK", "USERNAME": "ada & bob"}
    found = os_service.manager(("C:/Tessera/tessera.exe", "serve", "--models", "D:/My <Models>"), "win32", env)
    root = ET.fromstring(found.text.partition("\n")[2])
    space = "{http://schemas.microsoft.com/windows/2004/02/mit/task}"
    assert root.findtext(f".//{space}Command") == "C:/Tessera/tessera.exe"
    assert root.findtext(f".//{space}Arguments") == 'serve --models "D:/My <Models>"'
    assert {each.text for each in root.iter(f"{space}UserId")} == {"DESK\\ada & bob"}


def from_unit(unit: Path) -> tuple[list[str], dict[str, str], str]:
    """A unit as systemd parses it: arguments of the command, variables, working folder."""
    words, variables, folder = [], {}, "/"
    for line in unit.read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition("=")
        if name == "ExecStart":
            words = shlex.split(value.replace("%%", "%").replace("$$", "$"))
        elif name == "Environment":
            (text,) = shlex.split(value.replace("%%", "%"))
            variables[text.partition("=")[0]] = text.partition("=")[2]
        elif name == "WorkingDirectory":
            folder = value.removeprefix("-").replace("%%", "%")
    return words, variables, folder


def test_the_server_of_the_service_uses_the_folders_and_settings_of_who_installed_it(
    systemctl, tmp_path, monkeypatch
):
    home = tmp_path / 'a "home" with 100% $HOME'
    (home / "here").mkdir(parents=True)
    (tmp_path / "lora.gguf").touch()
    monkeypatch.setenv("TESSERA_HOME", os.path.relpath(home, tmp_path))
    monkeypatch.setenv("TESSERA_SERVER_PORT", str(free_port()))
    monkeypatch.setenv("TESSERA_KEY", "tsr_of_the_terminal")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    command = [sys.executable, "-m", "app", "service", "install"]
    unit = tmp_path / "config" / "systemd" / "user" / "tessera.service"
    near = [*command, "--", "--lora", "spark=lora.gguf"]
    assert subprocess.run(near, cwd=tmp_path, capture_output=True, check=False).returncode == 0
    assert from_unit(unit)[2] == str(tmp_path)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "TESSERA_HOME" in done.stdout
    assert "secrets: HF_TOKEN" in done.stdout
    text = unit.read_text(encoding="utf-8")
    assert "hf_secret" not in text
    assert "tsr_of_the_terminal" not in text
    assert unit.stat().st_mode & 0o777 == 0o600
    words, variables, folder = from_unit(unit)
    assert variables["TESSERA_HOME"] == str(home)
    # Like systemd: only the unit's variables, not this shell's environment.
    env = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"} | variables
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(words, cwd=folder, env=env, stdout=log, stderr=log)
    try:
        file = home / "state" / "server.json"
        wait_for(lambda: file.exists() or server.poll() is not None, 120, "the service's server")
        assert file.exists(), (tmp_path / "log").read_text()
        assert json.loads(file.read_text())["url"].endswith(f":{variables['TESSERA_SERVER_PORT']}")
    finally:
        server.terminate()
        server.wait(60)


def test_a_service_that_could_not_be_installed_leaves_nothing(tessera, systemctl, tmp_path):
    (tmp_path / "broken").touch()
    assert tessera("install").returncode == 4
    assert tessera("status").stdout.startswith("not installed")


def test_the_other_managers_pass_the_variables_on():
    env = {"HOME": "/Users/ada", "TESSERA_HOME": "/Volumes/A & B", "HTTPS_PROXY": "http://p", "OTHER": "x"}
    found = plistlib.loads(os_service.manager(("/bin/tessera", "serve"), "darwin", env).text.encode())
    assert found["EnvironmentVariables"] == {"HTTPS_PROXY": "http://p", "TESSERA_HOME": "/Volumes/A & B"}
    env = {"LOCALAPPDATA": "C:/x", "USERNAME": "ada", "Path": "C:/Windows", "TESSERA_CHAT_MODEL": "a b"}
    task = os_service.manager(("C:/My Programs/tessera.exe", "serve"), "win32", env).text
    root = ET.fromstring(task.partition("\n")[2])
    space = "{http://schemas.microsoft.com/windows/2004/02/mit/task}"
    assert root.findtext(f".//{space}Command") == "cmd.exe"
    words = '/d /s /c "set "TESSERA_CHAT_MODEL=a b"&&"C:/My Programs/tessera.exe" serve"'
    assert root.findtext(f".//{space}Arguments") == words
