"""Stores the recently opened folders and the sessions of each project."""

import contextlib
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import apsw
import msgspec

from app.code.errors import NoSuchSession
from devices.atomic_file import make_private
from devices.msgspec_lock import learned
from engine.core.json_store import JsonStore
from engine.core.paths import Paths

_MAX_RECENT: Final = 20
# The oldest session is deleted when another begins; enough for a year of daily work.
_MAX_SESSIONS: Final = 400
_MAX_TITLE_CHARS: Final = 200


class RecentProject(msgspec.Struct, frozen=True):
    """A folder that was opened as a project; `opened_at` is Unix time."""

    folder: str
    opened_at: float

    @property
    def is_missing(self) -> bool:
        """Return True if the folder was moved or deleted. Reads the disk."""
        return not Path(self.folder).is_dir()


class RecentProjects:
    """Recently opened folders, the latest first."""

    def __init__(self, paths: Paths) -> None:
        self._store: JsonStore[list[RecentProject]] = JsonStore(
            paths.state / "code" / "recent.json", list[RecentProject], list
        )

    def all(self) -> tuple[RecentProject, ...]:
        """The folders, also those that no longer exist."""
        return tuple(self._store.get())

    def note(self, folder: Path) -> None:
        """Put a folder first. Raises: OSError."""
        opened = RecentProject(str(folder), time.time())
        self._store.change(
            lambda projects: [opened, *(each for each in projects if each.folder != opened.folder)][:_MAX_RECENT]
        )

    def remove(self, folder: str) -> None:
        """Remove a folder from the list; the folder itself stays. Raises: OSError."""
        self._store.change(lambda projects: [each for each in projects if each.folder != folder])


class SessionTurn(msgspec.Struct, frozen=True):
    """One request and the text shown for it."""

    question: str
    model: str
    text: str


class SessionRecord(msgspec.Struct):
    """A session: what was shown, and the messages that continue it. Times are Unix times.

    `messages` belong to questions, `agent_messages` to the agent. `changed_files` has one entry per applied edit.
    """

    session_id: str = msgspec.field(default_factory=lambda: uuid.uuid4().hex)
    begun_at: float = msgspec.field(default_factory=time.time)
    changed_at: float = msgspec.field(default_factory=time.time)
    turns: list[SessionTurn] = []
    messages: list[dict[str, Any]] = []
    agent_messages: list[dict[str, Any]] = []
    changed_files: list[str] = []


class SessionSummary(msgspec.Struct, frozen=True):
    """One session as shown in a list. Times are Unix times."""

    session_id: str
    begun_at: float
    changed_at: float
    title: str
    num_turns: int
    changed_files: list[str]


_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS session(
  session_id TEXT PRIMARY KEY, begun_at REAL NOT NULL, changed_at REAL NOT NULL, title TEXT NOT NULL,
  num_turns INTEGER NOT NULL, changed_files TEXT NOT NULL, record BLOB NOT NULL);
"""


class Sessions:
    """The sessions of one project in an SQLite file. Every call opens it, so that all threads may call."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def all(self) -> tuple[SessionSummary, ...]:
        """Every session, the latest first. Raises: apsw.Error."""
        if not self._path.exists():
            return ()
        with self._opened() as db:
            rows = db.execute(
                "SELECT session_id, begun_at, changed_at, title, num_turns, changed_files FROM session"
                " ORDER BY changed_at DESC, rowid DESC"
            )
            return tuple(
                SessionSummary(session_id, begun_at, changed_at, title, num_turns, json.loads(changed_files))
                for session_id, begun_at, changed_at, title, num_turns, changed_files in rows
            )

    def load(self, session_id: str) -> SessionRecord:
        """A whole session. Raises: NoSuchSession; apsw.Error."""
        with self._opened() as db:
            for (record,) in db.execute("SELECT record FROM session WHERE session_id=?", (session_id,)):
                return msgspec.convert(json.loads(record), learned(SessionRecord))
        raise NoSuchSession

    def last(self) -> SessionRecord | None:
        """The session that was saved last. Raises: as `all` and `load`."""
        records = self.all()
        return self.load(records[0].session_id) if records else None

    def save(self, session: SessionRecord) -> None:
        """Add or replace a session. Raises: apsw.Error, OSError."""
        first = session.turns[0].question if session.turns else ""
        title = " ".join(first.split())[:_MAX_TITLE_CHARS].encode("utf-8", "replace").decode()
        files = list(dict.fromkeys(session.changed_files))
        row = (
            session.session_id,
            session.begun_at,
            session.changed_at,
            title,
            len(session.turns),
            json.dumps(files),
            # Not msgspec's encoder: undecodable bytes of a file are lone surrogates in the messages.
            json.dumps(msgspec.to_builtins(session)).encode(),
        )
        with self._opened() as db, db:
            db.execute("REPLACE INTO session VALUES(?, ?, ?, ?, ?, ?, ?)", row)
            db.execute(
                "DELETE FROM session WHERE session_id NOT IN"
                " (SELECT session_id FROM session ORDER BY changed_at DESC, rowid DESC LIMIT ?)",
                (_MAX_SESSIONS,),
            )

    def delete(self, session_id: str) -> SessionRecord:
        """Delete a session and return it; `save` restores it. Raises: NoSuchSession; apsw.Error."""
        session = self.load(session_id)
        with self._opened() as db:
            db.execute("DELETE FROM session WHERE session_id=?", (session_id,))
        return session

    @contextlib.contextmanager
    def _opened(self) -> Iterator[apsw.Connection]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        make_private(self._path)  # contains prompts and parts of files
        db = apsw.Connection(str(self._path))
        try:
            db.set_busy_timeout(5000)
            db.execute(_SCHEMA)
            yield db
        finally:
            db.close()


class SessionLog:
    """Records the current session. Saves may run on workers, out of order: the newest state stays."""

    def __init__(self) -> None:
        self.record = SessionRecord()
        self._turn: SessionTurn | None = None  # the request that is being answered
        self._saving = threading.Lock()
        self._num_saves = self._last_saved = 0

    @property
    def has_unsaved(self) -> bool:
        """True if a save was created that has not run yet."""
        return self._num_saves > self._last_saved

    def begin_turn(self, question: str, model: str) -> None:
        """Note a request, with the name of the model that answers."""
        self._turn = SessionTurn(question, model, "")

    def add_text(self, text: str) -> None:
        """Add text to the answer that is being written."""
        if self._turn is not None:
            self.set_text(self._turn.text + text)

    def set_text(self, text: str) -> None:
        """Replace the text of the answer that is being written."""
        if self._turn is not None:
            self._turn = msgspec.structs.replace(self._turn, text=text)

    def end_turn(self) -> bool:
        """Add the answered request to the record. Returns False if there is no request, or no answer."""
        turn, self._turn = self._turn, None
        if turn is None or not turn.text.strip():
            return False
        self.record.turns.append(turn)
        return True

    def save(self, sessions: Sessions) -> Callable[[], None]:
        """Returns a function that saves the record as it is now. That function raises apsw.Error or OSError."""
        self._num_saves += 1
        number = self._num_saves
        self.record.changed_at = time.time()
        stored = msgspec.structs.replace(
            self.record, turns=list(self.record.turns), changed_files=list(self.record.changed_files)
        )

        def work() -> None:
            with self._saving:
                if number > self._last_saved:
                    self._last_saved = number
                    sessions.save(stored)

        return work
