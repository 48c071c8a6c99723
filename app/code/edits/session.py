"""From a response to files on disk: propose, choose, apply all or nothing, undo."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from app.code.edits.apply import apply_hunks, is_elision, merge
from app.code.edits.journal import FileChange, Journal
from app.code.edits.locate import Location, locate
from app.code.edits.parse import contents
from app.code.edits.types import Applied, FileResult, Hunk, Malformed, Outcome, ParsedEdits, Refused
from app.code.errors import (
    EditNeedsAnother,
    FileChanged,
    FileMissing,
    GitFailed,
    NothingToUndo,
    UncommittedChanges,
)
from app.code.workspace import TextFile, Workspace
from devices.errors import TesseraError
from engine.message_catalog.reasons import Reason, because

_MADE = frozenset({"create", "whole"})


@dataclass(frozen=True, kw_only=True)
class FileProposal:
    """Edits to one file. `before` is None for a new file; `hunk_ids` are indices into the response's hunks.

    `is_whole`: no part of the response that names this file failed. Otherwise the file is not written unless the
    user chooses some of its edits.
    """

    path: str
    before: TextFile | None
    result: FileResult
    hunk_ids: tuple[int, ...]
    is_whole: bool = True

    def outcome(self, hunk_id: int) -> Outcome:
        """Outcome of one of the response's hunks."""
        return self.result.outcomes[self.hunk_ids.index(hunk_id)]


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """Edits of a response, located in the current files. Nothing is written yet."""

    files: tuple[FileProposal, ...]
    malformed: tuple[Malformed, ...]

    @property
    def applicable(self) -> tuple[int, ...]:
        """Ids of the hunks that are applied unless the user chooses: all hunks of each file, or none."""
        return tuple(hunk_id for file in self.files if file.is_whole for hunk_id in file.hunk_ids)

    @property
    def held_back(self) -> tuple[str, ...]:
        """Files that are not written because only a part of their edits was located."""
        return tuple(
            file.path
            for file in self.files
            if not file.is_whole and any(isinstance(outcome, Applied) for outcome in file.result.outcomes)
        )

    @property
    def refused(self) -> tuple[Refused, ...]:
        """Hunks that were not located, with reasons."""
        return tuple(refused for file in self.files for refused in file.result.refused)


