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

from devices.distribution import Distribution, parsed
from installers.bootstrap import environment, kernels, system

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def start():
    spec = importlib.util.spec_from_file_location("start", ROOT / "start.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.venv_python = lambda: sys.executable
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


@pytest.mark.process
def test_on_windows_another_python_is_found_by_pythons_launcher(start, monkeypatch, tmp_path, capsys):
    """`python3.13` is no program there; the launcher `py` starts the newest Python, perhaps one that is too new."""
    launcher = tmp_path / "py"
    answer = "case $1 in -3.13) echo 13 C:/Python313/python.exe;; *) exit 103;; esac"
    launcher.write_text(f"#!/bin/sh\n{answer}\n")
    launcher.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert start.suited_python("nt") == "C:/Python313/python.exe"
    launcher.unlink()
    assert start.suited_python("nt") == ""
    assert start.named_python(14, "nt") == ["py", "-3.14"]


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
    monkeypatch.setattr(system, "_loads", lambda soname: False)
    monkeypatch.setattr(system, "this_distribution", lambda: parsed("ID=debian", is_ostree=False))
    monkeypatch.setattr(system.os, "geteuid", lambda: 1000)
    assert system.provide(gui=True, compiler=True, allowed=True) is False
    said = capsys.readouterr().out
    assert "sudo apt-get install -y" in said
    for package in ("g++", "libegl1", "libxcb-cursor0"):
        assert package in said
    assert "--no-gui" in said


@pytest.mark.parametrize(("manager", "package"), [("dnf", "gcc-c++"), ("pacman", "gcc"), ("zypper", "gcc-c++")])
def test_other_families_get_their_own_line(monkeypatch, manager, package):
    monkeypatch.setattr(system, "this_distribution", Distribution)
    monkeypatch.setattr(system.shutil, "which", lambda name: f"/usr/bin/{name}" if name == manager else None)
    line = system.install_line(system.missing(gui=False, compiler=True))
    assert line.startswith(manager)
    assert package in line.split()


@pytest.mark.parametrize(("lists", "command"), [(["x"], "sudo apt"), ([], "sudo apt-get update && sudo apt")])
def test_a_fresh_image_without_lists_of_packages_fetches_them_first(monkeypatch, lists, command):
    """WSL, containers and cloud images know no package before `apt-get update`."""
    monkeypatch.setattr(system.glob, "glob", lambda _pattern: lists)
    monkeypatch.setattr(system.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(system.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert system._as_root("apt-get install -y g++") == f"{command}-get install -y g++"
    monkeypatch.setattr(system.shutil, "which", lambda name: "/usr/bin/su" if name == "su" else None)
    inner = f"{command}-get install -y g++".replace("sudo ", "")
    assert system._as_root("apt-get install -y g++") == f"su -c '{inner}'"
    assert system._as_root("dnf install -y gcc") == "su -c 'dnf install -y gcc'"


def test_no_system_forbids_installing_even_as_root(monkeypatch, capsys):
    monkeypatch.setattr(system.sys, "platform", "linux")
    monkeypatch.setattr(system, "this_distribution", Distribution)
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


TUMBLEWEED = 'ID="opensuse-tumbleweed"\nID_LIKE="opensuse suse"\n'
MICROOS = 'NAME="openSUSE MicroOS"\nID="opensuse-microos"\nID_LIKE="suse opensuse"\n'


@pytest.mark.parametrize(
    ("release", "line"),
    [
        ("ID=fedora", "dnf install -y gcc gcc-c++ xcb-util-cursor"),
        ('ID=linuxmint\nID_LIKE="ubuntu debian"', "apt-get install -y g++ gcc libxcb-cursor0"),
        ("ID=cachyos\nID_LIKE=arch", "pacman -S --needed --noconfirm gcc xcb-util-cursor"),
        (TUMBLEWEED, "zypper --non-interactive install gcc gcc-c++ libxcb-cursor0"),
    ],
)
def test_of_several_package_managers_the_distributions_own_is_named(monkeypatch, release, line):
    """Fedora has a package apt and Arch too: their owners were told to install Debian's packages."""
    known = {"apt-get", "dnf", "pacman", "zypper"}
    monkeypatch.setattr(system.shutil, "which", lambda name: f"/usr/bin/{name}" if name in known else None)
    monkeypatch.setattr(system, "this_distribution", lambda: parsed(release, is_ostree=False))
    monkeypatch.setattr(system, "_loads", lambda soname: soname != "libxcb-cursor.so.0")
    needs = system.missing(gui=True, compiler=True, venv=False)
    needs.pop("a font", None)
    assert system.install_line(needs) == line


@pytest.mark.parametrize(
    ("release", "words"),
    [
        ("ID=bazzite\nID_LIKE=fedora", ["    rpm-ostree install gcc gcc-c++\n", "and restart the computer"]),
        (MICROOS, ["    sudo transactional-update pkg install gcc gcc-c++\n", "and restart the computer"]),
        ("ID=steamos\nID_LIKE=arch", ["sudo steamos-readonly disable && ", "pacman-key --populate", " -S gcc\n"]),
        ("ID=nixos", ["buildFHSEnv"]),
    ],
)
@pytest.mark.parametrize("user", [0, 1000])
def test_a_system_of_images_is_told_its_own_way_and_not_changed(monkeypatch, capsys, release, words, user):
    """There, dnf, zypper and pacman end with an error, whoever calls them."""
    monkeypatch.setattr(system.sys, "platform", "linux")
    known = {"dnf", "zypper", "pacman", "sudo"} if "nixos" not in release else set()
    monkeypatch.setattr(system.shutil, "which", lambda name: f"/usr/bin/{name}" if name in known else None)
    monkeypatch.setattr(system, "this_distribution", lambda: parsed(release, is_ostree="bazzite" in release))
    monkeypatch.setattr(system.os, "geteuid", lambda: user)
    monkeypatch.setattr(system.subprocess, "run", lambda *a, **k: pytest.fail("ran a command"))
    assert not system.provide(gui=False, compiler=True, allowed=True, venv=False)
    said = capsys.readouterr().out
    assert [part for part in words if part not in said] == [], said


@pytest.mark.parametrize(
    ("free", "limit", "count"),
    [(None, None, 16), (64 << 30, None, 16), (6 << 30, None, 6), (6 << 30, 4 << 30, 4), (100 << 20, None, 1)],
)
def test_as_many_files_are_compiled_at_once_as_memory_allows(free, limit, count, monkeypatch):
    """Each compiler takes up to 1 GiB: 16 of them do not fit on a laptop with 16 threads and 8 GB."""
    monkeypatch.setattr(kernels, "_free_memory", lambda: free)
    monkeypatch.setattr(kernels, "_container_limit", lambda: limit)
    monkeypatch.setattr(kernels.os, "sched_getaffinity", lambda _pid: set(range(16)))
    assert kernels.compilers() == count


@pytest.mark.process
def test_windows_without_a_compiler_is_told_before_anything_is_downloaded(monkeypatch, capsys, tmp_path):
    """Visual Studio's compiler is in no PATH, but its installer knows where it is."""
    lister = tmp_path / "Microsoft Visual Studio" / "Installer" / "vswhere.exe"
    studio = tmp_path / "2022 [BuildTools]"
    monkeypatch.setattr(system.sys, "platform", "win32")
    monkeypatch.setattr(system.shutil, "which", lambda _name: None)
    monkeypatch.setenv("PROGRAMFILES(X86)", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert not system.provide(gui=True, compiler=True, allowed=True)
    assert "winget install Microsoft.VisualStudio.2022.BuildTools" in capsys.readouterr().out
    lister.parent.mkdir(parents=True)
    lister.write_text(f"#!/bin/sh\necho '{studio}'\n")
    lister.chmod(0o755)
    assert not system.provide(gui=True, compiler=True, allowed=True), "Visual Studio without C++"
    (studio / "VC" / "Tools" / "MSVC" / "14.44.35207").mkdir(parents=True)
    assert system.provide(gui=True, compiler=True, allowed=True)
    lister.unlink()
    assert system.provide(gui=True, compiler=False, allowed=True), "ready-made wheels need none"
    monkeypatch.setattr(system.shutil, "which", lambda name: name if name == "g++" else None)
    assert system.provide(gui=True, compiler=True, allowed=True)


def test_a_library_is_there_if_the_loader_finds_it():
    assert system._loads("libc.so.6")
    assert not system._loads("libtessera-none.so.7")


def test_a_python_or_a_system_without_packages_is_told_before_anything_is_installed(monkeypatch, capsys):
    def no_version(_name):
        raise ValueError

    assert system.unsuited(gui=True) == ""
    with monkeypatch.context() as old:
        old.setattr(system.os, "confstr", lambda _name: "glibc 2.31")
        assert "need glibc 2.34 or newer, and this system has glibc 2.31. Without" in system.unsuited(gui=True)
        assert system.unsuited(gui=False) == ""
    with monkeypatch.context() as musl:
        musl.setattr(system.os, "confstr", no_version)
        for gui, oldest in ((True, "2.34"), (False, "2.28")):
            reason = f"its packages need glibc {oldest} or newer, and this system has another C library."
            assert system.unsuited(gui=gui) == reason
    with monkeypatch.context() as small:
        small.setattr(system, "find_spec", lambda name: None if name in {"_ssl", "_ctypes"} else object())
        assert "was built without _ctypes and _ssl. Start it with another Python" in system.unsuited(gui=False)
    with monkeypatch.context() as other:
        other.setattr(system.sysconfig, "get_config_var", lambda _name: 1)
        other.setattr(system, "provide", lambda **_needs: pytest.fail("went on"))
        names = dict.fromkeys(("root", "venv", "lock"), "")
        code = environment.make(**names, gui=False, system_packages=False, wheels=None, chat_model=False)
    assert code == 3
    assert "is not the usual CPython" in capsys.readouterr().out


@pytest.mark.process
def test_set_up_imports_no_package():
    code = (
        "import sys\nbefore = set(sys.modules)\nimport installers.bootstrap.environment\n"
        "names = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(*sorted(names - sys.stdlib_module_names))\n"
    )
    done = subprocess.run([sys.executable, "-I", "-c", f"import sys; sys.path[:0] = [{str(ROOT)!r}]\n{code}"],
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert done.stdout.split() == ["devices", "installers"]


def test_an_environment_that_another_cpu_could_not_run_is_built_again(start, monkeypatch, tmp_path):
    """A folder that was copied to an older computer, or a disk that was moved to one."""
    monkeypatch.setattr(start, "MARKER", str(tmp_path / "marker"))
    monkeypatch.setattr(start, "build_tools", list)
    monkeypatch.setattr(environment, "make", lambda **_: 0)
    monkeypatch.setattr(kernels, "_cpu_features", lambda: "fpu sse2 avx2 avx512f ibpb")
    assert start.make_environment("server", {}) == 0
    assert start.is_ready("server")
    monkeypatch.setattr(kernels, "_cpu_features", lambda: "fpu sse2 avx2 ssbd")
    assert not start.is_ready("server")
    assert start.make_environment("server", {}) == 0
    assert start.is_ready("server")
    # What a newer CPU has in addition is not needed; doctor advises a build. Given wheels suit any CPU.
    monkeypatch.setattr(kernels, "_cpu_features", lambda: "fpu sse2 avx2 avx512f")
    assert start.is_ready("server")
    assert start.make_environment("server", {"--wheels": "w"}) == 0
    monkeypatch.setattr(kernels, "_cpu_features", lambda: "")
    assert start.is_ready("server")
    assert start.make_environment("server", {}) == 0
    assert start.is_ready("server"), "a CPU whose instruction sets are unknown"


def test_an_environment_whose_python_is_gone_is_built_again(start, monkeypatch, tmp_path):
    """That of a version manager was removed, or the folder is mounted in a container, which has none there."""
    monkeypatch.setattr(start, "MARKER", str(tmp_path / "marker"))
    monkeypatch.setattr(start, "build_tools", list)
    (tmp_path / "marker").write_text(f"server {start.fingerprint('server')}\n")
    assert start.is_ready("server")
    (tmp_path / "python").symlink_to(tmp_path / "removed")
    monkeypatch.setattr(start, "venv_python", lambda: str(tmp_path / "python"))
    assert not start.is_ready("server")


def test_a_second_start_waits_for_the_first_and_builds_nothing(start, monkeypatch, tmp_path):
    monkeypatch.setattr(start, "ROOT", str(tmp_path))
    monkeypatch.setattr(start, "VENV", str(tmp_path / ".venv"))
    ready, said = [], []
    first = environment.only_start(start.ROOT, start.VENV)
    first.__enter__()

    def show(text):
        said.append(text)
        ready.append("server")
        first.__exit__(None, None, None)

    monkeypatch.setattr(environment, "show", show)
    monkeypatch.setattr(environment, "make", lambda **_: pytest.fail("built it too"))
    monkeypatch.setattr(start, "is_ready", lambda kind: kind in ready)
    assert start.set_up("server", {}) == 0
    assert said == ["Another start is setting up Tessera here. Waiting for it."]


def test_a_folder_that_may_not_be_written_is_named_with_both_ways_out(start, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(start, "ROOT", str(tmp_path / "my tessera"))
    monkeypatch.setattr(start, "is_ready", lambda _kind: False)
    (tmp_path / "my tessera").mkdir()
    with monkeypatch.context() as denied:
        denied.setattr(environment, "make", lambda **_: pytest.fail("went on"))
        denied.setattr(environment.os, "access", lambda _folder, _mode: False)
        assert start.set_up("server", {}) == 4
    said = capsys.readouterr().err
    assert f"Permission denied: '{tmp_path}/my tessera'" in said
    assert f"sudo chown -R $USER '{tmp_path}/my tessera'" in said
    monkeypatch.setattr(start, "MARKER", str(tmp_path / "none" / "marker"))
    monkeypatch.setattr(start, "fingerprint", lambda _kind: "1")
    monkeypatch.setattr(environment, "make", lambda **_: 0)
    assert start.set_up("server", {}) == 4, "the marker could not be written, as on a full disk"


def test_a_full_disk_is_named_once(monkeypatch, tmp_path):
    usage = shutil.disk_usage(tmp_path)
    folders = (str(tmp_path), str(tmp_path / "none"), str(tmp_path))
    monkeypatch.setattr(environment.shutil, "disk_usage", lambda _folder: usage._replace(free=300 << 20))
    assert environment._little_space(*folders) == [f"Little space is free in {tmp_path}: 300 MiB."]
    monkeypatch.setattr(environment.shutil, "disk_usage", lambda _folder: usage._replace(free=5 << 30))
    assert environment._little_space(*folders) == []
