import os
import sys
import time
from pathlib import Path

import pytest

from app.code.index import project as workers
from app.code.index.database import index_path
from app.code.index.project import ProjectIndex
from app.code.index.walk import is_ignored, walk
from app.code.index.worker import ParsedFile
from app.code.workspace import Workspace
from devices import child
from engine.documents.walk import Walk, is_wanted


def paths(root):
    return [file.path for file in walk(root)]


def test_ignores_are_those_of_git_nested_and_negated(project):
    (project / ".gitignore").write_text("*.log\nbuild/\n/only_here.txt\n")
    (project / "src" / ".gitignore").write_text("!keep.log\nweb/*.gen.ts\n")
    (project / ".git" / "info").mkdir(parents=True)
    (project / ".git" / "info" / "exclude").write_text("private.txt\n")
    for name in (
        "a.log",
        "src/keep.log",
        "src/web/x.gen.ts",
        "build/out.py",
        "only_here.txt",
        "src/only_here.txt",
        "private.txt",
        "node_modules/left/pad.js",
        ".git/config",
        "data.gguf",
        "env/lib/site.py",
        "env/pyvenv.cfg",
    ):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("x = 1\n")
    found = set(paths(project))
    assert {"src/keep.log", "src/only_here.txt", "src/shapes.py"} <= found
    gone = {"a.log", "src/web/x.gen.ts", "build/out.py", "only_here.txt", "private.txt", "data.gguf"}
    assert not found & (gone | {"node_modules/left/pad.js", ".git/config", "env/lib/site.py"})
    for path in [*found, *gone]:
        assert is_ignored(project, path) == (path not in found), path
    # A collection of the same folder follows the same files, and those without text.
    files = Walk([str(project)]).files()
    listed = {Path(file.path).relative_to(project).as_posix() for file in files if not file.skipped}
    assert {"src/keep.log", "src/only_here.txt", "src/shapes.py"} <= listed
    assert listed & gone == {"data.gguf"}
    for path in [*listed, *gone]:
        assert is_wanted(str(project / path), str(project)) == (path in listed), path


@pytest.mark.skipif(sys.platform == "win32", reason="making links needs a privilege there")
def test_links_are_not_walked_and_hostile_names_are_left_out(project):
    (project.parent / "outside").mkdir()
    (project.parent / "outside" / "secret.py").write_text("password = 1\n")
    (project / "linked").symlink_to(project.parent / "outside")
    (project / "linked.py").symlink_to(project.parent / "outside" / "secret.py")
    (project / "loop").symlink_to(project)
    (project / "new\nline.py").write_text("x = 1\n")
    (project / "esc\x1b[31m.py").write_text("x = 1\n")
    os.mkfifo(project / "pipe.py")
    assert sorted(paths(project)) == sorted(p for p in paths(project) if p.isprintable() and "link" not in p)
    assert not any("loop" in p or "pipe" in p for p in paths(project))


def test_symbols_of_every_language_are_found_with_scope_and_lines(index):
    assert index.refresh().num_parsed == 9
    expected = {
        "Circle": ("class", "", 1),
        "area": ("method", "Circle", 2),
        "unit": ("function", "", 6),
        "Options": ("interface", "", 1),
        "listen": ("method", "HttpServer", 3),
        "Ring": ("struct", "", 1),
        "spin": ("method", "Ring", 3),
        "Wheel": ("type", "", 3),
        "Roll": ("method", "", 5),
        "start": ("method", "Main", 2),
        "node": ("struct", "", 1),
        "find_node": ("function", "", 2),
        "norm": ("method", "geo.Point", 2),
        "deploy": ("function", "", 1),
        "Install": ("heading", "", 5),
    }
    for name, (kind, scope, line) in expected.items():
        hit = index.database.symbols_named(name)[0]
        assert (name, hit.kind, hit.scope, hit.line) == (name, kind, scope, line)
    (area,) = index.database.symbols_named("circle.area".replace("c", "C", 1))
    assert (area.line, area.end_line, area.signature) == (2, 3, "def area(self):")


def test_search_finds_words_stems_and_parts_of_names(index):
    index.refresh()
    for query, path in (
        ("spaceships", "tool.sh"),
        ("server", "src/web/app.ts"),
        ('"find_node"', "src/low.c"),
        ("circle", "src/shapes.py"),
    ):
        assert path in [hit.path for hit in index.database.search(query, 3)], query


def test_a_refresh_touches_only_what_changed(index, project):
    index.refresh()
    assert index.refresh().num_parsed == 0
    (project / "src" / "shapes.py").write_text("def fresh():\n    return 'zebra'\n")
    (project / "tool.sh").unlink()
    done = index.refresh()
    assert (done.num_parsed, done.num_removed) == (1, 1)
    assert not index.database.symbols_named("Circle")
    assert [hit.path for hit in index.database.search("zebra", 3)] == ["src/shapes.py"]
    assert not list(index.database.search("spaceship", 3))


