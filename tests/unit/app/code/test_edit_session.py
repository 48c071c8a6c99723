import pytest

from app.code.edits.journal import Journal
from app.code.edits.parse import parse_answer
from app.code.edits.session import EditSession
from app.code.errors import FileChanged, GitFailed, NothingToUndo
from app.code.workspace import Workspace

ANSWER = """First the one, then the other.

one.py
<<<<<<< SEARCH
a = 1
=======
a = 10
>>>>>>> REPLACE

```python
<<<<<<< SEARCH
c = 3
=======
c = 30
>>>>>>> REPLACE
```

**two.py**
<<<<<<< SEARCH
b = 2
=======
b = 20
>>>>>>> REPLACE

--- /dev/null
+++ b/new/three.py
@@ -0,0 +1,2 @@
+fresh = 1
+done = 2
"""


@pytest.fixture
def project(tmp_path):
    root = tmp_path / "project"
    root.mkdir()
    (root / "one.py").write_text("a = 1\nb = 2\nc = 3\n")
    (root / "two.py").write_text("a = 1\nb = 2\n")
    return root


@pytest.fixture
def journal(tmp_path):
    journal = Journal(tmp_path / "state" / "edits.db")
    yield journal
    journal.close()


def contents(root):
    return {str(p.relative_to(root)): p.read_text() for p in sorted(root.rglob("*")) if p.is_file()}


def test_an_answer_over_several_files_is_applied_and_undone(project, journal):
    before = contents(project)
    session = EditSession(Workspace(project), journal)
    proposal = session.propose(parse_answer(ANSWER))
    assert contents(project) == before
    assert proposal.applicable == (0, 1, 2, 3)
    assert session.apply(proposal, label="try") == ("one.py", "two.py", "new/three.py")
    assert contents(project) == {
        "one.py": "a = 10\nb = 2\nc = 30\n",
        "two.py": "a = 1\nb = 20\n",
        "new/three.py": "fresh = 1\ndone = 2\n",
    }
    session.undo()
    assert contents(project) == before
    with pytest.raises(NothingToUndo):
        session.undo()


def test_hunks_are_applied_one_by_one(project, journal):
    session = EditSession(Workspace(project), journal)
    session.apply(session.propose(parse_answer(ANSWER)), [1])
    assert contents(project) == {"one.py": "a = 1\nb = 2\nc = 30\n", "two.py": "a = 1\nb = 2\n"}


def test_undo_survives_a_restart(project, journal, tmp_path):
    session = EditSession(Workspace(project), journal)
    session.apply(session.propose(parse_answer(ANSWER)))
    again = Journal(tmp_path / "state" / "edits.db")
    EditSession(Workspace(project), again).undo()
    again.close()
    assert contents(project) == {"one.py": "a = 1\nb = 2\nc = 3\n", "two.py": "a = 1\nb = 2\n"}


def test_a_file_changed_after_the_proposal_is_not_touched_nor_is_any_other(project, journal):
    session = EditSession(Workspace(project), journal)
    proposal = session.propose(parse_answer(ANSWER))
    (project / "two.py").write_text("b = 2\nmine = 1\n")
    with pytest.raises(FileChanged, match=r"two\.py"):
        session.apply(proposal)
    assert (project / "one.py").read_text() == "a = 1\nb = 2\nc = 3\n"
    assert not (project / "new").exists()


def test_undo_refuses_when_the_person_went_on_editing(project, journal):
    session = EditSession(Workspace(project), journal)
    session.apply(session.propose(parse_answer(ANSWER)))
    (project / "two.py").write_text("precious\n")
    with pytest.raises(FileChanged):
        session.undo()
    assert (project / "two.py").read_text() == "precious\n"
    assert (project / "one.py").read_text() == "a = 10\nb = 2\nc = 30\n"


def test_uncommitted_files_are_protected(project, journal):
    dirty = EditSession(Workspace(project), journal, uncommitted=lambda: frozenset({"one.py"}))
    with pytest.raises(FileChanged, match="uncommitted"):
        dirty.apply(dirty.propose(parse_answer(ANSWER)), [0])
    dirty.apply(dirty.propose(parse_answer(ANSWER)), [0], allow_uncommitted=True)
    # Edits applied here are known, so the next edit of the same file needs no permission.
    dirty.apply(dirty.propose(parse_answer(ANSWER)), [1])
    assert (project / "one.py").read_text() == "a = 10\nb = 2\nc = 30\n"


def test_a_full_disk_takes_the_earlier_writes_back(project, journal, monkeypatch):
    workspace = Workspace(project)
    write = workspace.write

    def failing(path, text):
        if path == "two.py" and "20" in text:
            raise OSError(28, "No space left on device")
        return write(path, text)

    monkeypatch.setattr(workspace, "write", failing)
    session = EditSession(workspace, journal)
    before = contents(project)
    with pytest.raises(OSError, match="No space"):
        session.apply(session.propose(parse_answer(ANSWER)))
    assert contents(project) == before
    assert journal.last() is None


@pytest.mark.parametrize("path", ["../escape.py", "/etc/cron.d/x", ".git/hooks/post-checkout", "a\u202e.py"])
def test_an_edit_that_leads_out_of_the_project_is_refused_and_the_rest_still_applies(project, journal, path):
    answer = f"{path}\n<<<<<<< SEARCH\n=======\nowned\n>>>>>>> REPLACE\n" + ANSWER
    session = EditSession(Workspace(project), journal)
    proposal = session.propose(parse_answer(answer, frozenset({path})))
    assert len(proposal.refused) == 1
    assert "refused" in proposal.refused[0].reason
    session.apply(proposal)
    assert set(contents(project)) == {"one.py", "two.py", "new/three.py"}
    assert not (project.parent / "escape.py").exists()


def test_a_person_may_pick_one_of_several_places(project, journal):
    (project / "two.py").write_text("b = 2\nb = 2\n")
    session = EditSession(Workspace(project), journal)
    answer = parse_answer("two.py\n<<<<<<< SEARCH\nb = 2\n=======\nb = 9\n>>>>>>> REPLACE\n")
    (refused,) = session.propose(answer).refused
    assert refused.candidates == (1, 2)
    session.apply(session.propose(answer, picked={0: 2}))
    assert (project / "two.py").read_text() == "b = 2\nb = 9\n"


def test_a_file_is_deleted_only_when_quoted_whole_and_comes_back(project, journal):
    diff = "--- a/two.py\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-a = 1\n-b = 2\n"
    session = EditSession(Workspace(project), journal)
    session.apply(session.propose(parse_answer(diff)))
    assert not (project / "two.py").exists()
    session.undo()
    assert (project / "two.py").read_text() == "a = 1\nb = 2\n"


def test_when_git_cannot_say_whether_a_file_is_clean_nothing_is_written_unasked(project, journal):
    def broken():
        raise GitFailed(("status",), "timed out")

    session = EditSession(Workspace(project), journal, uncommitted=broken)
    proposal = session.propose(parse_answer(ANSWER))
    with pytest.raises(GitFailed):
        session.apply(proposal)
    assert contents(project) == {"one.py": "a = 1\nb = 2\nc = 3\n", "two.py": "a = 1\nb = 2\n"}
    assert "not known" in str(session.warning("one.py"))
    session.apply(proposal, allow_uncommitted=True)
    assert (project / "new" / "three.py").exists()
