"""Edits in the formats of other tools: applied exactly, all or none of a file's, or reported."""

import itertools
import random
from pathlib import Path

import pytest

from app.code.edits.journal import Journal
from app.code.edits.parse import parse_answer
from app.code.edits.session import EditSession
from app.code.errors import EditNeedsAnother
from app.code.workspace import Workspace
from tests.support.edit_mutations import Change, run_trial, trials

PY = b"def a():\n    return 1\n\n\ndef b():\n    return 2\n"
TWICE = b"class A:\n    def f(self):\n        return 1\n\n\nclass B:\n    def f(self):\n        return 1\n"
RENAME = "diff --git a/m.py b/n.py\nsimilarity index 90%\nrename from m.py\nrename to n.py\n"


@pytest.fixture
def applied(tmp_path):
    """Applies answers to these files and undoes them: (files then, executable files then, what was reported)."""
    number = itertools.count()

    def state(root):
        files = {p.relative_to(root).as_posix(): p for p in root.rglob("*") if p.is_file()}
        runs = {name for name, path in files.items() if path.stat().st_mode & 0o100}
        return {name: path.read_bytes() for name, path in files.items()}, runs

    def apply(answer, files, *, chosen=None, executable=()):
        folder = tmp_path / str(next(number))
        root = folder / "project"
        root.mkdir(parents=True)
        for name, data in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(data)
            (root / name).chmod(0o755 if name in executable else 0o644)
        before, folders = state(root), {p for p in root.rglob("*") if p.is_dir()}
        journal = Journal(folder / "journal.db")
        session = EditSession(Workspace(root), journal)
        proposal = session.propose(parse_answer(answer.replace("{ROOT}", str(root)), frozenset(files)))
        try:
            written = session.apply(proposal, chosen)
            after = state(root)
            if written:
                session.undo()
        finally:
            journal.close()
        assert state(root) == before, "undo gives the very files back"
        assert {p for p in root.rglob("*") if p.is_dir()} == folders, "and leaves no folder that it made"
        return *after, [r.reason for r in proposal.refused] + [m.reason for m in proposal.malformed]

    return apply


def block(path, search, new):
    return f"{path}\n<<<<<<< SEARCH\n{search}=======\n{new}>>>>>>> REPLACE\n"


def patch(*lines):
    return "\n".join(["*** Begin Patch", *lines, "*** End Patch", ""])


ONE = patch("*** Update File: m.py", "@@ def a():", "-    return 1", "+    return 10")


