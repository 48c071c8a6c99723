"""Checks which file an edit is for: an answer changes only the files that it names, or it is reported."""

import itertools
import time

import pytest

from app.code.edits.diffs import _after_binary, read_file_diff
from app.code.edits.journal import Journal
from app.code.edits.naming import name_before
from app.code.edits.parse import MAX_ANSWER_BYTES, parse_answer
from app.code.edits.session import EditSession
from app.code.workspace import Workspace

NEW = "<<<<<<< SEARCH\n=======\n{}\n>>>>>>> REPLACE\n"
CHANGE = "<<<<<<< SEARCH\n{}\n=======\n{}\n>>>>>>> REPLACE\n"


@pytest.fixture
def written(tmp_path):
    """Applies answers to a project of these files: (its files afterwards, what was reported)."""
    number = itertools.count()

    def write(answer, files=None):
        folder = tmp_path / str(next(number))
        project = folder / "project"
        project.mkdir(parents=True)
        for name, text in (files or {}).items():
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            (project / name).write_text(text)
        session = EditSession(Workspace(project), Journal(folder / "journal.db"))
        proposal = session.propose(parse_answer(answer, frozenset(files or {})))
        session.apply(proposal)
        after = {str(p.relative_to(project)): p.read_text() for p in project.rglob("*") if p.is_file()}
        return after, [r.reason for r in proposal.refused] + [m.reason for m in proposal.malformed]

    return write


