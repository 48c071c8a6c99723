"""Edits that wait for a decision: those of the last answer, not written yet, and those that the agent has written.

Both are shown as hunks within the file as it is on the disk. Accepting a proposed hunk writes it, rejecting a
written one reverts it; the other two decisions change no file.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

from app.code.edits.apply import merge
from app.code.edits.journal import FileChange
from app.code.edits.parse import contents, split
from app.code.edits.session import EditSession, FileProposal, Proposal
from app.code.edits.types import Hunk, ParsedEdits
from app.code.errors import FileChanged
from app.code.workspace import TextFile, Workspace
from devices.errors import TesseraError

NO_EDITS = Proposal(files=(), malformed=())
# Comparing more pairs of lines than this would take seconds; the whole differing part is then one region.
_MAX_PAIRS = 4_000_000
_MAX_UNDO = 200


@dataclass(frozen=True)
class Region:
    """Lines `first`..`last` (1-based; none if `last` is `first - 1`), and their counterparts in the other text."""

    first: int
    last: int
    other_first: int
    other: tuple[str, ...]


@dataclass(frozen=True)
class InlineHunk:
    """One edit within a file. `regions` are its lines on the disk, each with the lines of the other version.

    `is_written`: the lines on the disk are the new ones. `number` is the edit's id in its proposal, or the number
    of the region in the file.
    """

    path: str
    number: int
    is_written: bool
    regions: tuple[Region, ...]


def regions_of(lines: Sequence[str], other: Sequence[str]) -> tuple[Region, ...]:
    """The ranges in which the other text differs from these lines."""
    start = 0
    while start < min(len(lines), len(other)) and lines[start] == other[start]:
        start += 1
    end = 0
    while end < min(len(lines), len(other)) - start and lines[-1 - end] == other[-1 - end]:
        end += 1
    old, new = lines[start : len(lines) - end], other[start : len(other) - end]
    if not old and not new:
        return ()
    if len(old) * len(new) > _MAX_PAIRS:
        return (Region(start + 1, start + len(old), start + 1, tuple(new)),)
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    return tuple(
        Region(start + a0 + 1, start + a1, start + b0 + 1, tuple(new[b0:b1]))
        for kind, a0, a1, b0, b1 in matcher.get_opcodes()
        if kind != "equal"
    )


def proposed_hunks(file: FileProposal) -> tuple[InlineHunk, ...]:
    """Edits of a file that can each be located independently; one to another edit's lines waits for that edit."""
    before = file.before.text if file.before else ""
    lines = contents(before)
    used_lines: set[int] = set()
    inline = []
    for hunk_id, outcome in zip(file.hunk_ids, file.result.outcomes, strict=True):
        text = "" if outcome.hunk.kind == "delete" else merge(before, [outcome])
        if text is None or text == before:
            continue
        regions = regions_of(lines, contents(text))
        own = {line for region in regions for line in range(region.first, region.last + 1)}
        if regions and not own & used_lines:
            used_lines |= own
            inline.append(InlineHunk(file.path, hunk_id, is_written=False, regions=regions))
    return tuple(inline)


def remaining(proposal: Proposal, decided: Collection[int]) -> ParsedEdits:
    """The edits of a proposal without the decided ones."""
    hunks = {
        hunk_id: outcome.hunk
        for file in proposal.files
        for hunk_id, outcome in zip(file.hunk_ids, file.result.outcomes, strict=True)
    }
    return ParsedEdits(
        hunks=tuple(hunk for hunk_id, hunk in sorted(hunks.items()) if hunk_id not in decided),
        malformed=proposal.malformed,
    )


