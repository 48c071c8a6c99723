"""Shared fixtures of the end-to-end tests."""

import pytest

from tests.support.servers import RunningServer


@pytest.fixture(scope="module")
def beside(tmp_path_factory):
    """A server that the terminal's commands find, for the tests of one file."""
    running = RunningServer(tmp_path_factory.mktemp("beside"))
    yield running
    running.stop()