@pytest.mark.parametrize(
    ("answer", "before", "after"),
    [
        (ONE, PY, {"m.py": PY.replace(b"1", b"10")}),
        (f"```\n{ONE}```\n", PY, {"m.py": PY.replace(b"1", b"10")}),
        (f"apply_patch <<'EOF'\n{ONE}EOF\n", PY, {"m.py": PY.replace(b"1", b"10")}),
        (ONE.replace("*** End Patch", "EOF"), PY, {"m.py": PY.replace(b"1", b"10")}),
        (ONE.replace("*** Begin Patch\n", ""), PY, {"m.py": PY.replace(b"1", b"10")}),
        (ONE.replace("m.py", "{ROOT}/m.py"), PY, {"m.py": PY.replace(b"1", b"10")}),
        (patch("*** Update File: m.py", "*** Move to: p/n.py"), PY, {"p/n.py": PY}),
        (
            patch("*** Update File: m.py", "*** Move to: n.py", "@@", "-    return 1", "+    return 10"),
            PY,
            {"n.py": PY.replace(b"1", b"10")},
        ),
        (
            patch("*** Add File: a/my page", "+x", "+", "+y", "*** Delete File: m.py"),
            PY,
            {"a/my page": b"x\n\ny\n"},
        ),
        (
            patch(
                "*** Update File: m.py",
                "@@ class B:",
                "@@     def f(self):",
                "-        return 1",
                "+        return 9",
            ),
            TWICE,
            {"m.py": TWICE[:-2] + b"9\n"},
        ),
        (patch("*** Update File: m.py", "@@", "+z = 1", "*** End of File"), PY, {"m.py": PY + b"z = 1\n"}),
        (
            patch("*** Update File: m.py", "@@", "-x = 1", "+x = 2", "*** End of File"),
            b"x = 1\ny\nx = 1\n",
            {"m.py": b"x = 1\ny\nx = 2\n"},
        ),
        (
            patch(
                "*** Update File: m.py",
                "@@",
                "-    return 1",
                "+    return 10",
                "",
                "@@",
                "-    return 2",
                "+    return 3",
            ),
            PY,
            {"m.py": PY.replace(b"1", b"10").replace(b"2", b"3")},
        ),
        (RENAME.replace("90", "100"), PY, {"n.py": PY}),
        ("rename from m.py\nrename to n.py\n", PY, {"n.py": PY}),
        (
            RENAME + "--- a/m.py\n+++ b/n.py\n@@ -1,2 +1,2 @@\n def a():\n-    return 1\n+    return 10\n",
            PY,
            {"n.py": PY.replace(b"1", b"10")},
        ),
        (RENAME + block("n.py", "    return 1\n", "    return 9\n"), PY, {"n.py": PY.replace(b"1", b"9")}),
        ("diff --git a/n b/n\nnew file mode 100644\nindex 0000000..e69de29\n", PY, {"m.py": PY, "n": b""}),
        ("diff --git a/m.py b/m.py\ndeleted file mode 100644\nindex e69de29..0000000\n", b"", {}),
        ("--- a/m.py\n+++ b/m.py\n@@ -1 +1 @@\n-b\n\\ No newline at end of file\n+b\n", b"b", {"m.py": b"b\n"}),
        ("--- a/m.py\n+++ b/m.py\n@@ -1 +1 @@\n-b\n+b\n\\ No newline at end of file\n", b"b\n", {"m.py": b"b"}),
        (block("m.py", "a = 1\n", "a = 2\n"), b"\xef\xbb\xbfa = 1\nb\n", {"m.py": b"\xef\xbb\xbfa = 2\nb\n"}),
        (
            block("m.py", "\ufeffa = 1\nb\n", "a = 2\nb\n"),
            b"\xef\xbb\xbfa = 1\nb\n",
            {"m.py": b"\xef\xbb\xbfa = 2\nb\n"},
        ),
        (block("m.py", "b\nc\n", "b\n"), b"a\nb\nc", {"m.py": b"a\nb\n"}),
        (block("m.py", "...\n", "pass\n"), b"class A:\n    ...\n", None),
        (
            block("m.py", "class A(Protocol):\n    ...\n", "class A(Protocol):\n    b: int\n"),
            b"class A(Protocol):\n    ...\n",
            {"m.py": b"class A(Protocol):\n    b: int\n"},
        ),
        ("n.py\n```python\nx = 1\n```\n", PY, {"m.py": PY, "n.py": b"x = 1\n"}),
        ("**Dockerfile**\n\n```dockerfile\nFROM x\n```\n", PY, {"m.py": PY, "Dockerfile": b"FROM x\n"}),
    ],
)
def test_an_edit_is_applied_exactly(applied, answer, before, after):
    now, _, reported = applied(answer, {"m.py": before})
    assert now == ({"m.py": before} if after is None else after), reported
    assert bool(reported) == (after is None)


A, B = b"Title\n=======\n\nOld.\n", b"Title\n=======\n\nNew.\n"


@pytest.mark.parametrize(
    ("name", "answer", "after"),
    [
        ("d.rst", block("d.rst", A.decode(), B.decode()), B),
        ("d.md", block("d.md", "Old.\n", "Old.\n\nMore\n=======\nText.\n"), A + b"\nMore\n=======\nText.\n"),
        ("d.py", block("d.py", "Old.\n", "Old.\n\nMore\n=======\nText.\n"), None),
        ("d.py", block("d.py", "Old.\n", "Old.\n\nSeven77\n=======\nText.\n"), A + b"\nSeven77\n=======\nText.\n"),
        ("d.rst", block("d.rst", "Other\n=======\n", "Another\n=======\n"), None),
    ],
)
def test_the_underline_of_a_heading_is_no_divider(applied, name, answer, after):
    now, _, reported = applied(answer, {name: A})
    assert now == {name: A if after is None else after}, reported
    assert bool(reported) == (after is None)
    made, _, reported = applied(block("new.rst", "", A.decode()), {name: A})
    assert (made["new.rst"], reported) == (A, [])


def test_modes_are_set_and_kept(applied):
    mode = "diff --git a/m.sh b/m.sh\nold mode 100644\nnew mode 100755\n"
    assert applied(mode, {"m.sh": b"x\n"}) == ({"m.sh": b"x\n"}, {"m.sh"}, [])
    change = "--- a/m.sh\n+++ b/m.sh\n@@ -1 +1 @@\n-x\n+y\n"
    assert applied(mode + change, {"m.sh": b"x\n"}) == ({"m.sh": b"y\n"}, {"m.sh"}, [])
    assert applied(mode[mode.index("old") :] + change, {"m.sh": b"x\n"}) == ({"m.sh": b"y\n"}, {"m.sh"}, [])
    new = "diff --git a/n b/n\nnew file mode 100755\n--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+echo\n"
    assert applied(new, {"m": b"x\n"}) == ({"m": b"x\n", "n": b"echo\n"}, {"n"}, [])
    move = RENAME.replace(".py", "")
    assert applied(move, {"m": b"x\n"}, executable={"m"}) == ({"n": b"x\n"}, {"n"}, [])
    assert applied(block("m", "x\n", "y\n"), {"m": b"x\n"}, executable={"m"}) == ({"m": b"y\n"}, {"m"}, [])