class EditReviews:
    """The pending edits of one session. Its methods read and write files: call them on a worker, one at a time."""

    def __init__(self, edits: EditSession, workspace: Workspace) -> None:
        self._edits, self._workspace = edits, workspace
        self.proposal = NO_EDITS
        self._written: dict[str, tuple[InlineHunk, ...]] = {}
        self._before: dict[str, str | None] = {}  # texts before the agent's edits
        self._last_sha: dict[str, str | None] = {}  # hashes of the files as they were last written
        self._undo: list[ParsedEdits | None] = []  # pending edits before each applied group
        self.is_by_agent = False

    def note_written(self, changes: tuple[FileChange, ...]) -> None:
        """Record an applied group; called for every group, including those applied here."""
        self._undo = [*self._undo, None][-_MAX_UNDO:]
        for change in changes:
            # Lines that a person wrote since the last edit are not the agent's.
            is_known = change.path in self._before and change.before_sha == self._last_sha.get(change.path)
            if self.is_by_agent and not is_known:
                text = None if change.before is None else change.before.decode("utf-8", "surrogateescape")
                self._before[change.path] = text
            self._last_sha[change.path] = change.after_sha

    def clear(self) -> None:
        """Forget all pending edits. Changes no file."""
        self.proposal, self._written, self._before, self._undo = NO_EDITS, {}, {}, []

    def offer(self, proposal: Proposal) -> None:
        """Replace the edits with those of a new answer."""
        self.proposal = proposal

    def refresh(self) -> None:
        """Look where the agent's edits are in the files as they are now."""
        written = {}
        for path, before in tuple(self._before.items()):
            now = self._own(path)
            if now is None:  # something else changed the file: its lines are no longer only the agent's
                continue
            regions = regions_of(_whole_lines(now.text), _whole_lines(before or ""))
            shown = (replace(region, other=tuple(map(_content, region.other))) for region in regions)
            if regions:
                written[path] = tuple(
                    InlineHunk(path, number, is_written=True, regions=(region,))
                    for number, region in enumerate(shown)
                )
        self._written = written

    def locate_again(self) -> None:
        """Locate the pending edits again after something else changed the files."""
        self._propose(remaining(self.proposal, ()))
        self.refresh()

    def hunks(self, path: str, text: str) -> tuple[InlineHunk, ...]:
        """The pending edits of a file with this text, in the order of its lines."""
        inline = [*self._written.get(path, ())]
        used = {line for hunk in inline for region in hunk.regions for line in range(region.first, region.last + 1)}
        for file in self.proposal.files:
            if file.path == path and (file.before.text if file.before else "") == text:
                for hunk in proposed_hunks(file):
                    own = {line for region in hunk.regions for line in range(region.first, region.last + 1)}
                    if not own & used:
                        inline.append(hunk)
        return tuple(sorted(inline, key=lambda hunk: (hunk.regions[0].first, hunk.is_written, hunk.number)))

    @property
    def paths(self) -> dict[str, bool]:
        """Files with pending edits; True for those that do not exist yet."""
        created = dict.fromkeys(self._written, False)
        for file in self.proposal.files:
            if proposed_hunks(file):
                created[file.path] = file.before is None
        return created

    def apply(
        self,
        chosen: Collection[int],
        label: str,
        *,
        shown: Proposal,
        allow_uncommitted: bool = False,
    ) -> tuple[str, ...]:
        """Write the chosen edits of the answer; the others stay pending.

        Writes nothing if the ids are those of an earlier proposal that was `shown`, as after a second click.
        Raises: as `EditSession.apply`.
        """
        if shown is not self.proposal:
            return ()
        before = remaining(self.proposal, ())
        written = self._edits.apply(self.proposal, chosen, label=label, allow_uncommitted=allow_uncommitted)
        if written and self._undo:
            self._undo[-1] = before
        rest = remaining(self.proposal, chosen)
        moved = {
            outcome.hunk.path: outcome.hunk.to
            for file in self.proposal.files
            for hunk_id, outcome in zip(file.hunk_ids, file.result.outcomes, strict=True)
            if hunk_id in chosen and outcome.hunk.to is not None
        }
        hunks = tuple(replace(hunk, path=moved.get(hunk.path) or hunk.path) for hunk in rest.hunks)
        self._propose(replace(rest, hunks=hunks))
        return written

    def still_pending(self, hunks: Sequence[InlineHunk]) -> tuple[int, ...]:
        """Ids of the answer's edits that are unchanged since they were shown: ids change with each decision."""
        now = {hunk for file in self.proposal.files for hunk in proposed_hunks(file)}
        return tuple(hunk.number for hunk in hunks if hunk in now)

    def dismiss(self, rejected: Collection[int]) -> tuple[tuple[int, Hunk], ...]:
        """Reject edits of the answer; return them for `offer_again`."""
        numbers = sorted(hunk_id for file in self.proposal.files for hunk_id in file.hunk_ids)
        every = zip(numbers, remaining(self.proposal, ()).hunks, strict=True)
        dismissed = tuple((place, hunk) for place, (number, hunk) in enumerate(every) if number in rejected)
        self._propose(remaining(self.proposal, rejected))
        return dismissed

    def offer_again(self, rejected: Sequence[tuple[int, Hunk]]) -> None:
        now = remaining(self.proposal, ())
        hunks = list(now.hunks)
        for place, hunk in rejected:
            hunks.insert(place, hunk)
        self._propose(replace(now, hunks=tuple(hunks)))

    def keep(self, hunks: Sequence[InlineHunk]) -> None:
        """Accept written edits of one file."""
        path = hunks[0].path
        now, before = self._current(hunks), self._before[path]
        if before is None:
            del self._before[path]
        else:
            lines, written = _whole_lines(before), _whole_lines(now.text)
            for region in _from_the_end(hunks):
                last = region.other_first - 1 + len(region.other)
                lines[region.other_first - 1 : last] = written[region.first - 1 : region.last]
            self._before[path] = "".join(lines)
        self.refresh()

    def take_back(self, hunks: Sequence[InlineHunk]) -> tuple[str, ...]:
        """Reject written edits of one file: their lines become what they were. Raises: FileChanged, OSError."""
        path = hunks[0].path
        now, before = self._current(hunks), self._before[path]
        lines, old = _whole_lines(now.text), _whole_lines(before or "")
        for region in _from_the_end(hunks):
            last = region.other_first - 1 + len(region.other)
            lines[region.first - 1 : region.last] = old[region.other_first - 1 : last]
        text = None if before is None else "".join(lines)
        paths = self._edits.replace_text(now, text, label=f"agent's edit of {path} rejected"[:80])
        self.locate_again()
        return paths

    def undo(self) -> tuple[str, ...]:
        """Undo the newest applied group; edits of the answer in it are pending again.

        Raises: as `EditSession.undo`.
        """
        undone = self._edits.undo()
        before = self._undo.pop() if self._undo else None
        if before is not None:
            self._propose(before)
        self.refresh()
        return undone

    def _current(self, hunks: Sequence[InlineHunk]) -> TextFile:
        """The file of written edits as it is on the disk. Raises: FileChanged."""
        path = hunks[0].path
        now, written = self._own(path), self._written.get(path, ())
        if now is None or any(hunk not in written for hunk in hunks):
            raise FileChanged(path, "was changed since the edit was shown")
        return now

    def _propose(self, edits: ParsedEdits) -> None:
        has_any = edits.hunks or edits.malformed
        self.proposal = self._edits.propose(edits) if has_any else NO_EDITS

    def _own(self, path: str) -> TextFile | None:
        """The file as it was last written by an edit; None if it is gone or something else changed it."""
        try:
            now = self._workspace.read(path)
        except (TesseraError, OSError):
            return None
        return now if self._edits.wrote(now) else None


def _whole_lines(text: str) -> list[str]:
    return [content + ending for content, ending in split(text)]


def _from_the_end(hunks: Sequence[InlineHunk]) -> list[Region]:
    """All regions, last first, so that replacing one does not move the next."""
    return sorted((r for hunk in hunks for r in hunk.regions), key=lambda r: (r.first, r.other_first), reverse=True)


def _content(line: str) -> str:
    return line.removesuffix("\n").removesuffix("\r")
