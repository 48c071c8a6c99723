"""Measures the decoding time per weight of each type on this device, on dummy-weight models with the real kernels.

The planner uses it to choose types: a type that unpacks slowly costs more than its bytes imply.
"""

import contextlib
import statistics
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from devices.atomic_file import scratch_folder
from engine.core.json_store import JsonStore
from engine.job_kinds.bench import dummy_model, shapes
from engine.job_kinds.bench.measure import Meter, loaded_meter
from engine.job_kinds.bench.run import bench_settings
from engine.placement.measurements import TypePrices
from engine.runner.protocol import LoadSettings
from quantize.ggml_types import PRICED, TIME_UNIT, GgmlType

# The types that the planner can choose.
TYPES: Final = tuple(t.name for t in PRICED)
# The weights do not fit in any CPU cache; head, KV cache and norms are negligible.
PROBE: Final = shapes.Dimensions("llama", 2, 2048, 16, 4, 128, 8192, 1024, tied=True)
DECODED: Final = 24
TURNS: Final = 6
UNIT: Final = TIME_UNIT.name


class PriceStore:
    """A JSON file with the newest prices of each machine and device; unreadable ones are measured again."""

    def __init__(self, path: Path) -> None:
        self._store = JsonStore(path, list[TypePrices], list, durable=False)

    def all(self) -> list[TypePrices]:
        """All stored prices."""
        return self._store.get()

    def newest(self, machine_key: str, *, gpu: bool) -> TypePrices | None:
        """The newest prices of the CPU, or of any GPU."""
        prices = [p for p in self.all() if p.machine_key == machine_key and bool(p.devices) == gpu]
        return max(prices, key=lambda p: p.measured_at, default=None)

    def put(self, prices: TypePrices) -> None:
        """Store prices; they replace older ones of the same device."""
        key = prices.machine_key, prices.devices
        self._store.change(lambda old: [*(p for p in old if (p.machine_key, p.devices) != key), prices])


async def measure_prices(
    machine_key: str,
    *,
    threads: int,
    types: Sequence[str] = TYPES,
    probe: shapes.Dimensions = PROBE,
    scratch: Path,
    step: Callable[[str, int, int], None],
) -> TypePrices:
    """Measure decoding with a dummy-weight model of each type.

    `scratch`: a folder with 300 MB of free space. `step` may raise to stop. Runs of each type alternate with runs
    of the unit type in a second runner, because a machine's speed drifts by more than types differ.

    Raises: StandInFailed, BadModelFile, RunnerDied.
    """
    ratios_by_type: dict[str, float] = {}
    unit_ns: list[float] = []
    with scratch_folder(scratch) as folder:
        async with _loaded(folder, UNIT, threads, probe) as unit:
            for number, name in enumerate(types):
                step(name, number, len(types))
                if name == UNIT:
                    continue
                async with _loaded(folder, name, threads, probe) as meter:
                    ratios = []
                    for _ in range(TURNS):
                        mine, other = [1e9 / (await m.timed(16)).decode_tok_s for m in (meter, unit)]
                        unit_ns.append(other)
                        ratios.append(mine / other)
                ratios_by_type[name] = statistics.median(ratios)
    unit_s = statistics.median(unit_ns) / weights(probe)
    priced = {name: ratio * unit_s for name, ratio in ratios_by_type.items()} | {UNIT: unit_s}
    return TypePrices(
        machine_key=machine_key, devices=(), threads=threads, ns_per_weight=priced, measured_at=time.time()
    )


@contextlib.asynccontextmanager
async def _loaded(folder: Path, name: str, threads: int, probe: shapes.Dimensions) -> AsyncIterator[Meter]:
    """A warmed-up runner with a dummy-weight model of one type; the file is deleted after loading."""
    path = folder / f"{name}.gguf"
    dummy_model.write_in_child(path, probe=probe, mix=name, on_progress=lambda _done, _total: None)
    settings = LoadSettings(
        path=str(path),
        n_threads=threads,
        n_threads_batch=threads,
        use_mmap=False,
    )
    async with loaded_meter(bench_settings(settings, (16,), (1,), DECODED), DECODED, 16) as meter:
        path.unlink()
        yield meter


def weights(probe: shapes.Dimensions) -> int:
    """Number of weights that decoding one token multiplies by."""
    return sum(s[0] * s[1] for _, s in shapes.tensors(probe) if len(s) > 1)


def planner_speeds(prices: TypePrices | None) -> Mapping[str, float]:
    """Time per weight by type for `quantize.plan.plan`; empty if the unit type was not measured."""
    if prices is None or UNIT not in prices.ns_per_weight:
        return {}
    types = GgmlType.__members__
    return {name: ns for name, ns in prices.ns_per_weight.items() if name in types and ns > 0}
