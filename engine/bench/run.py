"""One whole measurement: load in a runner of its own, warm up, measure, note drift, unload."""

import platform
import time
from collections.abc import Sequence
from typing import Final

import msgspec

from engine.bench.measure import Meter, Step
from engine.bench.types import Report
from engine.runner.process import RunnerProcess
from engine.runner.protocol import LoadSettings

WARM_UP_TOKENS: Final = 64


async def bench(
    settings: LoadSettings,
    *,
    model: str,
    lengths: Sequence[int],
    parallel: Sequence[int],
    repeats: int,
    stand_in: bool,
    step: Step,
) -> Report:
    """Measure the model that `settings` describe. Lengths in tokens; nothing else should run meanwhile.

    Raises: BadModelFile, RunnerDied: it cannot be loaded, or ended.
    """
    longest = max([*lengths, 256]) + 128
    most = max(parallel, default=1)
    roomy = msgspec.structs.replace(
        settings,
        n_ctx=longest,
        kv_cells=max(longest, most * 128),
        n_parallel=max(most, 1),
        cache_ram_bytes=0,
        cache_disk_bytes=0,
    )
    started = time.time()
    clock = time.monotonic()
    runner = await RunnerProcess.start("llama", settings.path)
    try:
        facts = await runner.load(roomy, lambda phase, share: step(f"loading {phase} {share:.0%}"))
        load_s = time.monotonic() - clock
        meter = Meter(runner, facts.n_vocab, step)
        step("warming up")
        await meter.timed(WARM_UP_TOKENS)
        first = await meter.decode_speed(16)
        points = [await meter.point(length, repeats) for length in lengths]
        together = [await meter.concurrency(n, repeats) for n in parallel if n > 1]
        last = await meter.decode_speed(16)
        stats = await runner.stats()
    finally:
        await runner.stop()
    return Report(
        model=model,
        description=facts.description,
        size_bytes=facts.size_bytes,
        n_params=facts.n_params,
        backend=facts.backend,
        machine=f"{platform.system()} {platform.machine()}",
        threads=settings.n_threads,
        type_k=settings.type_k,
        type_v=settings.type_v,
        load_s=load_s,
        rss_bytes=stats.rss_bytes,
        points=tuple(points),
        concurrency=tuple(together),
        drift=last / first,
        stand_in=stand_in,
        started_at=started,
    )
