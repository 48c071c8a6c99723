"""One whole measurement: load in a runner of its own, warm up, measure, note drift and power, unload."""

import asyncio
import contextlib
import platform
import statistics
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

import msgspec

from devices.host_real import RealHost
from devices.types import Machine
from devices.usage import UsageSampler
from engine.bench.measure import DECODE_TOKENS, Meter, Step, with_power
from engine.measurements.keys import machine_key
from engine.measurements.reports import Point, Report
from engine.runner.process import RunnerProcess
from engine.runner.protocol import LoadSettings

# The first prompt of a size pays for its buffers; longer ones than this use no others.
LONGEST_WARM_UP: Final = 512
POWER_EVERY_S: Final = 0.5


async def bench(
    settings: LoadSettings,
    *,
    model: str,
    lengths: Sequence[int],
    parallel: Sequence[int],
    repeats: int,
    stand_in: bool,
    step: Step,
    tokens: int = DECODE_TOKENS,
    machine: Machine | None = None,
    shape_key: str = "",
    on_point: Callable[[Point], None] = lambda _: None,
) -> Report:
    """Measure the model that `settings` describe. Lengths in tokens; nothing else should run meanwhile.

    Raises: BadModelFile, RunnerDied: it cannot be loaded, or ended.
    """
    roomy = bench_settings(settings, lengths, parallel, tokens)
    started = time.time()
    clock = time.monotonic()
    runner = await RunnerProcess.start("llama", settings.path)
    try:
        facts = await runner.load(roomy, lambda phase, share: step(f"loading {phase} {share:.0%}"))
        load_s = time.monotonic() - clock
        meter = Meter(runner, facts.n_vocab, step, tokens)
        step("warming up")
        await meter.run(min(max(lengths), LONGEST_WARM_UP), 4)
        first = (await meter.timed(16)).decode_tok_s
        points = []
        for length in lengths:
            async with _power(machine) as watts:
                point = await meter.point(length, repeats)
            points.append(with_power(point, statistics.fmean(watts) if watts else None))
            on_point(points[-1])
        together = [await meter.concurrency(n, repeats) for n in parallel if n > 1]
        last = (await meter.timed(16)).decode_tok_s
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
        shape_key=shape_key,
        machine_key=machine_key(machine) if machine else "",
        tokens=tokens,
        n_batch=settings.n_batch,
        n_ubatch=settings.n_ubatch,
        flash_attn=settings.flash_attn,
        use_mmap=settings.use_mmap,
        n_gpu_layers=settings.n_gpu_layers,
    )


def bench_settings(
    settings: LoadSettings, lengths: Sequence[int], parallel: Sequence[int], tokens: int = DECODE_TOKENS
) -> LoadSettings:
    """The load that a measurement makes: one cache with room for the longest prompt, nothing kept."""
    longest = max([*lengths, 256]) + tokens + 64
    most = max([*parallel, 1])
    return msgspec.structs.replace(
        settings,
        n_ctx=longest,
        kv_cells=max(longest, most * (tokens + 64)),
        n_parallel=most,
        cache_ram_bytes=0,
        cache_disk_bytes=0,
        cache_dir=None,
    )


@contextlib.asynccontextmanager
async def _power(machine: Machine | None) -> AsyncIterator[list[float]]:
    """Collects the watts that can be read until the block ends."""
    found: list[float] = []
    if machine is None:
        yield found
        return
    sampler = UsageSampler(RealHost(), machine.devices)

    async def sample() -> None:
        """Until the second sample without watts: where there is nothing to read, nothing shall disturb."""
        misses = 0
        while misses <= 1:
            watts = (await asyncio.to_thread(sampler.sample)).power_w
            if watts is not None:
                found.append(watts)
            misses = 0 if watts is not None else misses + 1
            await asyncio.sleep(POWER_EVERY_S)

    task = asyncio.create_task(sample())
    try:
        yield found
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
