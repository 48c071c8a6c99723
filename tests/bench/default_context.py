"""The context that models get by default on the recorded machines, and what would fit: a table in Markdown.

    python tests/bench/default_context.py

By header only: nothing is loaded. `32k fits` where weights, buffers, the reserve and an F16 cache of 32k do;
`8-bit` where only an 8-bit cache of 32k does.
"""

from devices.memory_ledger import Ledger
from devices.recording import RecordedHost
from devices.report import recorded_report
from engine.message_catalog import sentence
from engine.placement.history import PlacementHistory
from engine.placement.steps import place
from engine.placement.types import Overrides
from engine.runner.protocol import LoadSettings
from tests.support.machines.machines import machines
from tests.support.models.published_shapes import MODELS, published

NAMES = ("1.7B", "8B", "30B-A3B", "gpt-oss-20b", "gpt-oss-120b")
SHAPES = {"1.7B": published("qwen3", 28, 2048, 2048, 1024, 16, 6144, 151_936, context=131_072), **MODELS}


def main() -> None:
    """One row for a machine and a model."""
    print("| machine | model | default | where | 32k | reason |\n|---|---|---|---|---|---|")
    wrong = 0
    for machine_name, recording in machines().items():
        machine = recorded_report(RecordedHost(recording))
        for name in NAMES:

            def placed(overrides: Overrides, shape=SHAPES[name], machine=machine):
                settings = LoadSettings(path="/models/m.gguf", n_ctx=8192, kv_cells=32768, n_parallel=4)
                ledger = Ledger(lambda: machine)
                return place(shape, settings, overrides, machine, ledger, PlacementHistory(None))

            usual = placed(Overrides(max_ctx=65536))
            if not usual.fits or usual.streaming is not None:
                print(f"| {machine_name} | {name} | weights do not fit | | | |")
                continue
            plain = placed(Overrides(n_ctx=32768, n_parallel=1))
            same = (plain.device, plain.settings.n_gpu_layers) == (usual.device, usual.settings.n_gpu_layers)
            eight = placed(Overrides(n_ctx=32768, n_parallel=1, type_k="q8_0"))
            fits = "fits" if plain.fits and same else "8-bit" if eight.fits and not plain.fits else "no"
            if plain.fits and not same:
                fits = "elsewhere"
            reasons = [sentence(r) for r in usual.reasons if r.kind.startswith("context_")]
            wrong += fits == "fits" and usual.settings.n_ctx < 32768
            why = reasons[0] if reasons else ""
            print(f"| {machine_name} | {name} | {usual.settings.n_ctx} | {usual.device} | {fits} | {why} |")
    print(f"\n{wrong} rows have room for 32k of F16 cache and get less.")


if __name__ == "__main__":
    main()
