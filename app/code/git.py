"""Read-only git queries that run nothing that a project's own configuration names."""

import contextlib
import os
import re
import shutil
import stat
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from app.code.errors import GitFailed
from devices.environment import without_secrets
from devices.programs import installed_program

# Use a project's repository as data: its settings, hooks and includes are never applied.
#
# The `config` of a repository can name programs in dozens of places (filters, drivers, fsmonitor, hooks, transports
# of a partial clone, submodules), and in more with every git version. So git never runs in it. It runs in an empty
# repository created here, which borrows the project's objects and index, the commit of its HEAD, and the few
# settings that only define how files are written.

_MAX_FILE_BYTES = 1 << 20
# Enough for all references of a large project, and for the shared part of a split index.
_MAX_TABLE_BYTES = 256 << 20
_COMMIT = re.compile(r"(?:[0-9a-f]{40}|[0-9a-f]{64})")
_REFERENCE = re.compile(r"refs/(?!.*\.\.)[^\x00-\x20~^:?*\[\\\x7f]+")
_SYMBOLIC_STEPS = 5
_TIMEOUT_S = 20
# More files of settings than any project includes in one another.
_MAX_INCLUDES = 50
# Settings that define how text and names are written on this system; none of them starts or opens anything.
_DATA_KEYS = frozenset(
    f"core.{key}" for key in ("autocrlf", "eol", "filemode", "symlinks", "ignorecase", "precomposeunicode")
)
_OWN_SETTINGS = {
    "core.fsmonitor": "false",
    "core.hookspath": os.devnull,
    "protocol.allow": "never",
    "gc.auto": "0",
}


@dataclass(frozen=True)
class Repository:
    """A project's repository: its top folder, the git folder of this work tree (`own`), and the shared one."""

    top: Path
    own: Path
    common: Path


def find_repository(root: Path) -> Repository | None:
    """The repository that contains `root`: the nearest folder upwards with a `.git`; bare ones do not count."""
    for folder in (root, *root.parents):
        mark = folder / ".git"
        if mark.is_dir():
            own = mark
        elif mark.is_file() and (pointer := _line(mark)) is not None and pointer.startswith("gitdir: "):
            own = folder / pointer.removeprefix("gitdir: ")
        else:
            continue
        if not (own / "HEAD").is_file():
            continue
        shared = _line(own / "commondir")
        return Repository(folder, own, own / shared if shared else own)
    return None


@contextlib.contextmanager
def borrowed(repository: Repository, program: str) -> Iterator[Mapping[str, str]]:
    """Environment in which `program` can query `repository` without applying its settings.

    Raises: GitFailed: this kind of repository cannot be borrowed.
    """
    with tempfile.TemporaryDirectory(prefix="tessera-git-") as temporary:
        scratch = Path(temporary)
        for folder in ("objects", "refs", "info"):
            (scratch / folder).mkdir()
        (scratch / "HEAD").write_text("ref: refs/heads/none\n")
        (scratch / "config").write_text("[core]\n\trepositoryformatversion = 0\n")
        environment = _environment(scratch)
        config = ("--file", str(repository.common / "config"), "--no-includes")
        theirs = dict(_settings(program, environment, config))
        users = dict(_settings(program, {**os.environ, **_plain(scratch)}, ("--includes",)))
        _write_format(scratch, repository, theirs)
        head = _head(repository)
        if head is not None:
            (scratch / "HEAD").write_text(head + "\n")
        _copy(repository.common / "info" / "exclude", scratch / "info" / "exclude", _MAX_FILE_BYTES)
        _copy(repository.common / "info" / "attributes", scratch / "info" / "attributes", _MAX_FILE_BYTES)
        _copy(repository.common / "shallow", scratch / "shallow", _MAX_FILE_BYTES * 16)
        for shared in repository.own.glob("sharedindex.*"):
            _copy(shared, scratch / shared.name, _MAX_TABLE_BYTES)
        settings = {
            **{key: value for key, value in (users | theirs).items() if key in _DATA_KEYS},
            **_OWN_SETTINGS,
        }
        if "core.excludesfile" in users:
            settings["core.excludesfile"] = str(Path(users["core.excludesfile"]).expanduser())
        yield {
            **environment,
            "GIT_WORK_TREE": str(repository.top),
            "GIT_OBJECT_DIRECTORY": str(repository.common / "objects"),
            "GIT_INDEX_FILE": str(repository.own / "index"),
            "GIT_CONFIG_COUNT": str(len(settings)),
            **{f"GIT_CONFIG_KEY_{n}": key for n, key in enumerate(settings)},
            **{f"GIT_CONFIG_VALUE_{n}": value for n, value in enumerate(settings.values())},
        }


def _plain(scratch: Path) -> dict[str, str]:
    return {
        "GIT_DIR": str(scratch),
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_ATTR_NOSYSTEM": "1",
        "LC_ALL": "C",
    }


