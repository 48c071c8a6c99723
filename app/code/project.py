"""An open project: its files, index, edit history and git, and the folders that store them."""

import hashlib
from contextlib import suppress
from pathlib import Path
from typing import Self

from app.code.edits.journal import Journal
from app.code.edits.session import EditSession
from app.code.errors import GitFailed
from app.code.git import Git
from app.code.history import Sessions
from app.code.index.project import ProjectIndex
from app.code.workspace import Workspace
from engine.core.paths import Paths, user_paths


class Project:
    """All data that coding assistance needs for one folder. Close it, or use it in a `with` block."""

    def __init__(self, folder: Path, paths: Paths | None = None) -> None:
        paths = paths or user_paths()
        self.workspace = Workspace(folder)
        self.index = ProjectIndex(self.workspace, paths.cache)
        digest = hashlib.sha256(str(self.workspace.root).encode("utf-8", "surrogateescape")).hexdigest()
        self.state = paths.state / "code" / digest[:24]
        self.journal = Journal(self.state / "edits.db")
        self.sessions = Sessions(self.state / "sessions.db")
        git = Git(self.workspace.root)
        self.git = git if git.available() else None
        self.edits = EditSession(self.workspace, self.journal, uncommitted=self._uncommitted)

    def _uncommitted(self) -> frozenset[str]:
        """Raises GitFailed: without a result, no file may count as unchanged."""
        return self.git.uncommitted() if self.git is not None else frozenset()

    def changed_files(self) -> frozenset[str]:
        """Files that git reports as changed; none without git."""
        with suppress(GitFailed):
            return self._uncommitted()
        return frozenset()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the parsers and close the databases."""
        self.index.close()
        self.journal.close()
