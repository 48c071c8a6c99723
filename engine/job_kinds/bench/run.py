"""One whole benchmark: load in a separate runner, warm up, measure, record drift and power, unload."""

import platform
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Final

import msgspec

from devices.host import Host
from devices.host_real import RealHost
from devices.types import Machine
from engine.energy.meter import Drawn, EnergyMeter, NeverAtRest, NoPowerMeter
from engine.job_kinds.bench.measure import DECODE_TOKENS, Meter, Step
from engine.message_catalog.reasons import because
from engine.placement.measurements import Point, Report
from engine.placement.results import machine_key
from engine.runner.process import RunnerProcess
from engine.runner.protocol import LoadSettings

# The first prompt of a size allocates its buffers; longer prompts than this need no others.
LONGEST_WARM_UP: Final = 512
# Maximum wait for a busy computer to become idle; without idle power only the joules are missing.
REST_S: Final = 8.0


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
    host: Host | None = None,
) -> Report:
    """Measure the model that `settings` describe. Lengths in tokens; no other load should run.

    Reads the power meters of `host`, by default those of this computer.

    Raises: BadModelFile, RunnerDied: it cannot be loaded, or crashed.
    """
    roomy = bench_settings(settings, lengths, parallel, tokens)
    step(because("bench_rest"))
    energy = await _meter(host or RealHost(), machine)
    started = time.time()
    clock = time.monotonic()
    runner = await RunnerProcess.start("llama", settings.path)
    try:
        facts = await runner.load(
            roomy, lambda phase, share: step(because("bench_loading", phase=phase, share=share))
        )
        load_s = time.monotonic() - clock
        meter = Meter(runner, facts.n_vocab, step, tokens)
        step(because("bench_warming_up"))
        await meter.run(min(max(lengths), LONGEST_WARM_UP), 4)
        first = (await meter.timed(16)).decode_tok_s
        points = []
        for length in lengths:
            counted = energy.during(runner.pid, settings.devices) if energy else nullcontext(Drawn())
            async with counted as drawn:
                point = await meter.point(length, repeats)
            per_joule = drawn.tokens_per_joule(repeats * (tokens + 1))
            points.append(msgspec.structs.replace(point, power_w=drawn.watts, tokens_per_joule=per_joule))
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
        idle_w=energy.idle_w if energy else None,
    )


async def _meter(host: Host, machine: Machine | None) -> EnergyMeter | None:
    """The power meters of this computer, with idle power if it could be measured; None without meters."""
    if machine is None:
        return None
    energy = EnergyMeter(host, machine)
    try:
        await energy.rest(REST_S)
    except (NoPowerMeter, NeverAtRest):
        return energy if energy.metered else None  # the whole computer's watts are still reported
    return energy


def bench_settings(
    settings: LoadSettings, lengths: Sequence[int], parallel: Sequence[int], tokens: int = DECODE_TOKENS
) -> LoadSettings:
    """Settings for a benchmark: a KV cache for the longest prompt, and no stored prefixes."""
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
