import os
import sys

import pytest

from app.code.errors import GitFailed
from app.code.git import Git
from tests.support.code_project import git


@pytest.fixture
def repository(project):
    git(project, "init", "-q")
    git(project, "add", ".")
    git(project, "commit", "-qm", "Add shapes")
    return project


def test_changes_and_history_are_told(repository):
    assert Git(repository).available()
    assert Git(repository).uncommitted() == frozenset()
    (repository / "tool.sh").write_text("deploy() { :; }\n")
    (repository / "new file.py").write_text("x = 1\n")
    assert Git(repository).uncommitted() == {"tool.sh", "new file.py"}
    assert "+deploy() { :; }" in Git(repository).diff().text
    assert "new file.py" not in Git(repository).diff().text
    git(repository, "add", ".")
    assert "new file.py" in Git(repository).diff().text
    assert Git(repository).recent_subjects() == ["Add shapes"]


def test_paths_are_relative_to_the_opened_folder(repository):
    (repository / "src" / "core.go").write_text("package core\n")
    (repository / "tool.sh").write_text("\n")
    inner = Git(repository / "src")
    assert inner.uncommitted() == {"core.go"}
    assert "a/core.go" in inner.diff().text
    assert "tool.sh" not in inner.diff().text


def test_a_folder_outside_git_and_one_without_commits_are_no_error(project, tmp_path):
    with pytest.raises(GitFailed):
        Git(tmp_path).uncommitted()
    assert not Git(tmp_path).available()
    git(project, "init", "-q")
    git(project, "add", "tool.sh")
    assert "deploy" in Git(project).diff().text
    assert Git(project).recent_subjects() == []


def _driver(name, trap):
    return f'[filter "{name}"]\n clean = "{trap}"\n smudge = "{trap}"\n[diff "{name}"]\n textconv = "{trap}"\n'


def _filter(name):
    def plant(repository, trap):
        with (repository / ".git" / "config").open("a") as config:
            config.write(_driver(name, trap))
        attribute = name.replace('\\"', '"')
        (repository / ".gitattributes").write_text(f"* filter={attribute} diff={attribute}\n")

    return plant


def _included(repository, trap):
    (repository / "tools.inc").write_text(_driver("evil", trap))
    git(repository, "config", "include.path", "../tools.inc")
    (repository / ".gitattributes").write_text("* filter=evil diff=evil\n")


def _settings(**settings):
    def plant(repository, trap):
        for key, value in settings.items():
            git(repository, "config", key.replace("__", "."), value or trap)

    return plant


def _worktree_settings(repository, trap):
    git(repository, "config", "extensions.worktreeConfig", "true")
    (repository / ".git" / "config.worktree").write_text(_driver("evil", trap))
    (repository / ".gitattributes").write_text("* filter=evil diff=evil\n")


def _submodule(repository, trap):
    inner = repository / "sub"
    inner.mkdir()
    git(inner, "init", "-q")
    (inner / "f.txt").write_text("hello\n")
    git(inner, "add", ".")
    git(inner, "commit", "-qm", "inner")
    git(repository, "add", "sub")
    git(repository, "commit", "-qm", "outer")
    _filter("evil")(inner, trap)
    git(inner, "config", "core.fsmonitor", trap)
    (inner / "f.txt").write_text("jello\n")


def _hook(repository, trap):
    hook = repository / ".git" / "hooks" / "post-index-change"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\n{trap}\n")
    hook.chmod(0o755)


def _partial_clone(repository, trap):
    """An object is missing, and the remote that could supply it is a program."""
    git(repository, "config", "extensions.partialClone", "origin")
    git(repository, "config", "remote.origin.promisor", "true")
    git(repository, "config", "remote.origin.url", str(repository))
    git(repository, "config", "remote.origin.uploadpack", f"{trap};")
    blob = git(repository, "rev-parse", "HEAD:tool.sh").stdout.decode().strip()
    (repository / ".git" / "objects" / blob[:2] / blob[2:]).unlink()


def _beside_git(repository, trap):
    """Make the folder look like a bare repository, too."""
    for name in ("objects", "refs"):
        (repository / name).mkdir()
    (repository / "HEAD").write_text("ref: refs/heads/main\n")
    (repository / "config").write_text(f"[core]\n bare = true\n fsmonitor = {trap}\n" + _driver("evil", trap))
    (repository / ".gitattributes").write_text("* filter=evil diff=evil\n")


TRAPS = {
    "settings": _settings(
        core__fsmonitor="",
        core__pager="",
        core__editor="",
        diff__external="",
        gpg__program="",
        log__showSignature="true",
    ),
    "driver": _filter("evil"),
    "driver with an equals sign": _filter("a=b"),
    "driver with a quote": _filter('a\\"b'),
    "driver with a dot": _filter("a.clean"),
    "included file": _included,
    "settings of the work tree": _worktree_settings,
    "submodule": _submodule,
    "hook": _hook,
    "partial clone": _partial_clone,
    "bare repository": _beside_git,
}


@pytest.mark.skipif(sys.platform == "win32", reason="the trap is a shell script")
@pytest.mark.parametrize("plant", TRAPS.values(), ids=TRAPS.keys())
def test_programs_that_the_project_configures_do_not_run(repository, tmp_path, plant):
    witness = tmp_path / "owned"
    plant(repository, f"touch '{witness}'; cat")
    witness.unlink(missing_ok=True)  # preparing the trap may have triggered it
    (repository / "tool.sh").write_text("changed\n")
    asked = Git(repository)
    assert asked.available()
    assert "tool.sh" in asked.uncommitted()
    try:
        assert "changed" in asked.diff().text
    except GitFailed:
        assert plant is _partial_clone  # the object is missing
    asked.recent_subjects()
    assert not witness.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="the trap is a shell script")
def test_a_program_of_the_project_is_not_taken_for_git(repository, tmp_path, monkeypatch):
    trap = repository / "git"
    trap.write_text(f"#!/bin/sh\ntouch '{tmp_path / 'owned'}'\n")
    trap.chmod(0o755)
    monkeypatch.chdir(repository)
    monkeypatch.setenv("PATH", f".{os.pathsep}{os.pathsep}{os.environ['PATH']}")
    assert Git(repository).available()
    assert not (tmp_path / "owned").exists()


def test_linked_work_trees_packed_references_and_a_split_index_are_read(repository, tmp_path):
    git(repository, "pack-refs", "--all")
    git(repository, "update-index", "--split-index")
    linked = tmp_path / "linked"
    git(repository, "worktree", "add", "-q", str(linked))
    (linked / "tool.sh").write_text("elsewhere\n")
    assert Git(linked).uncommitted() == {"tool.sh"}
    assert Git(repository).uncommitted() == frozenset()
    assert Git(repository).recent_subjects() == ["Add shapes"]


def test_how_the_project_writes_its_files_counts(repository):
    git(repository, "config", "core.autocrlf", "true")
    before = (repository / "tool.sh").read_bytes()
    (repository / "tool.sh").write_bytes(before.replace(b"\n", b"\r\n"))
    assert Git(repository).diff().text == ""
    (repository / ".git" / "info" / "exclude").write_text("*.tmp\n")
    (repository / "a.tmp").write_text("x")
    assert "a.tmp" not in Git(repository).uncommitted()


def test_a_repository_with_longer_hashes_is_read(project):
    git(project, "init", "-q", "--object-format=sha256")
    git(project, "add", ".")
    git(project, "commit", "-qm", "Longer")
    (project / "tool.sh").write_text("changed\n")
    assert Git(project).uncommitted() == {"tool.sh"}
    assert "+changed" in Git(project).diff().text
