"""Exceptions that Python cannot raise become one line of the server's log, without a traceback."""

import subprocess
import sys

import pytest

# If descriptors run out, a half-created event loop is closed, which fails too.
HALF_MADE = """
import asyncio, gc, logging, resource
from engine.server.log_rate_limit import ignored_in_a_line
logging.basicConfig(format="%(levelname)s %(message)s")
ignored_in_a_line()
resource.setrlimit(resource.RLIMIT_NOFILE, (5, 5))
try:
    asyncio.new_event_loop()
except OSError:
    pass
gc.collect()
"""


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="the limit of descriptors is Linux's")
def test_an_event_loop_that_is_half_made_leaves_no_traceback():
    done = subprocess.run(
        [sys.executable, "-c", HALF_MADE], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "WARNING ignored in" in done.stderr
