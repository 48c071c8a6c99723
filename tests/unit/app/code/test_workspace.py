import os
import sys

import pytest

from app.code.errors import FileMissing, NotText, PathRefused
from app.code.workspace import Workspace
from devices.errors import TesseraError


@pytest.fixture
def project(tmp_path):
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    (root / "src" / "a.py").write_text("x = 1\n")
    (tmp_path / "secret.txt").write_text("secret")
    return root


@pytest.mark.parametrize(
    "path",
    [
        "../secret.txt",
        "src/../../secret.txt",
        "/etc/passwd",
        "~/secret",
        "C:/Windows/win.ini",
        "c:secret",
        "src\\..\\..\\secret.txt",
        "src/a.py\0.txt",
        "src/a\n.py",
        "src/\u202eyp.a",
        "src/a\u200b.py",
        "",
        ".",
        "./.",
        ".git/config",
        ".GIT/hooks/pre-commit",
        "src/.git/config",
        ".git./config",
        "git~1/config",
        "a" * 5000,
        "src/\udcff.py",
    ],
)
@pytest.mark.parametrize("action", ["read", "write", "delete"])
def test_paths_that_lead_out_or_deceive_are_refused(project, path, action):
    before = sorted(str(p) for p in project.parent.rglob("*"))
    workspace = Workspace(project)
    arguments = (path, "owned") if action == "write" else (path,)
    with pytest.raises(PathRefused):
        getattr(workspace, action)(*arguments)
    assert sorted(str(p) for p in project.parent.rglob("*")) == before
    assert (project.parent / "secret.txt").read_text() == "secret"


@pytest.mark.skipif(sys.platform == "win32", reason="making links needs a privilege there")
@pytest.mark.parametrize("path", ["link.txt", "dir/secret.txt", "inside.py", "src/loop", "fifo"])
def test_links_and_special_files_are_not_followed_even_when_they_stay_inside(project, path):
    (project / "link.txt").symlink_to(project.parent / "secret.txt")
    (project / "dir").symlink_to(project.parent)
    (project / "inside.py").symlink_to(project / "src" / "a.py")
    (project / "src" / "loop").symlink_to("loop")
    os.mkfifo(project / "fifo")
    workspace = Workspace(project)
    for action in (workspace.read, workspace.delete, lambda p: workspace.write(p, "owned")):
        with pytest.raises(PathRefused):
            action(path)
    assert (project.parent / "secret.txt").read_text() == "secret"
    assert (project / "src" / "a.py").read_text() == "x = 1\n"
    names = {name for name, _ in workspace.list_folder()}
    assert names == {"src"}


@pytest.mark.skipif(sys.platform == "win32", reason="making links needs a privilege there")
def test_a_link_swapped_in_between_two_accesses_is_not_followed(project):
    workspace = Workspace(project)
    workspace.read("src/a.py")
    (project / "src").rename(project / "old")
    (project / "src").symlink_to(project.parent)
    with pytest.raises(PathRefused):
        workspace.read("src/secret.txt")
    with pytest.raises(PathRefused):
        workspace.write("src/new.txt", "owned")
    assert not (project.parent / "new.txt").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX permissions")
def test_writing_keeps_permissions_and_leaves_no_temporary_file(project):
    script = project / "run.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o750)
    Workspace(project).write("run.sh", "#!/bin/sh\necho\n")
    assert script.stat().st_mode & 0o777 == 0o750
    assert sorted(p.name for p in project.iterdir()) == ["run.sh", "src"]


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX hard links")
def test_writing_a_hard_link_does_not_write_through_to_the_other_name(project):
    os.link(project.parent / "secret.txt", project / "hard.txt")
    Workspace(project).write("hard.txt", "mine")
    assert (project.parent / "secret.txt").read_text() == "secret"


def test_bytes_that_are_no_utf8_survive_a_round_trip(project):
    data = b"caf\xe9 = 1\r\n\xff\xfe\n"
    (project / "latin.py").write_bytes(data)
    workspace = Workspace(project)
    workspace.write("latin.py", workspace.read("latin.py").text)
    assert (project / "latin.py").read_bytes() == data


@pytest.mark.parametrize(("data", "reason"), [(b"a\0b", "binary"), (b"x" * 2000, "larger")])
def test_what_is_no_text_is_named_with_its_size(project, data, reason):
    (project / "blob").write_bytes(data)
    with pytest.raises(NotText, match=reason) as caught:
        Workspace(project).read("blob", limit_bytes=1000)
    assert caught.value.size_bytes == len(data)


@pytest.mark.parametrize("path", ["nothing.py", "no/such/folder.py", "src"])
def test_a_missing_file_is_missing_and_nothing_else(project, path):
    with pytest.raises(FileMissing):
        Workspace(project).read(path)
    assert not Workspace(project).exists(path)


def test_folders_that_are_missing_are_counted(project):
    workspace = Workspace(project)
    counts = {
        path: workspace.num_missing_folders(path) for path in ("b.py", "src/b.py", "src/new/b.py", "x/y/b.py")
    }
    assert counts == {"b.py": 0, "src/b.py": 0, "src/new/b.py": 1, "x/y/b.py": 2}


def test_new_folders_are_made_only_below_the_project(project):
    workspace = Workspace(project)
    workspace.write("deep/er/file.txt", "x")
    assert (project / "deep" / "er" / "file.txt").read_text() == "x"
    with pytest.raises(TesseraError):
        workspace.write("src/a.py/under.txt", "x")


def test_names_that_windows_reads_as_something_else_are_refused_there(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    workspace = Workspace(tmp_path)
    for name in ("aux.txt", "CON", "nul.tar.gz", "a:b", "dots..", "space "):
        with pytest.raises(PathRefused, match="Windows gives this name another meaning"):
            workspace._check_part(name, name)
    for name in ("auxiliary.txt", "a.con", ".hidden"):
        workspace._check_part(name, name)
