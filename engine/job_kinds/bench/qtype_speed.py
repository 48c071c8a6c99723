"""What a weight of each quantization type costs in time on this device, measured on stand-ins through real kernels.

The planner asks this before it spreads types over a model: one that unpacks slowly is dearer than its bytes.
"""

import contextlib
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from engine.core.json_store import JsonStore
from engine.job_kinds.bench import dummy_model, shapes
from engine.job_kinds.bench.measure import Meter, loaded_meter
from engine.job_kinds.bench.run import bench_settings
from engine.placement.measurements import TypePrices
from engine.runner.protocol import LoadSettings
from quantize.ggml_types import PRICED, TIME_UNIT, GgmlType

# Types the planner chooses between.
TYPES: Final = tuple(t.name for t in PRICED)
# Large enough that no cache holds the weights, with next to no head, cache or norms beside them.
PROBE: Final = shapes.Dimensions("llama", 2, 2048, 16, 4, 128, 8192, 1024, tied=True)
DECODED: Final = 24
TURNS: Final = 6
UNIT: Final = TIME_UNIT.name


class PriceStore:
    """A JSON file with the newest prices of each machine and device; what cannot be read is measured again."""

    def __init__(self, path: Path) -> None:
        self._store = JsonStore(path, list[TypePrices], list)

    def all(self) -> list[TypePrices]:
        """Everything kept."""
        return self._store.get()

    def newest(self, machine_key: str, *, gpu: bool) -> TypePrices | None:
        """The newest of the processor, or of any GPU."""
        found = [p for p in self.all() if p.machine_key == machine_key and bool(p.devices) == gpu]
        return max(found, key=lambda p: p.measured_at, default=None)

    def put(self, prices: TypePrices) -> None:
        """Keep prices; they replace older ones of the same device."""
        key = prices.machine_key, prices.devices
        self._store.change(lambda old: [*(p for p in old if (p.machine_key, p.devices) != key), prices])


async def measure_prices(
    machine_key: str,
    *,
    threads: int,
    devices: tuple[str, ...] = (),
    types: Sequence[str] = TYPES,
    probe: shapes.Dimensions = PROBE,
    scratch: Path,
    step: Callable[[str, int, int], None],
) -> TypePrices:
    """Decode with a stand-in of each type. `scratch`: a folder with 300 MB of room. `step` may raise to stop.

    Each type takes turns with the unit in a second runner: a machine's speed drifts by more than types differ.
    Raises: StandInFailed, BadModelFile, RunnerDied.
    """
    found: dict[str, float] = {}
    unit_ns: list[float] = []
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        async with _loaded(Path(folder), UNIT, threads, devices, probe) as unit:
            for number, name in enumerate(types):
                step(name, number, len(types))
                if name == UNIT:
                    continue
                async with _loaded(Path(folder), name, threads, devices, probe) as meter:
                    ratios = []
                    for _ in range(TURNS):
                        mine, other = [1e9 / (await m.timed(16)).decode_tok_s for m in (meter, unit)]
                        unit_ns.append(other)
                        ratios.append(mine / other)
                found[name] = statistics.median(ratios)
    unit_s = statistics.median(unit_ns) / weights(probe)
    priced = {name: ratio * unit_s for name, ratio in found.items()} | {UNIT: unit_s}
    return TypePrices(
        machine_key=machine_key, devices=devices, threads=threads, ns_per_weight=priced, measured_at=time.time()
    )


@contextlib.asynccontextmanager
async def _loaded(
    folder: Path, name: str, threads: int, devices: tuple[str, ...], probe: shapes.Dimensions
) -> AsyncIterator[Meter]:
    """A runner with a stand-in of one type, warmed up; the file is gone once it is loaded."""
    path = folder / f"{name}.gguf"
    dummy_model.write_in_child(path, probe=probe, mix=name, on_progress=lambda _done, _total: None)
    settings = LoadSettings(
        path=str(path),
        n_threads=threads,
        n_threads_batch=threads,
        devices=devices,
        n_gpu_layers=99 if devices else 0,
        use_mmap=False,
    )
    async with loaded_meter(bench_settings(settings, (16,), (1,), DECODED), DECODED, 16) as meter:
        path.unlink()
        yield meter


def weights(probe: shapes.Dimensions) -> int:
    """Weights that decoding one token multiplies by."""
    return sum(s[0] * s[1] for _, s in shapes.tensors(probe) if len(s) > 1)


def planner_speeds(prices: TypePrices | None) -> Mapping[str, float]:
    """For `quantize.plan.plan`: time a weight by type; empty when the unit was not measured."""
    if prices is None or UNIT not in prices.ns_per_weight:
        return {}
    known = GgmlType.__members__
    return {name: ns for name, ns in prices.ns_per_weight.items() if name in known and ns > 0}
