"""Errors of coding assistance: facts as fields, and a sentence that says what to do next."""

from pathlib import Path

from devices.errors import EnvironmentFault, InputFault


class PathRefused(InputFault):
    """A path that this project will not touch. `path` is what was asked for, shown escaped."""

    code = "path_refused"

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path!r} is refused: {reason}.")
        self.path = path
        self.reason = reason


class FileMissing(InputFault):
    """A path inside the project at which there is no file."""

    code = "file_missing"

    def __init__(self, path: str) -> None:
        super().__init__(f"There is no file {path!r} in this project.")
        self.path = path


class NotText(InputFault):
    """A file that is no text, or too large to be treated as one; sizes in bytes."""

    code = "not_text"

    def __init__(self, path: str, reason: str, size_bytes: int) -> None:
        super().__init__(f"{path!r} cannot be used as text: {reason} ({size_bytes} bytes).")
        self.path = path
        self.reason = reason
        self.size_bytes = size_bytes


class FileChanged(InputFault):
    """A file is no longer what the edit was made for; nothing was written."""

    code = "file_changed"

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{path!r} {what}. Nothing was written; ask again with the file as it is now.")
        self.path = path
        self.what = what


class UncommittedChanges(FileChanged):
    """A file has changes that git does not hold and that are not from here; the person may allow the edit."""

    code = "uncommitted_changes"

    def __init__(self, path: str) -> None:
        super().__init__(path, "has uncommitted changes that are not from here")


class NothingToUndo(InputFault):
    """The journal of applied edits holds nothing more to take back."""

    code = "nothing_to_undo"

    def __init__(self) -> None:
        super().__init__("There is no applied edit left to undo.")


class GitFailed(EnvironmentFault):
    """git is missing, or refused; `output` is what it said."""

    code = "git_failed"

    def __init__(self, arguments: tuple[str, ...], output: str) -> None:
        super().__init__(f"git {' '.join(arguments)} failed: {output.strip() or 'no output'}")
        self.arguments = arguments
        self.output = output


class JournalFromNewerVersion(EnvironmentFault):
    """The journal of edits was written by a newer Tessera; it is left as it is."""

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
