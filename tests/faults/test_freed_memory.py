"""A real server that was sent a large body holds no more memory than before, a few seconds later."""

import sys

import httpx2
import psutil
import pytest

from tests.support.servers import RunningServer, wait_for


@pytest.mark.timeout(300)
@pytest.mark.skipif(sys.platform != "linux", reason="heaps of glibc")
def test_what_a_large_body_needed_is_given_back(tmp_path):
    server = RunningServer(tmp_path)
    try:
        process = psutil.Process(server.process.pid)

        def ready():
            return "/tessera/v1/jobs" in httpx2.get(f"{server.url}/openapi.json", timeout=60).text

        wait_for(ready, 60, "all routes")
        before = process.memory_info().rss
        large = {"model": "spark", "messages": [{"role": "user", "content": "a" * 60_000_000}]}
        many = {"model": "spark", "messages": [{"role": "user", "content": "a"}] * 500_000}
        for body in (large, many, large):
            refused = httpx2.post(f"{server.url}/v1/chat/completions", json=body, timeout=120)
            assert 400 <= refused.status_code < 500
        # By default the C library mostly never returns 85 to 145 MB of it.
        wait_for(lambda: process.memory_info().rss < before + 20e6, 120, "the memory of large bodies")
    finally:
        server.stop()