def second(line):
    """An answer of two new files; the line names the second."""
    return "src/a.py\n" + NEW.format("FIRST") + f"\n{line}\n" + NEW.format("SECOND")


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("Makefile", "Makefile"),
        ("LICENSE", "LICENSE"),
        ("Dockerfile:", "Dockerfile"),
        ("`Procfile`", "Procfile"),
        ("`frobnicate`", "frobnicate"),
        ("**CODEOWNERS**", "CODEOWNERS"),
        ("### Makefile", "Makefile"),
        ("justfile", "justfile"),
        ("bin/run", "bin/run"),
        ("my notes.md", "my notes.md"),
        ("docs/my page.md", "docs/my page.md"),
        ("**My Module.py**", "My Module.py"),
        ('"my notes.md"', "my notes.md"),
        ("`how to use it.md`", "how to use it.md"),
        ("__init__.py", "__init__.py"),
        ("**__init__.py**", "__init__.py"),
        ("`__init__.py`:", "__init__.py"),
        ("## __main__.py", "__main__.py"),
        ("_config.yml", "_config.yml"),
        ("**`_config.yml`**", "_config.yml"),
        ("*_config.yml*", "_config.yml"),
        ("__tests__", "__tests__"),
        ("File:__init__.py", "__init__.py"),
        ("File: `_a_.py`", "_a_.py"),
        ("**File:** `_a_.py`", "_a_.py"),
        ("**File: _a_.py**", "_a_.py"),
        ("Filename: src/b.py", "src/b.py"),
        ("New file: Makefile", "Makefile"),
        ("`Makefile` (new file)", "Makefile"),
        (".gitignore", ".gitignore"),
        ("**.env.example**", ".env.example"),
        (".github/workflows/ci.yml", ".github/workflows/ci.yml"),
        ("./setup.cfg", "setup.cfg"),
        ("1. `src/b.py`", "src/b.py"),
        ("- src/b.py", "src/b.py"),
        ("> src/b.py", "src/b.py"),
        ("// src/b.ts", "src/b.ts"),
        ("<!-- index.html -->", "index.html"),
        ("<path>src/b.py</path>", "src/b.py"),
        ("[src/b.py](src/b.py)", "src/b.py"),
        ("src/routes/+page.svelte", "src/routes/+page.svelte"),
        ("app/(group)/page.tsx", "app/(group)/page.tsx"),
        ("pages/[id].tsx", "pages/[id].tsx"),
        ("types/@scope/index.d.ts", "types/@scope/index.d.ts"),
        ("c++/C#.md", "c++/C#.md"),
        ("report (1).md", "report (1).md"),
        ("it's.md", "it's.md"),
        ("\u00dcbersicht \u6587.md", "\u00dcbersicht \u6587.md"),
        ("lib/a.py", "lib/a.py"),
        ("Now create `src/b.py`:", "src/b.py"),
        ("And add the file Makefile:", "Makefile"),
        ("src/b.py\n```python", "src/b.py"),
        ("```python src/b.py", "src/b.py"),
        ("```python:src/b.py", "src/b.py"),
        ('```python title="src/b.py"', "src/b.py"),
        ("```python\n# src/b.py", "src/b.py"),
        ("Makefile\n```Makefile", "Makefile"),
        ("````markdown\nREADME.md", "README.md"),
        ("Makefile\n\n\n\n\n", "Makefile"),
        ("`Makefile`\nThis adds the targets that the tests need:", "Makefile"),
        ("```text\nthe old build said nothing\n```\nMakefile", "Makefile"),
        # A text that may be a name or not is reported.
        ("**Changes**", None),
        ("Explanation:", None),
        ("### What is new", None),
        ("Here is the new file", None),
        ("how to use it.md", None),
        ("how to use it.md:", None),
        ("Datei:b.md", None),
        ("`greet()`", None),
        ("`x = 1`", None),
        ("https://example.org/a.py", None),
        ("`a.py` and `b.py`", None),
        ("Rename a.py to b.py:", None),
        ("src/b.py\n```python src/c.py", None),
        ("**b.py", None),
        ("b.py c.py", None),
        ("src/b.py,", None),
        ("\ufeffMakefile", None),
        ("And now the last one:", None),
        ("", None),
        # An edit that the workspace refuses is refused, and is not applied elsewhere.
        ("src\\b.py", None),
        ("C:\\project\\b.py", None),
        ("C:\\My Documents\\b.py", None),
        ("src\\Makefile", None),
        ("\\_\\_init\\_\\_.py", None),
        ("../b.py", None),
        ("/etc/passwd", None),
        ("~/b.py", None),
        (".git/hooks/pre-commit", None),
    ],
)
def test_a_second_new_file_is_written_under_its_name_or_reported(written, line, path):
    after, reported = written(second(line))
    wanted = {"src/a.py": "FIRST\n"} | ({path: "SECOND\n"} if path else {})
    assert after == wanted, reported
    assert bool(reported) == (path is None)


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("<<<<<<< SEARCH src/b.py", "src/b.py"),
        ("<<<<<<< SEARCH: Makefile", "Makefile"),
        ("<<<<<<< SEARCH (the second part)", None),
    ],
)
def test_a_name_behind_the_mark_counts(written, line, path):
    answer = "a.py\n" + NEW.format("FIRST") + "\n" + NEW.format("SECOND").replace("<<<<<<< SEARCH", line)
    after, reported = written(answer)
    assert after == {"a.py": "FIRST\n"} | ({path: "SECOND\n"} if path else {}), reported


def test_a_file_is_made_once_in_an_answer_or_not_at_all(written):
    for other in ("a.py", "./a.py", "`a.py`"):
        after, reported = written("a.py\n" + NEW.format("FIRST") + f"{other}\n" + NEW.format("SECOND"))
        assert (after, len(reported)) == ({}, 1), other
    diff = "--- /dev/null\n+++ b/a.py\n@@ -0,0 +1 @@\n+SECOND\n"
    after, reported = written("a.py\n" + NEW.format("FIRST") + diff)
    assert (after, len(reported)) == ({}, 1)
    after, reported = written("a.py\n" + NEW.format("FIRST") + "\nMakefile\n" + NEW.format("all:"), {"a.py": ""})
    assert after == {"a.py": "FIRST\n", "Makefile": "all:\n"}
    assert reported == []


