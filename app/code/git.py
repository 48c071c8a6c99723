"""git, asked for facts only: nothing that a project's own configuration names runs (`repository.py` says why)."""

import subprocess
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

from app.code.errors import GitFailed
from app.code.safe_git_repo import borrowed, find_repository
from devices.programs import installed_program

_TIMEOUT_S = 20
# A diff beyond this is no material for a prompt; it is cut here, and the cut is said.
MAX_DIFF_BYTES = 1 << 20
# Names of changed files beyond this are no list to work with: a million files of 64 characters.
_MAX_LIST_BYTES = 64 << 20
_MAX_STDERR_BYTES = 8192


@dataclass(frozen=True)
class Diff:
    """Text of a unified diff; `cut` when it was longer than is read."""

    text: str
    cut: bool


class Git:
    """Read-only questions to the repository that holds `root`, restricted to what is below `root`.

    Submodules count as unchanged: they are repositories of their own. Filters of the user's own settings (large
    files in Git LFS) are not run either: such a file shows as changed where its time stamp does not say otherwise.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def available(self) -> bool:
        """Whether git is installed and `root` is in a repository."""
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
        """What changed against the last commit, untracked files excluded."""
        against = ("HEAD",) if self._has_commit() else ("--cached",)
        options = ("--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=all", "--relative")
        text = self._run(("diff", *options, *against, "--", "."), limit=MAX_DIFF_BYTES)
        return Diff(text[:MAX_DIFF_BYTES], len(text) > MAX_DIFF_BYTES)

    def recent_subjects(self) -> list[str]:
        """First lines of the last commits: the style a suggested message should have."""
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
        """What git prints, at most one character more than `limit` bytes of it. Raises: GitFailed."""
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
