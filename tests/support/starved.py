"""A system without file descriptors, for real."""

from contextlib import contextmanager

import pytest


@contextmanager
def no_descriptors():
    """Nothing can be opened by this process meanwhile. Skips where there is no such limit."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
