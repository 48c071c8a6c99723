"""Checks that repositories created by a sandboxed command cannot make the user's git run programs."""

import shutil
import subprocess

import pytest

from app.code.agent import sandbox
from app.code.agent.command import run_command
from app.code.agent.git_programs import ASIDE
from app.code.agent.sandbox import SandboxPermissions
from tests.support.code_project import git

pytestmark = pytest.mark.skipif(sandbox.missing() is not None, reason=f"no sandbox: {sandbox.missing()}")

MADE = "git init -q sub; cd sub; git -c user.name=T -c user.email=t@e.org commit -q --allow-empty -m x; "
TRAP = "git config core.fsmonitor 'touch $PWD/planted; false'; touch f; git add f; "
LINKED = "git -C .. update-index --add --cacheinfo 160000,$(git rev-parse HEAD),sub; cd ..; "
ASIDE_CONFIG = f".git/config{ASIDE}"
WAYS = {
    "a submodule": MADE + TRAP + LINKED,
    "a file that leads elsewhere": MADE + TRAP + LINKED + "mv sub/.git evil; echo 'gitdir: ../evil' > sub/.git; ",
    "a link that leads elsewhere": MADE + TRAP + LINKED + "mv sub/.git evil; ln -s ../evil sub/.git; ",
    "an include": MADE + "git config include.path ../planted.inc; git config -f planted.inc core.fsmonitor "
    "'touch $PWD/planted; false'; touch f; git add f; " + LINKED,
}


def shell(project, words):
    return run_command(["sh", "-c", words], project, 60, SandboxPermissions())


def persons_git(project):
    subprocess.run(["git", "status"], cwd=project, capture_output=True, check=False)
    return list(project.rglob("planted"))


@pytest.fixture
def repository(project):
    git(project, "init", "-q")
    git(project, "add", ".")
    git(project, "-c", "user.name=T", "-c", "user.email=t@e.org", "commit", "-qm", "first")
    return project


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_the_persons_git_runs_nothing_of_a_repository_that_a_command_made(repository, way):
    done = shell(repository, way + "find . -name planted -delete")
    assert done.exit_code == 0, done.output
    assert not persons_git(repository)
    assert ASIDE in done.output


def test_a_repository_that_was_there_keeps_its_settings(repository):
    inner = repository / "sub"
    inner.mkdir()
    git(inner, "init", "-q")
    git(inner, "-c", "user.name=T", "-c", "user.email=t@e.org", "commit", "-q", "--allow-empty", "-m", "x")
    git(repository, "add", "sub")
    before = (inner / ".git" / "config").read_bytes()
    way = (
        "cd sub; "
        + TRAP
        + "echo x > .git/commondir; printf '#!/bin/sh\\ntouch planted' > .git/hooks/post-checkout; "
    )
    shell(repository, way + "mv .git old; cd ..; find . -name planted -delete")
    assert (inner / ".git" / "config").read_bytes() == before
    assert not (inner / ".git" / "hooks" / "post-checkout").exists()
    assert not persons_git(repository)


def test_a_folder_that_looks_like_a_bare_repository_names_no_programs(repository):
    done = shell(repository, "git init -q --bare b; git -C b config core.fsmonitor 'touch planted'")
    assert done.exit_code == 0, done.output
    assert "b/config" in done.output
    assert not (repository / "b" / "config").exists()


def test_a_plain_new_repository_is_left_as_it_is(repository):
    done = shell(repository, MADE + "git remote add origin https://example.org/x.git")
    assert done.exit_code == 0, done.output
    assert ASIDE not in done.output
    assert b"example.org" in git(repository / "sub", "config", "remote.origin.url").stdout


def test_a_project_without_a_repository_gets_none_that_names_programs(project):
    shutil.rmtree(project / ".git", ignore_errors=True)
    done = shell(
        project, "git init -q; git config core.fsmonitor 'touch planted; false'; git add tool.sh; rm planted"
    )
    assert ASIDE_CONFIG in done.output
    assert not persons_git(project)
