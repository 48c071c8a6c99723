"""Checks which programs, data and environment variables of the home folder a command can see."""

import json
import os
import sys
from pathlib import Path

import anyio.to_thread
import pytest

from app.code.agent import sandbox
from app.code.agent.command import run_command
from app.code.agent.sandbox import SandboxPermissions
from app.tools.mcp_server import stdio_pipes
from devices.environment import program_environment, without_secrets
from tests.support.servers import wait_for

needs_sandbox = pytest.mark.skipif(sandbox.missing() is not None, reason=f"no sandbox: {sandbox.missing()}")
PRIVATE = (
    ".local/share/opencode/auth.json",
    ".local/share/keyrings/login.keyring",
    ".local/share/tessera/chats.db",
    ".local/share/pipx/venvs/black/secret.txt",
    ".local/state/bash/history",
    ".config/gh/hosts.yml",
    ".cargo/credentials.toml",
    ".tool/share/token",
    ".tool/auth.json",
    ".plain/auth.json",
    ".ssh/id_ed25519",
    "Documents/taxes.txt",
    "other/data/x",
)
SECRETS = {
    "OPENAI_KEY": "a", "GITHUB_PAT": "b", "DATABASE_URL": "postgres://u:p@h/d", "GPG_PASSPHRASE": "c",
    "MYSQL_PWD": "d", "STRIPE": "e", "NPM_AUTH": "f", "ANTHROPIC_AUTH": "g", "SMTP_PASS": "h",
    "KUBECONFIG_DATA": "i", "AWS_SESSION": "j", "SENTRY_DSN": "k", "CI_JOB_JWT": "l", "COOKIE": "m",
    "PGPASSFILE": "n", "LC_SECRETS": "o", "npm_config__auth": "p", "PIP_INDEX_URL": "https://u:p@h/",
    "HTTPS_PROXY": "http://user:pw@proxy:3128", "https_proxy": "http://t@proxy", "HF_TOKEN": "q",
    "my_password": "r", "GIT_ASKPASS": "s", "DOCKER_AUTH_CONFIG": "t", "Anything": "u",
}  # fmt: skip


@pytest.fixture
def home(tmp_path, monkeypatch):
    folder = tmp_path / "home"
    for name in PRIVATE:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("private")
    for name in (".local/bin/tool", ".tool/bin/tool2", ".plain/tool3", ".local/share/pipx/venvs/black/bin/black"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\necho ran {path.name}\n")
        path.chmod(0o755)
    (folder / ".local/bin/black").symlink_to(folder / ".local/share/pipx/venvs/black/bin/black")
    (folder / ".local/bin/key").symlink_to(folder / ".ssh/id_ed25519")
    (folder / "bin").symlink_to(folder / ".config")
    (folder / ".tool/lib").symlink_to(folder / "Documents")
    monkeypatch.setenv("HOME", str(folder))
    chains = [variable for variable, _, _ in sandbox._TOOL_CHAINS]
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "TESSERA_HOME", *chains):
        monkeypatch.delenv(name, raising=False)
    return folder


def reached(project, home):
    """The private files that a command can read, and the output of the programs in PATH."""
    words = " ".join(
        str(home / name) for name in (*PRIVATE, "bin/gh/hosts.yml", ".tool/lib/taxes.txt", ".local/bin/key")
    )
    script = f"for f in {words}; do cat $f >/dev/null 2>&1 && echo read $f; done; tool; tool2; tool3; black"
    lines = run_command(["sh", "-c", script], project, 90, SandboxPermissions()).output.splitlines()
    return {line for line in lines if line.startswith("read ")}, {
        line[4:] for line in lines if line.startswith("ran ")
    }


@needs_sandbox
def test_programs_of_the_home_run_and_nobodys_data_is_there(project, home, kind, monkeypatch):
    folders = [home / ".local/bin", home / ".tool/bin", home / ".plain"]
    monkeypatch.setenv("PATH", os.pathsep.join([*map(str, folders), "/usr/bin", "/bin"]))
    assert reached(project, home) == (set(), {"tool", "tool2", "tool3", "black"})


@needs_sandbox
def test_a_link_out_of_the_home_stops_no_command(project, home, kind, monkeypatch, tmp_path):
    outside = tmp_path / "outside" / "tool4"
    outside.parent.mkdir()
    outside.write_text("#!/bin/sh\necho ran tool4\n")
    outside.chmod(0o755)
    (home / ".plain" / "tool4").symlink_to(outside)
    monkeypatch.setenv("PATH", f"{home}/.plain:/usr/bin:/bin")
    for openings in (SandboxPermissions(), SandboxPermissions(home=True)):
        assert run_command(["tool3"], project, 90, openings).output == "ran tool3\n"
    assert run_command(["tool4"], project, 90, SandboxPermissions()).output == "ran tool4\n"


