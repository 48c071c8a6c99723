"""Recent projects and sessions: stored, listed, deleted and restored, with real files."""

import os

import pytest

from app.code.errors import NoSuchSession
from app.code.history import RecentProjects, SessionRecord, Sessions, SessionTurn
from engine.core.paths import user_paths


def test_folders_opened_lately_stand_first_and_missing_ones_are_known(tmp_path):
    recent = RecentProjects(user_paths())
    folders = [tmp_path / name for name in ("first", "second", "third")]
    for folder in folders:
        folder.mkdir()
        recent.note(folder)
    recent.note(folders[0])
    folders[2].rmdir()
    known = RecentProjects(user_paths()).all()
    assert [project.folder for project in known] == [str(folders[n]) for n in (0, 2, 1)]
    assert [project.is_missing for project in known] == [False, True, False]
    recent.remove(str(folders[2]))
    assert [project.folder for project in recent.all()] == [str(folders[0]), str(folders[1])]
    for number in range(30):
        recent.note(tmp_path / str(number))
    assert len(recent.all()) == 20


def test_a_session_is_stored_listed_deleted_and_restored(tmp_path):
    sessions = Sessions(tmp_path / "project" / "sessions.db")
    assert sessions.all() == ()
    assert not (tmp_path / "project").exists(), "listing makes nothing"
    undecodable = b"caf\xe9".decode("utf-8", "surrogateescape")
    first = SessionRecord(
        turns=[SessionTurn("Make it\nlouder", "toy", "Done."), SessionTurn("And?", "toy", "No.")],
        messages=[{"role": "user", "content": f"{undecodable} louder"}],
        agent_messages=[{"role": "tool", "tool_call_id": "c1", "content": "ok"}],
        changed_files=["b.py", "a.py", "b.py"],
    )
    other = SessionRecord(turns=[SessionTurn("Other", "toy", "Yes.")])
    sessions.save(first)
    sessions.save(other)
    listed = sessions.all()
    assert [each.title for each in listed] == ["Other", "Make it louder"]
    assert (listed[1].num_turns, listed[1].changed_files) == (2, ["b.py", "a.py"])
    assert Sessions(tmp_path / "project" / "sessions.db").load(first.session_id) == first
    first.turns.append(SessionTurn("More", "toy", "More."))
    first.changed_at = other.changed_at + 1
    sessions.save(first)
    assert [each.num_turns for each in sessions.all()] == [3, 1], "the latest stands first, and only once"
    deleted = sessions.delete(first.session_id)
    assert [each.session_id for each in sessions.all()] == [other.session_id]
    with pytest.raises(NoSuchSession):
        sessions.load(first.session_id)
    sessions.save(deleted)
    assert sessions.load(first.session_id) == first
    if os.name == "posix":
        assert (tmp_path / "project" / "sessions.db").stat().st_mode & 0o077 == 0


def test_the_oldest_sessions_make_room(tmp_path, monkeypatch):
    monkeypatch.setattr("app.code.history._MAX_SESSIONS", 3)
    sessions = Sessions(tmp_path / "sessions.db")
    for number in range(5):
        sessions.save(SessionRecord(turns=[SessionTurn(str(number), "toy", "x")]))
    assert [each.title for each in sessions.all()] == ["4", "3", "2"]