def test_a_file_is_not_deleted_by_an_answer_that_also_writes_it(written):
    answer = "--- a/a.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-x = 1\na.py\n" + NEW.format("x = 2")
    after, reported = written(answer, {"a.py": "x = 1\n"})
    assert after == {"a.py": "x = 1\n"}
    assert len(reported) == 2


RENAME = "diff --git a/a.py b/c.py\nsimilarity index 90%\nrename from a.py\nrename to c.py\n"
FILES = {"a.py": "x = 1\ny = 2\nz = 3\n", "b.py": "x = 1\ny = 2\nz = 3\n"}
FIRST = "a.py\n" + CHANGE.format("x = 1", "x = 10")


@pytest.mark.parametrize(
    "between", ["", "\n", "\n\n", "```\n\n```python\n", "Then the second part of it:\n", "Then:\n"]
)
def test_a_change_without_a_name_is_for_the_file_of_the_one_before(written, between):
    answer = ("```python\n" if "```" in between else "") + FIRST + between + CHANGE.format("y = 2", "y = 20")
    after, reported = written(answer, FILES)
    assert after == {"a.py": "x = 10\ny = 20\nz = 3\n", "b.py": FILES["b.py"]}, reported


@pytest.mark.parametrize(
    ("between", "path"),
    [
        ("Now in b.py:\n", "b.py"),
        ("Next, edit `b.py`:\n", "b.py"),
        ("Step 2: b.py\n", "b.py"),
        ("`b.py` (modified)\n", "b.py"),
        ("\n\nb.py\n\n\n\n\n", "b.py"),
        ("The same as in b.py, since both read it:\n", None),
        ("b.py reads it as well, and so this one has to change, too.\nThe second part of it is this one:\n", None),
        ("**Other Module**\n", None),
        ("Procfile\n", None),
        ("c.py\n", None),
        ("my b.py\n", None),
        ("c.py\n<<<<<<< SEARCH\nq\n>>>>>>> REPLACE\n", None),
        ("c.py\n<<<<<<< SEARCH\nq\n=======\nr\nb.py\n", None),
        ("--- a/c.py\n+++ b/c.py\n@@ -1 +1 @@\n-q\n+r\n", None),
        ("*** Begin Patch\n*** Update File: c.py\n@@\n-q\n+r\n*** End Patch\n", None),
    ],
)
def test_a_change_is_never_written_to_another_file_than_was_meant(written, between, path):
    after, reported = written(FIRST + between + CHANGE.format("y = 2", "y = 20"), FILES)
    wanted = FILES | {"a.py": "x = 10\ny = 2\nz = 3\n"}
    # An edit without a name may be the second half of the named file's edit.
    names_another = between in {"Procfile\n", "c.py\n"}
    done = wanted | ({path: "x = 1\ny = 20\nz = 3\n"} if path else {}) if path or names_another else FILES
    assert after == done, reported
    assert bool(reported) == (path is None)


def test_two_files_of_the_same_base_name_are_two_files(written):
    answer = (
        "src/a.py\n" + NEW.format("FIRST") + "lib/a.py\n" + NEW.format("SECOND") + "a.py\n" + NEW.format("THIRD")
    )
    after, reported = written(answer)
    assert after == {"src/a.py": "FIRST\n", "lib/a.py": "SECOND\n", "a.py": "THIRD\n"}
    assert reported == []


def test_a_language_is_no_file(written):
    files = {"Makefile": "old\n", "src/Makefile": "old\n"}
    after, _ = written("src/Makefile\n```Makefile\n" + CHANGE.format("old", "new") + "```\n", files)
    assert after == {"Makefile": "old\n", "src/Makefile": "new\n"}