@needs_sandbox
@pytest.mark.parametrize(
    "entry",
    [
        "", ".local", ".local/share", ".local/share/opencode", ".config", "bin", "Documents/..", ".ssh", "..",
        ".local/bin/../share", ".local/bin/../..", "other/data",
    ],
)  # fmt: skip
def test_no_folder_on_path_opens_the_home(project, home, kind, monkeypatch, entry):
    monkeypatch.setenv("PATH", os.pathsep.join([f"{home}/{entry}", "/usr/bin", "/bin"]))
    assert reached(project, home)[0] == set()


@needs_sandbox
def test_a_data_folder_of_another_name_stays_shut(project, home, kind, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(home / "other" / "bin"))
    (home / "other" / "data").rename(home / "other" / "bin")
    monkeypatch.setenv("PATH", f"{home}/other/bin:/usr/bin:/bin")
    done = run_command(["cat", str(home / "other" / "bin" / "x")], project, 90, SandboxPermissions())
    assert "private" not in done.output


@needs_sandbox
@pytest.mark.parametrize(
    "name", [".plain/tool3", ".ssh/../.plain/tool3", ".ssh/id_ed25519", ".local/share/opencode/auth.json"]
)
def test_a_command_named_in_full_opens_itself_alone(project, home, kind, name):
    script = "for f in " + " ".join(str(home / private) for private in PRIVATE) + "; do cat $f && echo; done"
    argv = [str(home / name), "-c", script]
    assert "private" not in run_command(argv, project, 90, SandboxPermissions()).output


@needs_sandbox
def test_a_virtual_environment_in_the_home_works(project, home, kind, monkeypatch):
    environment = home / ".local" / "share" / "pipx" / "venvs" / "tool"
    (environment / "bin").mkdir(parents=True)
    (environment / "bin" / "python").symlink_to(sys.executable)
    (environment / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\n")
    packages = environment / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "itsown.py").write_text("print('found')")
    script = home / "start.sh"
    script.write_text(f"#!{environment}/bin/python\nimport itsown\n")
    script.chmod(0o755)
    (environment / "bin" / "mine").symlink_to(script)
    (home / ".local" / "bin" / "mine").symlink_to(environment / "bin" / "mine")
    (environment / "bin" / "own").write_text(f"#!{environment}/bin/python\nimport itsown\n")
    (environment / "bin" / "own").chmod(0o755)
    (home / ".local" / "bin" / "own").symlink_to(environment / "bin" / "own")
    monkeypatch.setenv("PATH", f"{home}/.local/bin:/usr/bin:/bin")
    assert run_command(["own"], project, 90, SandboxPermissions()).output == "found\n"


# Shims in PATH, and the programs they start. Private files of the same folders are below.
CHAINS = {
    ".cargo/bin/cargo": ("${RUSTUP_HOME:-$HOME/.rustup}", ".rustup/toolchains/stable/bin/cargo"),
    ".pyenv/shims/python9": ("${PYENV_ROOT:-$HOME/.pyenv}", ".pyenv/versions/9/bin/python9"),
    ".rbenv/shims/ruby9": ("${RBENV_ROOT:-$HOME/.rbenv}", ".rbenv/versions/9/bin/ruby9"),
    ".volta/bin/node9": ("${VOLTA_HOME:-$HOME/.volta}", ".volta/tools/image/node9"),
    ".asdf/shims/elixir9": ("${ASDF_DATA_DIR:-$HOME/.asdf}", ".asdf/installs/elixir9"),
    ".local/share/mise/shims/go9": ("${MISE_DATA_DIR:-$HOME/.local/share/mise}", ".local/share/mise/installs/go9"),
    "conda/bin/python8": ("$(dirname $0)/..", "conda/share/python8"),
}
CHAINS_PRIVATE = (
    ".rustup/other", ".cargo/credentials.toml", ".cargo/config.toml", ".pyenv/secret", ".volta/cache/x",
    ".asdf/installs/out/x", "conda/.condarc", ".local/share/mise/token", ".local/share/uv/credentials/x",
)  # fmt: skip


