"""The cache of a long context uses no memory and no time until it is filled: a real runner on the CPU."""

import sys
from pathlib import Path

import pytest

from tests.support.models.shapes import scaled, write_shape
from tests.support.runner_calls import collect, with_runner

PROMPT = [5, 6, 7]
MIB = 1 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere llama.cpp clears it")
def test_a_cache_of_64k_tokens_is_not_touched_by_a_load(tmp_path):
    path = write_shape(tmp_path / "m.gguf", scaled("llama", vocab=500, layers=8, embd=256, context=131072))
    cache_bytes = 65536 * 8 * 2 * 2 * 64 * 2  # layers, keys and values, heads, their width, bytes

    def resident(runner):
        text = Path(f"/proc/{runner.pid}/smaps_rollup").read_text()
        return int(text.split("Rss:")[1].split()[0]) << 10

    async def work(runner):
        return resident(runner), (await collect(runner, PROMPT, max_tokens=8))[0]

    small, first = with_runner(path, work, n_ctx=2048, kv_cells=2048)
    large, same = with_runner(path, work, n_ctx=65536, kv_cells=65536)
    assert cache_bytes == 256 * MIB
    assert large - small < cache_bytes // 4
    assert same == first