class EditSession:
    """Applies proposals to a workspace.

    `uncommitted` returns the files that git reports as changed. They are written only if allowed, unless the
    uncommitted change is itself an edit applied here.
    """

    def __init__(
        self,
        workspace: Workspace,
        journal: Journal,
        *,
        uncommitted: Callable[[], frozenset[str]] = frozenset,
    ) -> None:
        self._workspace = workspace
        self._journal = journal
        self._uncommitted = uncommitted
        # Called with the changes of each applied group, on the thread that applied it.
        self.on_written: Callable[[tuple[FileChange, ...]], object] = lambda _: None

    def propose(self, answer: ParsedEdits, picked: Mapping[int, int] | None = None) -> Proposal:
        """Locate every hunk of the response; `picked` maps a hunk's index to a line chosen by the user."""
        by_path: dict[str, list[int]] = {}
        refused: dict[int, str] = {}
        moved: dict[str, str] = {}
        for index, hunk in enumerate(answer.hunks):
            try:
                path = self._workspace.normalize(hunk.path)
                to = self._workspace.normalize(hunk.to) if hunk.to is not None else None
            except TesseraError as error:
                refused[index] = str(error)
                continue
            path = moved.get(path, path)
            if hunk.kind == "whole" and self._only_quotes(path, hunk):
                continue
            by_path.setdefault(path, []).append(index)
            if to is not None and to not in by_path:
                moved[to] = path
        spoilt = {self._name(malformed.path) for malformed in answer.malformed if malformed.path}
        spoilt |= {self._name(answer.hunks[index].path) for index in refused}
        spoilt |= {moved[path] for path in spoilt & moved.keys()}
        files = []
        for path, hunk_ids in by_path.items():
            file = self._propose_file(path, hunk_ids, answer.hunks, picked or {})
            may_miss = any(_may_belong(malformed.quoted, file) for malformed in answer.malformed)
            is_whole = not (file.result.refused or path in spoilt or may_miss)
            files.append(replace(file, is_whole=is_whole))
        files += [_refused_file(answer.hunks[i].path, (i,), answer.hunks, reason) for i, reason in refused.items()]
        return Proposal(files=tuple(files), malformed=answer.malformed)

    def _name(self, path: str) -> str:
        try:
            return self._workspace.normalize(path)
        except TesseraError:
            return path

    def _only_quotes(self, path: str, hunk: Hunk) -> bool:
        """Return True if a possible whole file only shows existing lines: an explanation, not an edit."""
        try:
            lines = [line.strip() for line in self._workspace.read(path).text.splitlines() if line.strip()]
        except TesseraError:
            return False
        there = set(lines)
        shown = [line.strip() for line in hunk.replace if line.strip()]
        new = [line for line in shown if line not in there and not is_elision(line) and line not in {"...", "…"}]
        if any(_without_comment(line) not in there for line in new):
            return False
        # A text from the file's first to its last line that omits some lines is a new version of the file.
        return len(shown) == len(lines) or not (lines and shown[0] == lines[0] and shown[-1] == lines[-1])

    def _propose_file(
        self, path: str, hunk_ids: list[int], hunks: tuple[Hunk, ...], picked: Mapping[int, int]
    ) -> FileProposal:
        own = [hunks[index] for index in hunk_ids]
        try:
            before = self._workspace.read(path)
        except FileMissing:
            if own[0].kind not in _MADE:
                return _refused_file(path, tuple(hunk_ids), hunks, "there is no such file in the project")
            before = None
        except TesseraError as error:
            return _refused_file(path, tuple(hunk_ids), hunks, str(error))
        local = {own_index: picked[i] for own_index, i in enumerate(hunk_ids) if i in picked}
        result = apply_hunks(before.text if before else "", own, local)
        conflicts = [self._not_movable(hunk, own[:index], hunks) for index, hunk in enumerate(own)]
        if any(conflicts):
            outcomes = tuple(
                Refused(hunk=outcome.hunk, reason=reason) if reason else outcome
                for outcome, reason in zip(result.outcomes, conflicts, strict=True)
            )
            result = replace(result, outcomes=outcomes)
        return FileProposal(path=path, before=before, result=result, hunk_ids=tuple(hunk_ids))

    def _not_movable(self, hunk: Hunk, earlier: list[Hunk], hunks: tuple[Hunk, ...]) -> str:
        """The reason why a file cannot be moved; empty if it can, and for every other hunk."""
        if hunk.to is None:
            return ""
        to = self._workspace.normalize(hunk.to)
        if any(other.kind == "move" for other in earlier):
            return "this answer already moves the file"
        if any(other is not hunk and other.to is not None and self._name(other.to) == to for other in hunks):
            return f"this answer moves another file to {to}"
        try:
            if not self._workspace.exists(to) and not any(
                self._name(other.path) == to and other.kind in _MADE for other in hunks
            ):
                return ""
        except (TesseraError, OSError) as error:
            return str(error)
        return f"there is already a file {to}"

    def apply(
        self,
        proposal: Proposal,
        chosen: Iterable[int] | None = None,
        *,
        label: str = "",
        allow_uncommitted: bool = False,
    ) -> tuple[str, ...]:
        """Write the chosen hunks (None: all located ones); return the paths written.

        All files are checked before one is written; if a write fails, the earlier ones are undone.
        Raises: FileChanged; UncommittedChanges, GitFailed unless `allow_uncommitted`; OSError.
        """
        hunk_ids = set(proposal.applicable if chosen is None else chosen)
        plans = [plan for file in proposal.files if (plan := self._plan(file, hunk_ids)) is not None]
        return self._write_plans(plans, label, allow_uncommitted=allow_uncommitted)

    def replace_text(self, now: TextFile, text: str | None, *, label: str = "") -> tuple[str, ...]:
        """Replace the text `now` of a file on the disk; None deletes the file. Raises: FileChanged, OSError."""
        file = FileProposal(path=now.path, before=now, result=FileResult(text="", outcomes=()), hunk_ids=())
        plan = _Plan(file, None if text is None else now.path, text or "", None)
        return self._write_plans([plan], label, allow_uncommitted=True)

    def wrote(self, file: TextFile) -> bool:
        """Return True if an applied edit wrote this text of the file."""
        return self._journal.wrote(file.path, file.sha256)

    def _write_plans(self, plans: "Sequence[_Plan]", label: str, *, allow_uncommitted: bool) -> tuple[str, ...]:
        for plan in plans:
            self._check(plan.file, allow_uncommitted=allow_uncommitted)
            if plan.target is not None and plan.target != plan.file.path and self._workspace.exists(plan.target):
                raise FileChanged(plan.target, "was made since the edit was proposed")
        if not plans:
            return ()
        changes = tuple(change for plan in plans for change in self._changes(plan))
        group_id = self._journal.add(label, changes)
        attempted: list[FileChange] = []
        try:
            for plan in plans:
                attempted += [change for change in changes if change.path in {plan.file.path, plan.target}]
                if plan.target is not None:
                    self._write(plan.target, plan.text, plan.executable)
                if plan.target != plan.file.path and plan.file.before is not None:
                    self._workspace.delete(plan.file.path)
        except BaseException:
            for change in attempted:
                self._restore(change)
            self._journal.drop(group_id)
            raise
        self.on_written(changes)
        return tuple(dict.fromkeys(change.path for change in changes))

    def _plan(self, file: FileProposal, hunk_ids: set[int]) -> "_Plan | None":
        """The text to write for the selected hunks of a file; None if there are none. Raises: EditNeedsAnother."""
        outcomes = [
            outcome
            for hunk_id, outcome in zip(file.hunk_ids, file.result.outcomes, strict=True)
            if hunk_id in hunk_ids and (isinstance(outcome, Applied) or outcome.offer is not None)
        ]
        if not outcomes:
            return None
        hunks = [outcome.hunk for outcome in outcomes]
        if any(hunk.kind == "delete" for hunk in hunks):
            return _Plan(file, None, "", None)
        text = merge(file.before.text if file.before else "", outcomes)
        if text is None:
            raise EditNeedsAnother(file.path)
        to = next((self._workspace.normalize(hunk.to) for hunk in hunks if hunk.to is not None), file.path)
        modes = [hunk.executable for hunk in hunks if hunk.executable is not None]
        was = self._workspace.is_executable(file.path) if file.before is not None and to != file.path else None
        return _Plan(file, to, text, modes[-1] if modes else was)

    def _changes(self, plan: "_Plan") -> list[FileChange]:
        before = plan.file.before
        stays = plan.target == plan.file.path
        changes = []
        is_other_mode = before is not None and (not stays or plan.executable is not None)
        if before is not None or stays:
            changes.append(
                FileChange(
                    path=plan.file.path,
                    before=None if before is None else before.text.encode("utf-8", "surrogateescape"),
                    before_sha=None if before is None else before.sha256,
                    after_sha=_sha(plan.text) if stays else None,
                    before_executable=self._workspace.is_executable(plan.file.path) if is_other_mode else None,
                    new_folders=self._workspace.num_missing_folders(plan.file.path),
                )
            )
        if plan.target is not None and not stays:
            changes.append(
                FileChange(
                    path=plan.target,
                    before=None,
                    before_sha=None,
                    after_sha=_sha(plan.text),
                    new_folders=self._workspace.num_missing_folders(plan.target),
                )
            )
        return changes

    def warning(self, path: str) -> Reason | None:
        """Warning to show before a file is written; None if there is none."""
        sha = self._sha_now(path)
        try:
            if sha is None or path not in self._uncommitted() or self._journal.wrote(path, sha):
                return None
        except GitFailed as error:
            return because("uncommitted_unknown", why=str(error))
        return because("uncommitted_file")

    @property
    def can_undo(self) -> bool:
        """Return True if there is an applied group to undo."""
        return self._journal.last() is not None

    def undo(self) -> tuple[str, ...]:
        """Undo the newest applied group; return its paths.

        Raises: NothingToUndo; FileChanged: a file was changed since; then no file is written.
        """
        group = self._journal.last()
        if group is None:
            raise NothingToUndo
        for change in group.changes:
            if self._sha_now(change.path) != change.after_sha:
                raise FileChanged(change.path, "was changed after the edit was applied")
        for change in group.changes:
            self._restore(change)
        self._journal.drop(group.group_id)
        return tuple(change.path for change in group.changes)

    def _check(self, file: FileProposal, *, allow_uncommitted: bool) -> None:
        sha = self._sha_now(file.path)
        if sha != (file.before.sha256 if file.before else None):
            raise FileChanged(file.path, "was changed since the edit was proposed")
        if allow_uncommitted or sha is None or file.path not in self._uncommitted():
            return
        if not self._journal.wrote(file.path, sha):
            raise UncommittedChanges(file.path)

    def _sha_now(self, path: str) -> str | None:
        try:
            return self._workspace.read(path).sha256
        except FileMissing:
            return None

    def _write(self, path: str, text: str, executable: bool | None) -> None:
        if executable is None:
            self._workspace.write(path, text)
        else:
            self._workspace.write(path, text, executable=executable)

    def _restore(self, change: FileChange) -> None:
        if change.before is not None:
            text = change.before.decode("utf-8", "surrogateescape")
            self._write(change.path, text, change.before_executable)
            return
        if self._workspace.exists(change.path):
            self._workspace.delete(change.path)
        self._workspace.remove_folders(change.path, change.new_folders)


@dataclass(frozen=True)
class _Plan:
    """The content to write for one file. `target` is its new path, None if it is deleted."""

    file: FileProposal
    target: str | None
    text: str
    executable: bool | None


def _may_belong(quoted: tuple[str, ...], file: FileProposal) -> bool:
    """Return True if the text that an unnamed edit quotes is in this file."""
    if file.before is None or not any(line.strip() for line in quoted):
        return False
    located = locate(contents(file.before.text), quoted, quoted)
    return isinstance(located, Location) or not located.absent


def _without_comment(line: str) -> str:
    """A quoted line of code without the comment that an explanation adds to it."""
    for mark in ("  # ", "  // ", " # ", " // ", " <-", " /*"):
        line = line.partition(mark)[0]
    return line.strip()


def _refused_file(path: str, hunk_ids: tuple[int, ...], hunks: tuple[Hunk, ...], reason: str) -> FileProposal:
    outcomes = tuple(Refused(hunk=hunks[index], reason=reason) for index in hunk_ids)
    result = FileResult(text="", outcomes=outcomes)
    return FileProposal(path=path, before=None, result=result, hunk_ids=hunk_ids, is_whole=False)


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