def test_edits_of_an_answer_build_on_each_other(applied):
    first = block("m.py", "    return 1\n", "    x = 1\n    return x\n")
    second = block("m.py", "    x = 1\n", "    x = 5\n")
    now, _, reported = applied(first + second, {"m.py": PY})
    assert (now["m.py"], reported) == (PY.replace(b"return 1", b"x = 5\n    return x"), [])
    with pytest.raises(EditNeedsAnother):
        applied(first + second, {"m.py": PY}, chosen=[1])
    swap = block("m.py", "a\n", "b\n") + block("m.py", "b\n", "a\n")
    assert applied(swap, {"m.py": b"a\nb\n"})[0] == {"m.py": b"b\na\n"}, "the author knows the original only"
    shared = block("m.py", "a = 1\nb = 2\n", "a = 9\nb = 2\n") + block("m.py", "b = 2\nc = 3\n", "b = 2\nc = 9\n")
    assert applied(shared, {"m.py": b"a = 1\nb = 2\nc = 3\n"})[0] == {"m.py": b"a = 9\nb = 2\nc = 9\n"}
    again = block("m.py", "x = 1\ny = 1\n", "x = 2\ny = 1\n") + block("m.py", "x = 1\n", "x = 2\n")
    assert applied(again, {"m.py": b"x = 1\ny = 1\nx = 1\n"})[0] == {"m.py": b"x = 1\ny = 1\nx = 1\n"}


BAD = block("m.py", "missing = 1\n", "missing = 2\n")


@pytest.mark.parametrize(
    "bad",
    [
        BAD,
        BAD.replace(">>>>>>> REPLACE\n", ""),
        "diff --git a/m.py b/m.py\nold mode 100644\nnew mode 120000\n",
        patch("*** Update File: m.py", "what"),
        RENAME.replace("n.py", "other.py"),
        block("m.py", "def b():\n", "# ... existing code ...\ndef b():\n"),
    ],
)
def test_all_edits_of_a_file_are_applied_or_none(applied, bad):
    files = {"m.py": PY, "other.py": PY}
    good = block("m.py", "    return 1\n", "    return 10\n")
    other = block("other.py", "    return 1\n", "    return 10\n")
    now, _, reported = applied(other + good + bad, files)
    assert (now["m.py"], bool(reported)) == (PY, True)
    assert now["other.py"] == PY.replace(b"1", b"10") or "other.py" in bad
    assert applied(good + bad, files, chosen=[0])[0]["m.py"] == PY.replace(b"1", b"10"), "unless the person chooses"


@pytest.mark.parametrize(
    ("code", "is_offered"),
    [
        ("def a():\n    return 10\n\n\ndef b():\n    return 2\n", True),
        ("def a():\n    return 1\n\n\ndef c():\n    return 2\n", True),
        ("def a():\n    return 10\n", False),
        ("def a():\n    return 10\n# ... rest of the file unchanged ...\ndef b():\n    return 2\n", False),
    ],
)
def test_the_text_of_a_whole_file_is_written_only_by_choice(applied, code, is_offered):
    answer = f"Here is the new `m.py`:\n\n```python\n{code}```\n"
    now, _, reported = applied(answer, {"m.py": PY})
    assert (now, len(reported)) == ({"m.py": PY}, 1)
    chosen, _, _ = applied(answer, {"m.py": PY}, chosen=[0])
    assert chosen == {"m.py": code.encode() if is_offered else PY}


def test_code_that_shows_a_file_is_no_edit_of_it(applied):
    shown = "In `m.py`:\n\n```python\ndef a():\n    return 1  # the first\n    # ...\n```\n"
    shown += "**m.py**\n```\ndef b():\n```\n"
    assert applied(shown, {"m.py": PY}) == ({"m.py": PY}, set(), [])


@pytest.mark.parametrize(
    "form", ["n.py\n```python\nx = 1\n", "```diff\n--- a/m.py\n+++ b/m.py\n@@ -1 +1 @@\n-x\n+y"]
)
def test_an_answer_that_ends_too_early_changes_nothing(applied, form):
    now, _, reported = applied(form, {"m.py": b"x\n"})
    assert (now, len(reported)) == ({"m.py": b"x\n"}, 1)


DIFF = "--- a/m.py\n+++ b/m.py\n@@ -1,2 +1,2 @@\n def a():\n-    return 1\n+    return 10\n"


