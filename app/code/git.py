"""git, asked for facts only: no hook, filter, pager or driver that a project's own configuration names runs."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from app.code.errors import GitFailed

_TIMEOUT_S = 20
# A diff beyond this is no material for a prompt; it is cut here, and the cut is said.
MAX_DIFF_BYTES = 1 << 20
# Settings that make git start a program; those set by the project itself are emptied.
_PROGRAM_KEYS = (
    ".clean",
    ".smudge",
    ".process",
    ".textconv",
    ".command",
    ".driver",
    ".program",
    ".fsmonitor",
    ".sshcommand",
    ".pager",
    ".editor",
    ".askpass",
    ".hookspath",
    ".helper",
    ".proxy",
)


@dataclass(frozen=True)
class Diff:
    """Text of a unified diff; `cut` when it was longer than is read."""

    text: str
    cut: bool


class Git:
    """Read-only questions to the repository that holds `root`, restricted to what is below `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._overrides: tuple[str, ...] | None = None

    def available(self) -> bool:
        """Whether git is installed and `root` is in a repository."""
        try:
            return self._run(("rev-parse", "--is-inside-work-tree"), guarded=False).strip() == "true"
        except GitFailed:
            return False

    def uncommitted(self) -> frozenset[str]:
        """Paths below `root` that are changed, added or untracked."""
        arguments = ("status", "--porcelain=v1", "-z", "--no-renames", "--untracked-files=all", "--", ".")
        prefix = self._run(("rev-parse", "--show-prefix")).strip()
        entries = self._run(arguments).split("\0")
        return frozenset(entry[3:].removeprefix(prefix) for entry in entries if len(entry) > 3)  # noqa: PLR2004  # "XY "

    def diff(self, *, staged: bool = False) -> Diff:
        """What changed against the last commit (`staged`: only what is staged), untracked files excluded."""
        against = ("--cached",) if staged else ("HEAD",) if self._has_commit() else ("--cached",)
        arguments = ("diff", "--no-ext-diff", "--no-textconv", "--no-color", "--relative", *against, "--", ".")
        text = self._run(arguments)
        return Diff(text[:MAX_DIFF_BYTES], len(text) > MAX_DIFF_BYTES)

    def recent_subjects(self, count: int = 10) -> list[str]:
        """First lines of the last commits: the style a suggested message should have."""
        if not self._has_commit():
            return []
        return self._run(("log", f"-{count}", "--format=%s", "--no-show-signature")).splitlines()

    def _has_commit(self) -> bool:
        try:
            self._run(("rev-parse", "--verify", "--quiet", "HEAD"))
        except GitFailed:
            return False
        return True

    def _run(self, arguments: tuple[str, ...], *, guarded: bool = True) -> str:
        settings: tuple[str, ...] = ()
        if guarded:
            if self._overrides is None:
                self._overrides = self._emptied_settings()
            settings = self._overrides
        command = ["git", "--no-pager", "--no-optional-locks", *settings, *arguments]
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("GIT_")},
            "GIT_TERMINAL_PROMPT": "0",
            "LC_ALL": "C",
        }
        try:
            done = subprocess.run(
                command,
                cwd=self._root,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise GitFailed(arguments, str(error)) from error
        if done.returncode:
            raise GitFailed(arguments, done.stderr.decode("utf-8", "replace"))
        return done.stdout.decode("utf-8", "replace")

    def _emptied_settings(self) -> tuple[str, ...]:
        """-c options that take back every program the project's own configuration names."""
        listed = self._run(("config", "--list", "--name-only", "-z", "--show-scope"), guarded=False)
        fields = listed.split("\0")
        own = {
            key
            for scope, key in zip(fields[::2], fields[1::2], strict=False)
            if scope in {"local", "worktree"} and key.lower().endswith(_PROGRAM_KEYS)
        }
        options = ["-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}"]
        for key in sorted(own - {"core.fsmonitor", "core.hookspath"}):
            options += ["-c", f"{key}="]
        return tuple(options)
