"""Simulates a system that is out of file descriptors."""

from contextlib import contextmanager

import pytest


@contextmanager
def no_descriptors():
    """Prevent this process from opening files. Skips the test if the system has no such limit."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