@pytest.mark.parametrize(
    "text",
    [
        "# A\n\n```python\nx = 1\n```\n\nend\n",
        f"# Patch\n\n```diff\n{DIFF}```\n\nend\n",
        f"# Blocks\n\n```\n{block('m.py', '    return 1', '    return 10')}```\n",
    ],
)
def test_fences_in_a_markdown_file_are_its_text(applied, text):
    answer = f"New file `docs/a.md`:\n\n````markdown\n{text}````\n"
    assert applied(answer, {"m.py": PY}) == ({"m.py": PY, "docs/a.md": text.encode()}, set(), [])


def test_a_fence_with_a_language_is_closed_inside_a_fence_of_its_length(applied):
    text = f"# A\n\n```diff\n{DIFF}```\n\nend\n"
    edit = block("m.py", "    return 2\n", "    return 20\n")
    answer = f"docs/a.md\n```markdown\n{text}```\n\n{edit}"
    now, _, reported = applied(answer, {"m.py": PY})
    assert (now["docs/a.md"], now["m.py"], reported) == (text.encode(), PY.replace(b"2", b"20"), [])


@pytest.mark.parametrize("name", ["docs/a.md", "README.MD"])
def test_a_markdown_file_whose_end_is_not_certain_is_not_written(applied, name):
    answer = f"{name}\n```markdown\n# A\n\n```\nx\n```\n\nend\n```\n"
    now, _, reported = applied(answer, {"m.py": PY})
    assert (now, len(reported)) == ({"m.py": PY}, 1)
    assert "end is not certain" in reported[0]


def test_an_indented_fence_is_part_of_the_code_around_it(applied):
    text = 'def a():\n    """Shows:\n\n    ```\n    a()\n    ```\n    """\n'
    now, _, reported = applied(f"n.py\n```python\n{text}```\n", {"m.py": PY})
    assert (now, reported) == ({"m.py": PY, "n.py": text.encode()}, [])


@pytest.mark.parametrize(
    "answer",
    [
        "1. Change it:\n\n" + "".join(f"   {line}\n" for line in DIFF.splitlines()),
        "".join(f"> {line}\n" for line in DIFF.splitlines()),
        "".join(f"> {line}\n" for line in ONE.splitlines()),
        '{"name": "edit", "arguments": {"path": "m.py", "old_string": "return 1", "new_string": "return 10"}}\n',
        '{\n "path": "m.py",\n "old_str": "return 1",\n "new_str": "return 10"\n}\n',
        '{"name": "apply_patch", "arguments": {"input": "*** Begin Patch\\n*** Update File: m.py"}}\n',
        "cat > n.py <<'EOF'\nx = 1\nEOF\n",
        "```ed\n2c\n    return 10\n.\nw m.py\n```\n",
    ],
)
def test_an_edit_that_is_shifted_or_a_call_is_reported(applied, answer):
    now, _, reported = applied(answer, {"m.py": PY})
    assert (now, len(reported)) == ({"m.py": PY}, 1)


def test_a_byte_order_mark_before_the_answer_is_no_text_of_it(applied):
    assert applied("\ufeff" + DIFF, {"m.py": PY}) == ({"m.py": PY.replace(b"1", b"10")}, set(), [])


def test_a_file_is_made_changed_and_moved_by_one_answer(applied):
    answer = block("n.py", "", "x = 1\n") + block("n.py", "x = 1\n", "x = 2\n")
    answer += "diff --git a/n.py b/o.py\nsimilarity index 100%\nrename from n.py\nrename to o.py\n"
    assert applied(answer, {"m.py": PY}) == ({"m.py": PY, "o.py": b"x = 2\n"}, set(), [])


def test_damaged_edits_of_real_files_never_break_one(tmp_path):
    rng = random.Random(7)
    changes = []
    for path in sorted(Path("app/code").rglob("*.py"))[:24]:
        lines = path.read_text("utf-8").removesuffix("\n").split("\n")
        new = list(lines)
        for _ in range(rng.randint(1, 3)) if len(lines) > 20 else ():
            at = rng.randrange(len(new))
            new[at : at + rng.randint(0, 3)] = [f"{new[at]}  # {rng.random()}"] * rng.randint(0, 1) + ["fresh = 1"]
        if new != lines:
            changes.append(Change(path.as_posix(), "\n".join([*lines, ""]), "\n".join([*new, ""])))
    for number, trial in enumerate(trials(changes, rng, 56)):
        state, reported = run_trial(trial, tmp_path / str(number))
        assert state in {"applied", "refused"}, (state, trial.format, trial.damage, reported, trial.answer)


def test_a_fault_names_its_line_counted_from_one():
    answer = "First.\n\n<<<<<<< SEARCH\na\n=======\nb\n>>>>>>> REPLACE\n"
    (malformed,) = parse_answer(answer, frozenset()).malformed
    assert answer.splitlines()[malformed.line - 1] == "<<<<<<< SEARCH"