@pytest.mark.parametrize(
    ("answer", "paths"),
    [
        ("*** Begin Patch\n*** Update File: a.py\n@@\n-x = 1\n+x = 2\n", ["a.py"]),
        ("*** Begin Patch\n*** Update File: a.py\n@@\n-x = 1\nwhat\n+x = 2\n*** End Patch\n", ["a.py"]),
        ("*** Begin Patch\n*** Update File: a.py\n@@ def f():\n+x = 2\n*** End Patch\n", ["a.py"]),
        ("*** Begin Patch\n*** Update File: a.py\n x = 1\n*** End Patch\n", ["a.py"]),
        ("*** Begin Patch\n*** Update File: a.py\n*** End Patch\n", ["a.py"]),
        ("*** Begin Patch\n*** Add File: c.py\nx = 1\n+y = 2\n*** End Patch\n", ["c.py"]),
        ("*** Begin Patch\nx\n*** End Patch\n", [None]),
        ("diff --git a/a.py b/c.py\nsimilarity index 100%\ncopy from a.py\ncopy to c.py\n", ["c.py"]),
        (RENAME + "--- a/b.py\n+++ b/c.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n", ["b.py"]),
        ("--- a/a.py\n+++ b/c.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n", ["a.py"]),
        ("diff --git a/a.py b/a.py\nold mode 100644\nnew mode 120000\n", ["a.py"]),
        ("old mode 100644\nnew mode 100755\n", [None]),
        ("diff --git a/a.png b/a.png\nindex 1..2 100644\nGIT binary patch\nliteral 1\nAc00\n\n", ["a.png"]),
        ("diff --git a/a.png b/a.png\nindex 1..2 100644\nBinary files a/a.png and b/a.png differ\n", ["a.png"]),
        (
            "diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+/etc/passwd\n",
            ["l"],
        ),
        ("```diff\n@@ -1 +1 @@\n-x = 1\n+x = 2\n```\n", [None]),
        ("```diff\n-x = 1\n+x = 2\n```\n", [None]),
        ("*** a.py\n--- a.py\n***************\n*** 1,2 ****\n! x = 1\n--- 1,2 ----\n! x = 2\n", [None]),
        ("1c1\n< x = 1\n---\n> x = 2\n", [None]),
        ("a.py\n  <<<<<<< SEARCH\n  x = 1\n  =======\n  x = 2\n  >>>>>>> REPLACE\n", [None]),
        ("> a.py\n> <<<<<<< SEARCH\n> x = 1\n> =======\n> x = 2\n> >>>>>>> REPLACE\n", [None]),
        ("a.py\n<<<<<<< search\nx = 1\n=======\nx = 2\n>>>>>>> replace\n", [None]),
        ("a.py\n<<<<<<< HEAD\nx = 1\n=======\nx = 2\n>>>>>>> new\n", [None]),
        ("<write_to_file>\n<path>a.py</path>\n<content>\nx = 2\n</content>\n</write_to_file>\n", ["a.py"]),
        ('<edit path="a.py">\n<old>x = 1</old><new>x = 2</new>\n</edit>\n', ["a.py"]),
        ("```sh\ncat > a.py <<'EOF'\nx = 2\nEOF\n```\n", [None]),
        ("```bash\nsed -i 's/x = 1/x = 2/' a.py\n```\n", [None]),
        ('```json\n{"command": "str_replace", "path": "a.py", "old_str": "x", "new_str": "y"}\n```\n', [None]),
    ],
)  # fmt: skip
def test_an_edit_in_a_form_that_is_not_read_is_reported(written, answer, paths):
    read = parse_answer(answer, frozenset(FILES))
    assert [found.path for found in read.malformed] == paths
    assert read.hunks == ()
    after, reported = written(answer, FILES)
    assert after == FILES
    assert len(reported) == len(paths)


@pytest.mark.parametrize(("added", "is_short"), [("", True), ("+x = 2\n", False)])
def test_a_diff_with_fewer_new_lines_than_its_header_says_is_short(added, is_short):
    lines = f"--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-x = 1\n{added}".splitlines()
    assert read_file_diff(lines, 0).is_short is is_short


