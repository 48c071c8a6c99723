"""Log output of a collection's failed background work: a bug with its traceback, a full disk in one line."""

import errno
import logging

import pytest

from engine.documents.registry import _complain


@pytest.mark.parametrize(
    ("error", "level", "traced"),
    [(OSError(errno.ENOSPC, "full"), logging.WARNING, False), (ValueError("a bug"), logging.ERROR, True)],
)
def test_a_full_disk_is_no_bug(caplog, error, level, traced):
    _complain("a collection could not be brought up to date", error)
    (record,) = caplog.records
    assert record.levelno == level
    assert bool(record.exc_info) == traced
