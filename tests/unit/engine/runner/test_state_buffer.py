import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from engine.runner.llama.cache.state_buffer import HUGE_PAGE, OWN_PAGES_FROM, copied, state_buffer

ROOT = Path(__file__).resolve().parents[4]


@pytest.mark.parametrize("size", [1, 100, OWN_PAGES_FROM - 1, OWN_PAGES_FROM, HUGE_PAGE + 5])
def test_a_buffer_can_be_filled_to_its_end(size):
    buffer = state_buffer(size)
    buffer[:] = 7
    assert (buffer.dtype, buffer.shape, int(buffer.sum())) == (np.uint8, (size,), 7 * size)


def test_parts_are_copied_one_behind_the_other():
    parts = [np.full(n, n % 251, np.uint8) for n in (3, OWN_PAGES_FROM, 5)]
    whole = copied(*parts)
    assert np.array_equal(whole, np.concatenate(parts))
    parts[0][:] = 0
    assert whole[0] == 3


@pytest.mark.skipif(sys.platform != "linux", reason="looks at Linux's figures of a process")
@pytest.mark.process
def test_states_that_come_and_go_leave_no_memory_behind():
    """The newest stay in memory, and a small part of each."""
    code = """
        import tempfile, time
        from pathlib import Path
        import numpy as np, psutil
        from engine.runner.llama.cache.prefix_store import PrefixStore
        from engine.runner.llama.cache.state_buffer import copied

        rng = np.random.default_rng(1)
        with tempfile.TemporaryDirectory() as folder:
            store = PrefixStore(8 << 20, 1 << 30, Path(folder), "f" * 24)
            for i in range(400):
                if i == 100:
                    before = psutil.Process().memory_info().rss - store.ram_bytes
                state = np.full(int(rng.integers(700_000, 1_000_000)), 7, np.uint8)
                store.put((), rng.integers(0, 5000, 230).astype(np.int32), copied(state))
                if i % 16 == 15:
                    time.sleep(0.05)
            while store._files._waiting:
                time.sleep(0.01)
            print(psutil.Process().memory_info().rss - store.ram_bytes - before)
            store.close()
    """
    told = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert int(told.stdout) < 3 << 20  # of 300 states
