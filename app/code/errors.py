"""Errors of coding assistance, with fields for the details and a message that says what to do."""

from pathlib import Path

from devices.errors import EnvironmentFault, InputFault


class PathRefused(InputFault):
    """A path that this project may not access. `path` is the requested path, escaped for display."""

    code = "path_refused"

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path!r} is refused: {reason}.")
        self.path = path
        self.reason = reason


class FileMissing(InputFault):
    """There is no file at this path inside the project."""

    code = "file_missing"

    def __init__(self, path: str) -> None:
        super().__init__(f"There is no file {path!r} in this project.")
        self.path = path


class NotText(InputFault):
    """A file that is not text, or is too large; sizes in bytes."""

    code = "not_text"

    def __init__(self, path: str, reason: str, size_bytes: int) -> None:
        super().__init__(f"{path!r} cannot be used as text: {reason} ({size_bytes} bytes).")
        self.path = path
        self.reason = reason
        self.size_bytes = size_bytes


class FileChanged(InputFault):
    """The file has changed since the edit was made; nothing was written."""

    code = "file_changed"

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{path!r} {what}. Nothing was written; ask again with the file as it is now.")
        self.path = path
        self.what = what


class UncommittedChanges(FileChanged):
    """A file has uncommitted changes that were not made here; the user may allow the edit."""

    code = "uncommitted_changes"

    def __init__(self, path: str) -> None:
        super().__init__(path, "has uncommitted changes that are not from here")


class EditNeedsAnother(InputFault):
    """The chosen edits of a file need another edit of the same answer; nothing was written."""

    code = "edit_needs_another"

    def __init__(self, path: str) -> None:
        super().__init__(
            f"The chosen edits of {path!r} change lines that another edit of the answer writes. "
            "Nothing was written; choose that edit too."
        )
        self.path = path


class NoSuchStep(InputFault):
    """The agent's session has no step of this number."""

    code = "no_such_step"

    def __init__(self, number: int, num_steps: int) -> None:
        steps = f"has {num_steps} steps" if num_steps else "has no steps yet"
        super().__init__(f"There is no step {number}: this session {steps}.")
        self.number = number
        self.num_steps = num_steps


class NoEditor(InputFault):
    """A file that cannot be opened in an editor; `reason` is a sentence."""

    code = "no_editor"

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason} Choose an editor in the settings (Code, Editor).")
        self.reason = reason


class NoSuchSession(InputFault):
    """A session of the project's history that was deleted meanwhile."""

    code = "no_such_session"

    def __init__(self) -> None:
        super().__init__("This session no longer exists: it was deleted in the meantime.")


class NothingToUndo(InputFault):
    """The journal contains no applied edit to undo."""

    code = "nothing_to_undo"

    def __init__(self) -> None:
        super().__init__("There is no applied edit left to undo.")


class GitFailed(EnvironmentFault):
    """git is missing or failed; `output` is its message."""

    code = "git_failed"

    def __init__(self, arguments: tuple[str, ...], output: str) -> None:
        super().__init__(f"git {' '.join(arguments)} failed: {output.strip() or 'no output'}")
        self.arguments = arguments
        self.output = output


class JournalFromNewerVersion(EnvironmentFault):
    """The edit journal was written by a newer Tessera; it stays unchanged."""

    code = "journal_from_newer_version"

    def __init__(self, path: Path, version: int) -> None:
        super().__init__(
            f"The journal of edits {path} is of a newer Tessera (form {version}). Use that one, or move the file."
        )
        self.path = path
        self.version = version


class IndexUnusable(EnvironmentFault):
    """The index database cannot be opened or written."""

    code = "index_unusable"

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"The project index {path} cannot be used: {reason}. Delete it to build it again.")
        self.path = path
        self.reason = reason
