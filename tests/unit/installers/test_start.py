"""start.py and its parts, on machines that lack things."""

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from installers.bootstrap import environment, kernels, system

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def start():
    spec = importlib.util.spec_from_file_location("start", ROOT / "start.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_own_options_come_first_and_the_rest_is_tesseras(start):
    own, rest = start.split_arguments(["--no-system", "--wheels", "w", "chat", "--no-gui"])
    assert own == {"--no-system": "", "--wheels": "w"}
    assert rest == ["chat", "--no-gui"]


@pytest.mark.parametrize("version", [(3, 9, 1), (3, 15, 0)])
def test_without_a_suited_python_the_owner_is_told_which_ones_are(start, version, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "version_info", version)
    assert start.main() == 2
    message = capsys.readouterr().err
    assert f"needs Python 3.11 to 3.14; this is 3.{version[1]} (" in message
    assert "run it by name, such as: python3.14 start.py" in message


@pytest.mark.process
@pytest.mark.parametrize("version", ["(3, 9, 1)", "(3, 15, 0)"])
def test_another_python_of_this_computer_is_used_by_itself(version, tmp_path):
    """A name that a version manager left behind is passed over: it only prints an error."""
    (tmp_path / "python3.14").write_text("#!/bin/sh\necho 'no such version' >&2\nexit 127\n")
    (tmp_path / "python3.14").chmod(0o755)
    name = f"python3.{sys.version_info[1]}"
    (tmp_path / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    (tmp_path / name).chmod(0o755)
    program = (
        f"import runpy, sys; sys.version_info = {version}; sys.argv = ['start.py', '--version']; "
        f"runpy.run_path({str(ROOT / 'start.py')!r}, run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("tessera, version ")


def test_start_py_parses_under_an_old_grammar():
    import ast

    ast.parse((ROOT / "start.py").read_text(), feature_version=(3, 7))


def test_a_changed_lock_makes_the_environment_anew(start, monkeypatch, tmp_path):
    monkeypatch.setattr(start, "MARKER", str(tmp_path / "marker"))
    assert not start.is_ready("server")
    (tmp_path / "marker").write_text(f"test {start.fingerprint('test')}\n")
    assert start.is_ready("server")
    assert start.is_ready("test")
    monkeypatch.setattr(start, "fingerprint", lambda kind: "other")
    assert not start.is_ready("server")


def test_an_environment_without_the_window_serves_the_terminal(start, monkeypatch, tmp_path):
    monkeypatch.setattr(start, "MARKER", str(tmp_path / "marker"))
    assert start.kind_of({}, ["doctor"]) == "desktop", "the first start installs everything"
    (tmp_path / "marker").write_text(f"server {start.fingerprint('server')}\n")
    monkeypatch.setattr(start, "build_tools", list)
    assert start.kind_of({}, ["doctor"]) == start.kind_of({}, ["--debug", "chat"]) == "server"
    assert start.kind_of({}, ["window", "a.gguf"]) == "desktop"
    assert start.kind_of({}, []) == start.kind_of({"--no-gui": ""}, []) == "server"
    monkeypatch.setattr(start, "fingerprint", lambda kind: "of other locks")
    assert not start.is_ready("server")
    assert start.kind_of({}, []) == start.kind_of({}, ["doctor"]) == "server", (
        "a change of the locks adds no window"
    )
    (tmp_path / "marker").write_text(f"desktop {start.fingerprint('desktop')}\n")
    assert start.kind_of({}, []) == start.kind_of({}, ["doctor"]) == "desktop"
    assert start.kind_of({}, ["test", "--quick"]) == start.kind_of({"--no-gui": ""}, ["test"]) == "test"


def test_a_bare_debian_is_told_one_line(monkeypatch, capsys):
    monkeypatch.setattr(system.sys, "platform", "linux")
    monkeypatch.setattr(system.shutil, "which", lambda name: "/usr/bin/apt-get" if name == "apt-get" else None)
    monkeypatch.setattr(system, "_known_libraries", lambda: "libc.so.6")
    monkeypatch.setattr(system.os, "geteuid", lambda: 1000)
    assert system.provide(gui=True, compiler=True, allowed=True) is False
    said = capsys.readouterr().out
    assert "sudo apt-get install -y" in said
    for package in ("g++", "libegl1", "libxcb-cursor0"):
        assert package in said
    assert "--no-gui" in said


@pytest.mark.parametrize(("manager", "package"), [("dnf", "gcc-c++"), ("pacman", "gcc")])
def test_other_families_get_their_own_line(monkeypatch, manager, package):
    monkeypatch.setattr(system.shutil, "which", lambda name: f"/usr/bin/{name}" if name == manager else None)
    line = system.install_line(system.missing(gui=False, compiler=True))
    assert line.startswith(manager)
    assert package in line.split()


def test_no_system_forbids_installing_even_as_root(monkeypatch, capsys):
    monkeypatch.setattr(system.sys, "platform", "linux")
    monkeypatch.setattr(system.shutil, "which", lambda name: "/usr/bin/apt-get" if name == "apt-get" else None)
    monkeypatch.setattr(system.os, "geteuid", lambda: 0)
    monkeypatch.setattr(system.subprocess, "run", lambda *a, **k: pytest.fail("ran a command"))
    assert system.provide(gui=False, compiler=True, allowed=False) is False
    assert "apt-get install" in capsys.readouterr().out


@pytest.mark.process
def test_this_machine_has_what_it_needs():
    assert system.missing(gui=True, compiler=True) == {}


def test_a_given_folder_without_a_wheel_says_so(tmp_path):
    with pytest.raises(RuntimeError, match="no llama_cpp_python wheel"):
        kernels.wheel(sys.executable, "unused", str(tmp_path))


def test_the_wheel_cache_depends_on_the_processor(monkeypatch):
    lock = str(ROOT / "installers" / "lock" / "llama.txt")
    here = kernels._key(lock)
    monkeypatch.setattr(kernels, "_cpu_features", lambda: "another cpu")
    assert kernels._key(lock) != here


@pytest.mark.process
def test_the_server_runs_without_qt(tmp_path):
    code = (
        "import sys; sys.modules['PySide6'] = None\n"
        "import engine.server.run, app.cli.serve, app.cli.chat, app.client\n"
        "assert not any(m.startswith('PySide6.') for m in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.mark.process
def test_help_imports_little():
    code = (
        "import sys\nfrom app.cli.main import cli\n"
        "try:\n    cli.main(['--help'], standalone_mode=True)\nexcept SystemExit:\n    pass\n"
        "heavy = {'fastapi', 'numpy', 'msgspec', 'httpx2', 'PySide6', 'pydantic'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


@pytest.mark.process
def test_the_test_command_asks_for_a_screen_and_a_hand(monkeypatch):
    monkeypatch.setattr(
        system.shutil, "which", lambda name: None if name in {"Xvfb", "xdotool"} else f"/usr/bin/{name}"
    )
    assert {"xvfb", "xdotool"} <= {
        packages[0] for packages in system.missing(gui=True, compiler=True, tests=True).values()
    }
    assert "xvfb" not in {packages[0] for packages in system.missing(gui=True, compiler=True).values()}


def test_what_the_tests_start_is_compiled_once(start, monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setattr(sys, "argv", ["start.py", "test", "-q", "tests/unit"])
    monkeypatch.setattr(start, "is_ready", lambda _kind: True)
    seen = []
    monkeypatch.setattr(start, "run", lambda command: seen.append((command, dict(os.environ))) or 0)
    monkeypatch.chdir(ROOT)
    assert start.main() == 0
    [(command, environment)] = seen
    assert command[-2:] == ["-q", "tests/unit"]
    assert "PYTHONDONTWRITEBYTECODE" not in environment


@pytest.mark.process
def test_nothing_of_the_current_folder_is_run(start, monkeypatch, tmp_path):
    """`python3 start.py` works from any folder: also in a project with a package `app`, and in an untrusted one."""
    for name in ("app/__init__.py", "app/__main__.py", "click.py", "pip.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"raise SystemExit('{name} of the current folder')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(start, "venv_python", lambda: sys.executable)
    run = partial(subprocess.run, capture_output=True, text=True, check=False)
    monkeypatch.setattr(start, "run", lambda command: run(command).stdout)
    assert start.run_tessera(["--version"]).startswith("tessera, version ")
    monkeypatch.setattr(start, "is_ready", lambda kind: False)
    monkeypatch.setattr(start, "MARKER", str(tmp_path / "marker"))
    folders = []
    monkeypatch.setattr(environment, "make", lambda **_: folders.append(Path.cwd()) or 4)
    assert start.carry_out({}, []) == 4
    assert (folders, Path.cwd()) == ([ROOT], tmp_path)


def test_the_build_takes_our_kernels_along_and_a_change_of_them_makes_it_anew(start, monkeypatch, tmp_path):
    monkeypatch.setattr(kernels.sys, "platform", "linux")
    lock = ROOT / "installers" / "lock" / "llama.txt"
    copy = tmp_path / "with space" / "kernels"
    shutil.copytree(kernels.TILES, copy)
    before = kernels._key(str(lock)), start.fingerprint("test")
    monkeypatch.setattr(kernels, "TILES", str(copy))
    assert kernels._key(str(lock)) == before[0]  # the path of the source tree makes no difference
    options = dict(option.split("=") for option in shlex.split(kernels.included_files()))
    assert Path(options["-DCMAKE_PROJECT_ggml_INCLUDE"]) == copy / "plugin.cmake"
    assert Path(options["-DCMAKE_PROJECT_llama.cpp_INCLUDE"]) == copy / "llama.cmake"
    (copy / "kernel.h").write_text("// other")
    assert kernels._key(str(lock)) != before[0]
    shutil.copytree(ROOT / "installers" / "lock", tmp_path / "installers" / "lock")
    shutil.copytree(copy, tmp_path / "engine" / "kernels")
    monkeypatch.setattr(start, "ROOT", str(tmp_path))
    assert start.fingerprint("test") != before[1]


def test_elsewhere_our_kernels_are_left_out(monkeypatch):
    monkeypatch.setattr(kernels.sys, "platform", "darwin")
    assert "ggml_INCLUDE" not in kernels.included_files()


@pytest.mark.process
def test_a_vulkan_build_compiles_shaders_without_integer_constants(monkeypatch, tmp_path):
    """With them, glslc filled tri_f16 and diag_f16 with infinity (installers/packs/toolchain.py)."""
    lock = str(ROOT / "installers" / "lock" / "llama.txt")
    monkeypatch.setattr(kernels, "vulkan_ready", lambda: False)
    without = kernels._key(lock), kernels.included_files()
    monkeypatch.setattr(kernels, "vulkan_ready", lambda: True)
    monkeypatch.setattr(kernels, "cmake_arguments", list)
    found = kernels._key(lock), kernels.included_files()
    assert found[0] != without[0]
    [option] = set(shlex.split(found[1])) - set(shlex.split(without[1]))
    shaders = tmp_path / "src" / "ggml-vulkan" / "vulkan-shaders"
    shaders.mkdir(parents=True)
    text = '#define A[B] \\\n  "x;y"\nval = {}({});\nlayout(binding = 0) f(0);\n'
    for name in ("D_TYPE", "float16_t"):
        (shaders / f"{name}.comp").write_text(text.format(name, "0"))
    (tmp_path / "CMakeLists.txt").write_text('cmake_minimum_required(VERSION 3.19)\nproject("ggml" NONE)\n')
    tools = Path(sys.executable).parent  # those of the environment, which build llama.cpp
    ninja = ("-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}")
    configure = [tools / "cmake", "-S", tmp_path, "-B", tmp_path / "build", *ninja, option]
    subprocess.run(configure, check=True, capture_output=True)
    for name in ("D_TYPE", "float16_t"):
        assert (shaders / f"{name}.comp").read_text() == text.format(name, "0.0")


def test_tools_that_were_installed_later_are_noticed_and_removed_ones_are_not(start, monkeypatch, tmp_path):
    monkeypatch.setattr(start, "MARKER", str(tmp_path / "marker"))
    (tmp_path / "marker").write_text(f"server {start.fingerprint('server')}\n")
    monkeypatch.setattr(kernels, "vulkan_ready", lambda: False)
    assert start.is_ready("server")
    monkeypatch.setattr(kernels, "vulkan_ready", lambda: True)
    assert not start.is_ready("server")
    (tmp_path / "marker").write_text(f"server {start.fingerprint('server')}\ntools vulkan\n")
    assert start.is_ready("server")
    monkeypatch.setattr(kernels, "vulkan_ready", lambda: False)
    assert start.is_ready("server")


def test_other_variables_of_the_build_build_again_and_an_update_keeps_them(start, monkeypatch, tmp_path):
    """docs/gpu.md has CUDA, ROCm and SYCL built by such a start, also where there is an environment."""
    built = []
    monkeypatch.setattr(start, "MARKER", str(tmp_path / "marker"))
    monkeypatch.setattr(start, "build_tools", list)
    monkeypatch.setattr(environment, "make", lambda **_: built.append(os.environ.get("CMAKE_ARGS", "")) or 0)

    for name in start.VARIABLES:
        monkeypatch.setenv(name, "")

    def ready(**variables):
        """Whether a start with these variables builds nothing."""
        with monkeypatch.context() as shell:
            for name in start.VARIABLES:
                shell.delenv(name)
            for name, value in variables.items():
                shell.setenv(name, value)
            before = start.is_ready("server")
            return before or start.make_environment("server", {}) != 0

    assert not ready()
    assert not ready(CMAKE_ARGS="-DGGML_CUDA=ON  -DCMAKE_CUDA_ARCHITECTURES=89")
    assert ready(CMAKE_ARGS="-DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=89")
    assert ready()
    assert not ready(CFLAGS="-march=x86-64-v3")
    assert ready()
    monkeypatch.setattr(start, "fingerprint", lambda kind: "of other locks")
    assert not ready()
    assert built[-1] == "-DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=89", "an update drops no kernels"
    assert not ready(CMAKE_ARGS="")
    assert built[-1] == ""
    assert ready(CFLAGS="-march=x86-64-v3")
    assert len(built) == 5


def test_vulkan_is_not_built_where_a_pack_comes_along(monkeypatch, tmp_path):
    monkeypatch.setattr(kernels.sys, "platform", "linux")
    monkeypatch.setattr(kernels.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(kernels.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(kernels, "_ROOT", str(tmp_path))
    assert not kernels.vulkan_comes_along()
    (tmp_path / "assets" / "kernels").mkdir(parents=True)
    (tmp_path / "assets" / "kernels" / "vulkan-linux-x86_64-0.1.2.tar.xz").touch()
    assert kernels.vulkan_comes_along()
    assert not kernels.vulkan_ready()
    monkeypatch.setattr(kernels.platform, "machine", lambda: "aarch64")
    assert not kernels.vulkan_comes_along()