@needs_sandbox
@pytest.mark.parametrize("opened", [False, True])
def test_tool_chains_of_the_home_run_and_cannot_be_changed(project, home, kind, monkeypatch, opened):
    """Those of managers whose programs in PATH are shims, and a project's own link to uv's Python."""
    programs = {target: "echo ran ${0##*/}" for _, target in CHAINS.values()}
    programs[".local/share/uv/python/cpython-9/bin/python"] = "echo ran uv"
    for shim, (root, target) in CHAINS.items():
        top = next(top for top in (".local/share/mise", Path(target).parts[0]) if target.startswith(top))
        programs[shim] = f'exec "{root}/{Path(target).relative_to(top)}"'
    for name, script in programs.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(f"#!/bin/sh\n{script}\n")
        (home / name).chmod(0o755)
    (home / "conda" / "conda-meta").mkdir()
    (home / "Documents" / "x").write_text("private")
    (home / ".asdf" / "installs" / "out").symlink_to(home / "Documents")
    for name in CHAINS_PRIVATE:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("private")
    (project / ".venv" / "bin").mkdir(parents=True)
    (project / ".venv" / "bin" / "python").symlink_to(home / ".local/share/uv/python/cpython-9/bin/python")
    monkeypatch.setenv(
        "PATH", os.pathsep.join([*(str((home / shim).parent) for shim in CHAINS), "/usr/bin", "/bin"])
    )
    words = " ".join(Path(shim).name for shim in CHAINS)
    openings = SandboxPermissions(home=opened)
    done = run_command(["sh", "-c", f"for p in {words} .venv/bin/python; do $p; done"], project, 90, openings)
    ran = [Path(target).name for _, target in CHAINS.values()]
    assert done.output.splitlines() == [f"ran {name}" for name in [*ran, "uv"]]
    if opened:
        return
    files = " ".join(str(home / name) for name in CHAINS_PRIVATE)
    targets = " ".join(str(home / target) for _, target in CHAINS.values())
    script = f"for f in {files}; do cat $f; done; for f in {targets}; do echo changed >> $f; done"
    assert "private" not in run_command(["sh", "-c", script], project, 90, SandboxPermissions()).output
    assert not any("changed" in (home / target).read_text() for _, target in CHAINS.values())


@pytest.fixture
def secrets(monkeypatch):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LANG", "C.UTF-8")
    monkeypatch.setenv("VIRTUAL_ENV", "/venv")


PRINT = "import json, os; print(json.dumps(dict(os.environ)))"


@pytest.mark.parametrize("opened", ["no sandbox", "closed", "network and home"])
def test_a_command_gets_the_variables_on_the_list_and_no_other(project, home, secrets, opened):
    openings = {
        "no sandbox": None,
        "closed": SandboxPermissions(),
        "network and home": SandboxPermissions(network=True, home=True),
    }[opened]
    if openings is not None and sandbox.missing() is not None:
        pytest.skip(f"no sandbox: {sandbox.missing()}")
    seen = json.loads(run_command([sys.executable, "-c", PRINT], project, 90, openings).output)
    assert not SECRETS.keys() & seen.keys()
    assert (seen["LANG"], seen["VIRTUAL_ENV"], seen["PATH"]) == ("C.UTF-8", "/venv", os.environ["PATH"])


def test_a_tool_server_gets_its_own_variables_and_no_secret_of_others(tmp_path, secrets):
    file = tmp_path / "seen.json"
    script = f"import json, os; open({str(file)!r}, 'w').write(json.dumps(dict(os.environ)))"

    async def start():
        argv = (sys.executable, "-c", script)
        async with stdio_pipes(argv, {"GITHUB_PAT": "given"}, tmp_path, bytearray()):
            await anyio.to_thread.run_sync(wait_for, lambda: file.exists() and file.read_text())

    anyio.run(start)
    seen = json.loads(file.read_text())
    assert SECRETS.keys() & seen.keys() == {"GITHUB_PAT"}
    assert (seen["GITHUB_PAT"], seen["LANG"]) == ("given", "C.UTF-8")


def test_own_children_get_the_settings_of_their_engines_and_no_secret(secrets, monkeypatch):
    settings = {"GGML_VK_DISABLE_F16": "1", "CUDA_VISIBLE_DEVICES": "0", "TESSERA_HOME": "/t", "HF_HOME": "/h"}
    for name, value in {**settings, "VLLM_API_KEY": "x", "TESSERA_TOKEN": "x"}.items():
        monkeypatch.setenv(name, value)
    passed = without_secrets({"VLLM_API_KEY": "given"})
    assert passed.items() >= {**settings, "VLLM_API_KEY": "given"}.items()
    assert not (SECRETS.keys() | {"TESSERA_TOKEN"}) & passed.keys()
    assert not {"GGML_VK_DISABLE_F16", "TESSERA_HOME", "HF_HOME", "VLLM_API_KEY"} & program_environment().keys()
