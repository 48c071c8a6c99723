"""A client that leaves during a long input leaves nothing in the embedding context."""

from collections import deque
from types import SimpleNamespace

import pytest

from engine.runner.llama.batch.embed import Embedder, _Job


@pytest.mark.parametrize(("left", "done_tokens", "clears"), [(1, 512, 1), (1, 0, 0), (2, 512, 0)])
def test_a_job_cancelled_between_its_pieces_takes_its_cells_along(left, done_tokens, clears):
    cleared = []
    embedder = object.__new__(Embedder)
    api = SimpleNamespace(llama_memory_clear=lambda memory, data: cleared.append(memory))
    embedder._loaded, embedder._memory = SimpleNamespace(api=api), "memory"
    first, second = (_Job(number, ["a"], None, True) for number in (1, 2))
    first.done_tokens = done_tokens
    embedder._jobs = deque([first, second])
    embedder.cancel(left)
    assert len(cleared) == clears
    assert [job.id for job in embedder._jobs] == [2 if left == 1 else 1]