def test_one_edited_file_is_updated_without_a_walk(index, project):
    index.refresh()
    (project / "new.py").write_text("def brand_new():\n    pass\n")
    (project / "tool.sh").unlink()
    done = index.update(["new.py", "tool.sh", "../outside.py", "src/shapes.py"])
    assert (done.num_parsed, done.num_removed) == (2, 2)
    assert index.database.symbols_named("brand_new")
    assert not index.database.symbols_named("deploy")


def test_an_index_survives_a_restart_and_a_broken_one_is_built_anew(index, project, tmp_path):
    index.refresh()
    index.close()
    again = ProjectIndex(Workspace(project), tmp_path / "cache", num_workers=1)
    assert again.refresh().num_parsed == 0
    again.close()
    (database,) = (tmp_path / "cache").rglob("index.db")
    database.write_bytes(b"not a database at all" * 100)
    repaired = ProjectIndex(Workspace(project), tmp_path / "cache", num_workers=1)
    assert repaired.refresh().num_parsed == 9
    repaired.close()


def test_binary_minified_and_vanishing_files_are_named_with_their_reason(index, project):
    (project / "blob.txt").write_bytes(b"a\0b" * 100)
    (project / "min.js").write_text("var a=1;" * 5000)
    index.refresh()
    problems = index.database.problems()
    assert "binary" in problems["blob.txt"]
    assert "lines" in problems["min.js"]
    assert "blob.txt" not in index.database.paths()


def test_a_file_that_kills_the_parser_is_left_out_and_the_rest_is_indexed(index, project, monkeypatch):
    """The child process ends itself on one path, like a crash in a grammar."""
    for number in range(40):
        (project / f"f{number:02}.py").write_text(f"def f{number}():\n    pass\n")
    killer = project.parent / "killer.py"
    killer.write_text(
        "import os, sys\nfrom app.code.index import worker\nparse = worker.parse_file\n"
        "def dying(workspace, path):\n    if path == 'f07.py':\n        os._exit(139)\n"
        "    return parse(workspace, path)\n"
        "worker.parse_file = dying\nworker.main()\n"
    )
    monkeypatch.setattr(child, "child_command", lambda _module, *rest: (sys.executable, str(killer), *rest))
    index.refresh()
    assert list(index.database.problems()) == ["f07.py"]
    assert "139" in index.database.problems()["f07.py"]
    assert len(index.database.indexed_files()) == 49
    assert index.database.symbols_named("f39")


def test_a_file_that_stalls_the_parser_is_left_out(index, project, monkeypatch):
    staller = project.parent / "staller.py"
    staller.write_text(
        "import time\nfrom app.code.index import worker\nparse = worker.parse_file\n"
        "def slow(workspace, path):\n    if path == 'tool.sh':\n        time.sleep(60)\n"
        "    return parse(workspace, path)\n"
        "worker.parse_file = slow\nworker.main()\n"
    )
    monkeypatch.setattr(child, "child_command", lambda _module, *rest: (sys.executable, str(staller), *rest))
    monkeypatch.setattr(workers, "PARSE_LIMIT_S", 2.0)
    monkeypatch.setattr(child, "_STALLED_S", 2.0)
    index.refresh()
    assert list(index.database.problems()) == ["tool.sh"]
    assert "longer" in index.database.problems()["tool.sh"]


def test_stopping_early_leaves_no_thread_behind(index):
    results = index._pool.parse([f"missing{n}.py" for n in range(100)])
    assert isinstance(next(results), ParsedFile)
    results.close()


def test_every_setting_of_the_database_holds(tmp_path):
    from engine.core.index_database import open_index

    db = open_index(tmp_path / "index.db", "", 1)
    assert (db.pragma("journal_mode"), db.pragma("foreign_keys"), db.pragma("synchronous")) == ("wal", 1, 1)
    db.close()


def test_indexes_of_projects_that_nobody_opens_are_deleted(tmp_path):
    places = {}
    for name in ("old", "recent", "open"):
        (tmp_path / name).mkdir()
        opened = ProjectIndex(Workspace(tmp_path / name), tmp_path / "cache")
        places[name] = index_path(tmp_path / "cache", (tmp_path / name).resolve())
        opened.close()
    for name, days in (("old", 181), ("recent", 170), ("open", 181)):
        os.utime(places[name], (0, time.time() - days * 86_400))
    ProjectIndex(Workspace(tmp_path / "open"), tmp_path / "cache").close()
    assert {name: path.exists() for name, path in places.items()} == {"old": False, "recent": True, "open": True}
