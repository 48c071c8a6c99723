"""What the server did in the last minutes: a sample a second in a ring."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

import psutil

from devices.errors import TesseraError
from engine.api.stats import Work
from engine.pool.loaded_model import LoadedModel
from engine.pool.pool import Pool
from engine.runner.protocol import Stats

HISTORY_S: Final = 600
# A runner answers between two steps; one that is busy for longer is counted with the next sample.
_ANSWER_S: Final = 0.5


class WorkHistory:
    """`sample` is called once a second by whoever has a clock. Only runners at work are asked for their counts."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._own = psutil.Process()
        self._ring: deque[Work] = deque(maxlen=HISTORY_S)
        self._seen: dict[int, Stats] = {}  # by the runner's process
        self._rested: dict[int, float] = {}  # when a runner had last been used that was then seen at rest
        self._sums = [0, 0, 0]  # prompt, cached and generated tokens
        self.on_stats: Callable[[int, Stats], None] = lambda _pid, _stats: None

    async def sample(self) -> None:
        """Keep how it is now."""
        running = [model for model in self._pool.models if model.runner is not None and model.ready]
        pids = {model.runner.pid for model in running if model.runner is not None}
        self._seen = {pid: stats for pid, stats in self._seen.items() if pid in pids}
        self._rested = {pid: used for pid, used in self._rested.items() if pid in pids}
        for model in running:
            await self._count(model)
        self._ring.append(
            Work(
                at=time.time(),
                active=sum(model.runner.active_requests for model in running if model.runner is not None),
                waiting=sum(model.waiting for model in self._pool.models),
                prompt_tokens=self._sums[0],
                cached_tokens=self._sums[1],
                generated_tokens=self._sums[2],
                rss_bytes=self._own.memory_info().rss + sum(stats.rss_bytes for stats in self._seen.values()),
            )
        )

    def last(self, seconds: int) -> tuple[Work, ...]:
        """Samples of so many seconds, oldest first."""
        samples = list(self._ring)
        return tuple(s for s in samples if s.at >= samples[-1].at - seconds)

    async def _count(self, model: LoadedModel) -> None:
        """Add what a runner did since it was last asked; it is asked once more after it came to rest."""
        runner = model.runner
        assert runner is not None
        pid = runner.pid
        if pid is None:
            return  # another machine does the work
        works, used = runner.active_requests > 0, model.last_used
        if not works and self._rested.get(pid) == used:
            return
        try:
            now = await asyncio.wait_for(runner.stats(), _ANSWER_S)
        except (TesseraError, TimeoutError):
            return
        if works:
            self._rested.pop(pid, None)
        else:
            self._rested[pid] = used
        self.on_stats(pid, now)
        before = self._seen.get(pid)
        self._seen[pid] = now
        for index, name in enumerate(("prompt_tokens", "cached_tokens", "generated_tokens")):
            self._sums[index] += max(0, getattr(now, name) - (getattr(before, name) if before else 0))