def _environment(scratch: Path) -> dict[str, str]:
    """Git's environment: the temporary repository, no secrets, no user or system settings."""
    environment = {key: value for key, value in without_secrets().items() if not key.startswith("GIT_")}
    nobody = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
    # Versions of git before 2.32 find the user's settings only through these two.
    return {**environment, **_plain(scratch), **nobody, "HOME": str(scratch), "XDG_CONFIG_HOME": str(scratch)}


def _settings(program: str, environment: Mapping[str, str], source: tuple[str, ...]) -> list[tuple[str, str]]:
    """Settings as git reads them, in order; the last value of a key counts. Empty if nothing can be read."""
    environment = {key: value for key, value in environment.items() if not key.startswith("GIT_CONFIG_")} | {
        key: environment[key] for key in ("GIT_CONFIG_NOSYSTEM", "GIT_CONFIG_GLOBAL") if key in environment
    }
    try:
        done = subprocess.run(
            [program, "config", *source, "--list", "-z"],
            cwd=environment["GIT_DIR"],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GitFailed(("config",), str(error)) from error
    pairs = (entry.partition("\n") for entry in done.stdout.decode("utf-8", "replace").split("\0") if entry)
    return [(key.lower(), value if mark else "true") for key, mark, value in pairs]


def run_by_git(top: Path) -> frozenset[Path]:
    """Files and folders that the settings of the repository in `top` let git run, or read further settings from.

    These are folders of hooks, also those that the user's own settings name, and included files; they may be
    missing. Raises: GitFailed.
    """
    repository, program = find_repository(top), installed_program("git")
    if repository is None or program is None:
        return frozenset()
    paths: set[Path] = set()
    with tempfile.TemporaryDirectory(prefix="tessera-git-") as folder:
        environment = {**os.environ, **_plain(Path(folder))}
        for key, value in _settings(program, environment, ("--includes",)):
            if key == "core.hookspath":
                paths.add(_from(repository.top, value))
        waiting = [repository.own / "config.worktree", repository.common / "config"]
        for _ in range(_MAX_INCLUDES):
            if not waiting:
                break
            file = waiting.pop()
            for key, value in _settings(program, environment, ("--file", str(file), "--no-includes")):
                if key == "core.hookspath":
                    paths.add(_from(repository.top, value))
                elif key.startswith(("include.", "includeif.")) and key.endswith(".path"):
                    included = _from(file.parent, value)
                    waiting += [included] if included not in paths else []
                    paths.add(included)
    return frozenset(paths)


def _from(folder: Path, value: str) -> Path:
    """The path that a setting names, relative to `folder`; a path in an unknown home folder stays as written."""
    with contextlib.suppress(RuntimeError):
        return Path(os.path.normpath(folder / Path(value).expanduser()))
    return Path(os.path.normpath(folder / value))


def _write_format(scratch: Path, repository: Repository, theirs: Mapping[str, str]) -> None:
    """Write how objects and references are stored, the only project setting that the config must have."""
    hashes = theirs.get("extensions.objectformat", "sha1")
    references = theirs.get("extensions.refstorage", "files")
    if hashes not in {"sha1", "sha256"} or references not in {"files", "reftable"}:
        raise GitFailed(("config",), f"objects in {hashes} and references in {references} are not known")
    if hashes == "sha1" and references == "files":
        return
    lines = f"\tobjectformat = {hashes}\n"
    if references == "reftable":
        lines += "\trefstorage = reftable\n"
        (scratch / "reftable").mkdir()
        for table in (repository.common / "reftable").iterdir():
            _copy(table, scratch / "reftable" / table.name, _MAX_TABLE_BYTES)
    (scratch / "config").write_text(f"[core]\n\trepositoryformatversion = 1\n[extensions]\n{lines}")


def _head(repository: Repository) -> str | None:
    """The commit of HEAD, or the placeholder that reftable needs; None before the first commit."""
    name = _line(repository.own / "HEAD") or ""
    for _ in range(_SYMBOLIC_STEPS):
        if _COMMIT.fullmatch(name):
            return name
        reference = name.removeprefix("ref:").strip()
        if not _REFERENCE.fullmatch(reference):
            return None
        if (repository.common / "reftable").is_dir():
            return "ref: refs/heads/.invalid"  # HEAD is in the reftable; git requires this placeholder
        reference_line = _line(repository.own / reference) or _line(repository.common / reference)
        if reference_line is None:
            return _packed(repository.common / "packed-refs", reference)
        name = reference_line
    return None


def _packed(table: Path, reference: str) -> str | None:
    data = _bytes(table, _MAX_TABLE_BYTES)
    reference_bytes = os.fsencode(reference)
    for line in (data or b"").splitlines():
        commit, _, name = line.partition(b" ")
        if name == reference_bytes and _COMMIT.fullmatch(text := commit.decode("ascii", "replace")):
            return text
    return None


def _line(file: Path) -> str | None:
    data = _bytes(file, _MAX_FILE_BYTES)
    return None if data is None else os.fsdecode(data).split("\n", 1)[0].strip()


def _bytes(file: Path, limit: int) -> bytes | None:
    """Bytes of a regular file of at most `limit` bytes; None for anything else."""
    try:
        # Do not block if the file is a pipe.
        descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with os.fdopen(descriptor, "rb") as opened:
            status = os.fstat(descriptor)
            return opened.read(limit) if stat.S_ISREG(status.st_mode) and status.st_size <= limit else None
    except OSError:
        return None


def _copy(source: Path, target: Path, limit: int) -> None:
    status = None
    with contextlib.suppress(OSError):
        status = source.lstat()
    if status is not None and stat.S_ISREG(status.st_mode) and status.st_size <= limit:
        with contextlib.suppress(OSError):
            shutil.copyfile(source, target, follow_symlinks=False)


# A longer diff does not fit a prompt; it is cut here, and the cut is reported.
MAX_DIFF_BYTES = 1 << 20
# Limit for the names of changed files: one million files of 64 characters.
_MAX_LIST_BYTES = 64 << 20
_MAX_STDERR_BYTES = 8192


@dataclass(frozen=True)
class Diff:
    """Text of a unified diff; `cut` is True if the diff was longer."""

    text: str
    cut: bool


class Git:
    """Read-only queries to the repository that contains `root`, limited to files below `root`.

    Submodules count as unchanged, because they are separate repositories. Filters from the user's settings (Git
    LFS) do not run either: such a file shows as changed unless its timestamp proves that it is not.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def available(self) -> bool:
        """Return True if git is installed and `root` is in a repository."""
        try:
            return self._run(("rev-parse", "--is-inside-work-tree")).strip() == "true"
        except GitFailed:
            return False

    def uncommitted(self) -> frozenset[str]:
        """Paths below `root` that are changed, added or untracked."""
        arguments = ("status", "--porcelain=v1", "-z", "--no-renames", "--untracked-files=all")
        prefix = self._run(("rev-parse", "--show-prefix")).strip()
        listed = self._run((*arguments, "--ignore-submodules=all", "--", "."))
        if len(listed) > _MAX_LIST_BYTES:
            raise GitFailed(arguments, f"more than {_MAX_LIST_BYTES} bytes of changed files")
        return frozenset(e[3:].removeprefix(prefix) for e in listed.split("\0") if len(e) > 3)  # noqa: PLR2004  # "XY "

    def diff(self) -> Diff:
        """Diff against the last commit, without untracked files."""
        against = ("HEAD",) if self._has_commit() else ("--cached",)
        options = ("--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=all", "--relative")
        text = self._run(("diff", *options, *against, "--", "."), limit=MAX_DIFF_BYTES)
        return Diff(text[:MAX_DIFF_BYTES], len(text) > MAX_DIFF_BYTES)

    def recent_subjects(self) -> list[str]:
        """Subject lines of the latest commits, as a style for a suggested message."""
        if not self._has_commit():
            return []
        return self._run(("log", "-10", "--format=%s", "--no-show-signature")).splitlines()

    def _has_commit(self) -> bool:
        try:
            self._run(("rev-parse", "--verify", "--quiet", "HEAD"))
        except GitFailed:
            return False
        return True

    def _run(self, arguments: tuple[str, ...], limit: int = _MAX_LIST_BYTES) -> str:
        """Output of git, at most one character more than `limit` bytes. Raises: GitFailed."""
        program, repository = installed_program("git"), find_repository(self._root)
        if program is None:
            raise GitFailed(arguments, "git is not installed")
        if repository is None:
            raise GitFailed(arguments, "not in a git repository")
        with borrowed(repository, program) as environment, tempfile.TemporaryFile() as errors:
            try:
                child = subprocess.Popen(
                    [program, "--no-pager", "--no-optional-locks", *arguments],
                    cwd=self._root,
                    env=dict(environment),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                )
            except OSError as error:
                raise GitFailed(arguments, str(error)) from error
            late = threading.Event()

            def stop(child: "subprocess.Popen[bytes]" = child, late: threading.Event = late) -> None:
                late.set()
                child.kill()

            timer = threading.Timer(_TIMEOUT_S, stop)
            timer.start()
            with child:
                assert child.stdout is not None
                data = child.stdout.read(limit + 1)
                cut = len(data) > limit
                if cut:
                    child.kill()
            timer.cancel()
            timer.join()
            if late.is_set():
                raise GitFailed(arguments, f"no answer within {_TIMEOUT_S} s")
            if child.returncode and not cut:
                errors.seek(0)
                raise GitFailed(arguments, errors.read(_MAX_STDERR_BYTES).decode("utf-8", "replace"))
        return data.decode("utf-8", "replace")