def test_a_binary_patch_ends_before_the_next_file():
    lines = ["GIT binary patch", "literal 1", "Ac00", "", "diff --git a/a.py b/a.py"]
    assert lines[_after_binary(lines, 0)] == lines[-1]


def test_an_edit_of_cline_is_read(written):
    for begin in ("------- SEARCH", "<<<<<<< SEARCH"):
        end = "+++++++ REPLACE" if begin[0] == "-" else ">>>>>>> REPLACE"
        body = f"<path>a.py</path>\n<diff>\n{begin}\nx = 1\n=======\nx = 2\n{end}\n</diff>\n"
        after, reported = written(f"<replace_in_file>\n{body}</replace_in_file>\n", FILES)
        assert (after["a.py"], reported) == ("x = 2\ny = 2\nz = 3\n", [])


@pytest.mark.parametrize(
    "answer",
    [
        "It adds numbers. In `a.py`:\n\n```python\nx = 1\n```\n",
        "**a.py**\n\n```python\nx = 1\ny = 2\n```\n\nThe first line sets x.",
        "Run it so:\n\n```sh\npython a.py\n```\n",
        "```console\n$ cat a.py\n```\nThat is all.",
        "| a | b |\n|---|---|\n| 1 | 2 |\n\n---\n\n* one\n* two\n",
        "-----Original Message-----\nFrom: a\n\n> -----\n",
        "Use a <path> element, an `<edit>` or a List<File> there.",
    ],
)
def test_an_explanation_is_no_edit(written, answer):
    assert written(answer, FILES) == (FILES, [])


@pytest.mark.parametrize(("name", "after"), [("a.py", "y\nw\n"), ("b.py", "x\nz\n")])
def test_a_block_without_a_name_is_for_the_last_file_unless_another_was_mentioned(written, name, after):
    between = f"The same mistake is in `{name}`.\n" + "It has a loop.\n" * 9
    answer = "a.py\n" + CHANGE.format("x", "y") + between + CHANGE.format("z", "w")
    files, reported = written(answer, {"a.py": "x\nz\n", "b.py": "z\n"})
    assert files == {"a.py": after, "b.py": "z\n"}
    assert bool(reported) == (name == "b.py")


@pytest.mark.parametrize(
    "piece",
    [
        "x\n```\n```\n",
        "`",
        "**",
        "> ",
        "# ",
        "```a.py\nx\n```\n",
        "a.py\n" + " " * 5000 + "(\n",
        "```diff\n-\n",
        "a.md\n```md\n",
        "````a.md\n",
        "<edit>\n<path>" + " " * 5000 + "\nx\n",
        "*** Begin Patch\n*** Update File: x" + " " * 5000 + "y\n",
        "```" + " " * 5000 + "`\n",
        "````a.md\n```\n",
        "a.md\n```md\n```\n",
        "\n" * 99 + "```x\ny\n```\n",
        "@@ -1 +1 @@\n",
        "1c1\n< \n",
        "<edit>\n",
        "<<<<<<< HEAD\n",
        "*** Begin Patch\n",
        "*** Update File: a\n",
        "rename from a\n",
        "diff --git a/a b/a\n",
        "GIT binary patch\n",
        "<<<<<<< SEARCH\n",
    ],
)
def test_a_long_hostile_answer_is_read_in_a_moment(piece):
    text = piece * (MAX_ANSWER_BYTES // len(piece) // 32) + "\n" + CHANGE.format("x", "y")
    begun = time.process_time()
    parse_answer(text, frozenset(FILES))
    assert time.process_time() - begun < 5  # of CPU time; quadratic time would be much longer


@pytest.mark.parametrize(("between", "path"), [(2, "src/a.py"), (3, None)])
def test_a_name_three_lines_before_a_block_counts(between, path):
    lines = ["src/a.py", *["This is a change."] * between]
    found = name_before(lines, range(len(lines)), None, "", frozenset({"src/a.py"}))
    assert (found.path, found.doubt) == (path, "")
