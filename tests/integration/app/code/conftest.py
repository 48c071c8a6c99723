"""Fixtures for tests of the coding agent: a small project, and each kind of sandbox."""

import pytest

from app.code.agent import sandbox
from devices import landlock
from tests.support.code_project import index, project

__all__ = ["index", "kind", "project"]


@pytest.fixture(params=["bubblewrap", "landlock"])
def kind(request, monkeypatch):
    """The sandbox that commands run in; skipped where it does not exist."""
    if request.param == "landlock":
        if not landlock.version():
            pytest.skip("no Landlock")
        monkeypatch.setattr(sandbox, "without_bubblewrap", lambda: "switched off")
    elif sandbox.without_bubblewrap() is not None:
        pytest.skip(f"no bubblewrap: {sandbox.without_bubblewrap()}")
    return request.param
