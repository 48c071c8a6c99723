"""From a response to files on disk: propose, choose, apply all or nothing, undo."""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from app.code.edits.apply import apply_hunks, merge
from app.code.edits.journal import FileChange, Journal
from app.code.edits.types import Answer, Applied, FileResult, Hunk, Malformed, Outcome, Refused
from app.code.errors import FileChanged, FileMissing, GitFailed, NothingToUndo, UncommittedChanges
from app.code.workspace import TextFile, Workspace
from devices.errors import TesseraError

# If at least 4 of 5 lines of code are already in the file, the code is a quotation with a comment or an elision.
_QUOTED_DIVISOR = 5


@dataclass(frozen=True, kw_only=True)
class FileProposal:
    """Edits to one file. `before` is None for a new file; `hunk_ids` are indices into the response's hunks."""

    path: str
    before: TextFile | None
    result: FileResult
    hunk_ids: tuple[int, ...]

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
        """Ids of the hunks that were located."""
        return tuple(
            hunk_id
            for file in self.files
            for hunk_id, outcome in zip(file.hunk_ids, file.result.outcomes, strict=True)
            if isinstance(outcome, Applied)
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

    def propose(self, answer: Answer, picked: Mapping[int, int] | None = None) -> Proposal:
        """Locate every hunk of the response; `picked` maps a hunk's index to a line chosen by the user."""
        by_path: dict[str, list[int]] = {}
        refused: dict[int, str] = {}
        for index, hunk in enumerate(answer.hunks):
            try:
                by_path.setdefault(self._workspace.normalize(hunk.path), []).append(index)
            except TesseraError as error:
                refused[index] = str(error)
        files = [
            self._propose_file(path, hunk_ids, answer.hunks, picked or {}) for path, hunk_ids in by_path.items()
        ]
        files += [_refused_file(answer.hunks[i].path, (i,), answer.hunks, reason) for i, reason in refused.items()]
        malformed = tuple(found for found in answer.malformed if not self._only_quotes(found))
        return Proposal(files=tuple(files), malformed=malformed)

    def _only_quotes(self, malformed: Malformed) -> bool:
        """Return True if a possible whole file only shows existing lines: an explanation, not an edit."""
        if not malformed.code or malformed.path is None:
            return False
        try:
            there = {line.strip() for line in self._workspace.read(malformed.path).text.splitlines()}
        except TesseraError:
            return False
        shown = [line.strip() for line in malformed.code if line.strip()]
        return sum(line in there for line in shown) * _QUOTED_DIVISOR >= len(shown) * (_QUOTED_DIVISOR - 1)

    def _propose_file(
        self, path: str, hunk_ids: list[int], hunks: tuple[Hunk, ...], picked: Mapping[int, int]
    ) -> FileProposal:
        own = [hunks[index] for index in hunk_ids]
        try:
            before = self._workspace.read(path)
        except FileMissing:
            if own[0].kind != "create":
                return _refused_file(path, tuple(hunk_ids), hunks, "there is no such file in the project")
            before = None
        except TesseraError as error:
            return _refused_file(path, tuple(hunk_ids), hunks, str(error))
        local = {own_index: picked[i] for own_index, i in enumerate(hunk_ids) if i in picked}
        result = apply_hunks(before.text if before else "", own, local)
        return FileProposal(path=path, before=before, result=result, hunk_ids=tuple(hunk_ids))

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
        wanted = set(proposal.applicable if chosen is None else chosen)
        plans = [(file, new) for file in proposal.files if (new := _text_with(file, wanted)) is not None]
        for file, _ in plans:
            self._check(file, allow_uncommitted=allow_uncommitted)
        if not plans:
            return ()
        changes = []
        for file, (text, deleted) in plans:
            before = file.before
            changes.append(
                FileChange(
                    path=file.path,
                    before=None if before is None else before.text.encode("utf-8", "surrogateescape"),
                    before_sha=None if before is None else before.sha256,
                    after_sha=None if deleted else _sha(text),
                )
            )
        group_id = self._journal.add(label, tuple(changes))
        written: list[FileProposal] = []
        try:
            for file, (text, deleted) in plans:
                written.append(file)
                if deleted:
                    self._workspace.delete(file.path)
                else:
                    self._workspace.write(file.path, text)
        except BaseException:
            for file in written:
                self._restore(file.path, file.before.text if file.before else None)
            self._journal.drop(group_id)
            raise
        return tuple(file.path for file, _ in plans)

    def warning(self, path: str) -> str | None:
        """Warning to show before a file is written; None if there is none."""
        sha = self._sha_now(path)
        try:
            if sha is None or path not in self._uncommitted() or self._journal.wrote(path, sha):
                return None
        except GitFailed as error:
            return f"Whether the file has uncommitted changes is not known: {error}"
        return "The file has uncommitted changes that are not from here."

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
            before = None if change.before is None else change.before.decode("utf-8", "surrogateescape")
            self._restore(change.path, before)
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

    def _restore(self, path: str, text: str | None) -> None:
        if text is not None:
            self._workspace.write(path, text)
        elif self._workspace.exists(path):
            self._workspace.delete(path)


def _text_with(file: FileProposal, wanted: set[int]) -> tuple[str, bool] | None:
    """Return (new text, is_deleted) with only the wanted hunks; None if there are none."""
    outcomes = [
        outcome
        for hunk_id, outcome in zip(file.hunk_ids, file.result.outcomes, strict=True)
        if hunk_id in wanted and isinstance(outcome, Applied)
    ]
    if not outcomes:
        return None
    if any(outcome.hunk.kind == "delete" for outcome in outcomes):
        return "", True
    return merge(file.before.text if file.before else "", outcomes), False


def _refused_file(path: str, hunk_ids: tuple[int, ...], hunks: tuple[Hunk, ...], reason: str) -> FileProposal:
    outcomes = tuple(Refused(hunk=hunks[index], reason=reason) for index in hunk_ids)
    return FileProposal(path=path, before=None, result=FileResult(text="", outcomes=outcomes), hunk_ids=hunk_ids)


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
