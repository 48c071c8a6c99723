import sys

import pytest

from app.code.errors import GitFailed
from app.code.git import Git
from tests.unit.app.code.conftest import git


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
    assert not Git(repository).diff(staged=True).text
    git(repository, "add", ".")
    assert "new file.py" in Git(repository).diff(staged=True).text
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


@pytest.mark.skipif(sys.platform == "win32", reason="the trap is a shell script")
def test_programs_that_the_project_configures_do_not_run(repository, tmp_path):
    witness = tmp_path / "owned"
    trap = f"touch '{witness}'; cat"
    for key, value in {
        "core.fsmonitor": trap,
        "core.pager": trap,
        "core.editor": trap,
        "diff.external": trap,
        "diff.evil.textconv": trap,
        "diff.evil.command": trap,
        "filter.evil.clean": trap,
        "filter.evil.smudge": trap,
        "filter.evil.process": trap,
        "log.showSignature": "true",
        "gpg.program": trap,
    }.items():
        git(repository, "config", key, value)
    (repository / ".gitattributes").write_text("* filter=evil diff=evil\n")
    (repository / "tool.sh").write_text("changed\n")
    asked = Git(repository)
    assert asked.available()
    assert "tool.sh" in asked.uncommitted()
    assert "changed" in asked.diff().text
    asked.recent_subjects()
    assert not witness.exists()
