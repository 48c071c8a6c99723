"""Huge pages of a real runner in a virtual machine: the pause after a response merges them."""

import asyncio
import sys
from pathlib import Path

import pytest

from engine.runner.llama.native import huge_pages
from tests.support.runner_calls import collect, with_runner

SYSTEM = Path("/sys/kernel/mm/transparent_hugepage/enabled")
GROWN_KIB = 16 << 10


@pytest.mark.timeout(300)
@pytest.mark.skipif(
    sys.platform != "linux" or not huge_pages.virtual(), reason="elsewhere a load takes them at once"
)
def test_the_pause_behind_an_answer_makes_pages_large_and_changes_no_answer(bundled_model):
    if not SYSTEM.exists() or "[never]" in SYSTEM.read_text():
        pytest.skip("this system gives no large pages")

    def large_kib(runner):
        rollup = Path(f"/proc/{runner.pid}/smaps_rollup").read_text()
        return int(rollup.split("AnonHugePages:")[1].split()[0])

    async def work(runner):
        at_load = large_kib(runner)
        first, _ = await collect(runner, [40, 41, 42], max_tokens=8)
        for _ in range(600):
            if large_kib(runner) >= at_load + GROWN_KIB:
                break
            await asyncio.sleep(0.1)
        again, _ = await collect(runner, [40, 41, 42], max_tokens=8)
        return at_load, large_kib(runner), first, again

    at_load, later, first, again = with_runner(bundled_model, work, n_ctx=8192, kv_cells=8192)
    assert later >= at_load + GROWN_KIB
    assert again == first
