"""Six models that people run on machines with unified memory of 32 to 128 GB: where, how long a context, how fast.

    python -m tests.bench.six_models [--record]

By header only (tests/data/shapes/published.json, types of a file of 4 bits): nothing is loaded. Machines are the
recorded Strix Halo with Vulkan and ROCm, with its memory scaled. Speeds are forecasts; half of such forecasts are
off by less than 15 %, one in ten by more than 60 %. `--record` writes the table to tests/bench/results.
"""

import argparse
import tempfile
from pathlib import Path

import msgspec

from devices.types import Machine, Memory
from engine.message_catalog import sentence
from engine.placement.candidates import forecast_for
from engine.placement.shape import ModelShape
from engine.placement.speed import RARE_ERROR, USUAL_ERROR
from engine.placement.types import PlacementLimits
from tests.bench.default_context import K, placed_on
from tests.bench.recording import FOLDER
from tests.support.machines.opened_machines import opened
from tests.support.models import published_headers

MACHINE, WHOLE = "sh-framework-desktop-linux", 128
SIZES = (32, 64, 96, 128)
DEEP = 64 * K
# Published by owners of this chip: answers in tokens/s without a prompt, and at 64k.
REPORTED = {
    "Gemma 4 E4B": "nothing found",
    "Flash-Next": "Q4: 19.9 at 0 (antirez/ds4 PR 1070)",
    "Qwen3.6-35B-A3B": "Q4: ROCm 53.5 and 40.6, Vulkan 62.8 and 44.3 (kyuz0/amd-strix-halo-toolboxes)",
    "Qwen3.8-27B": "8 bits: ROCm 6.6 and 5.9, Vulkan 6.6 and 5.8 (the same; a file of 4 bits reads half as much)",
    "gpt-oss-120b": "Vulkan 56.6, ROCm 51.8 at 0 (kyuz0/amd-strix-halo-toolboxes)",
    "DeepSeek-V4-Flash": "IQ2_XXS: ROCm 16.2 and 11.4, Vulkan 9.1 and 8.5 (the same)",
}


def shapes() -> dict[str, ModelShape]:
    """The six models."""
    with tempfile.TemporaryDirectory() as folder:
        return {
            name: published_headers.shape(Path(folder) / f"{number}.gguf", name)
            for number, name in enumerate(published_headers.FACTS)
            if name != "Gemma 3n E4B"
        }


def scaled(machine: Machine, gigabytes: int) -> Machine:
    """The machine with that much memory."""

    def part(memory: Memory) -> Memory:
        sizes = {name: value for name, value in msgspec.structs.asdict(memory).items() if name.endswith("_bytes")}
        changes = {name: value * gigabytes // WHOLE for name, value in sizes.items() if value is not None}
        return msgspec.structs.replace(memory, **changes)

    names = ("total_bytes", "available_bytes", "limit_bytes")
    ram = {name: value * gigabytes // WHOLE for name in names if (value := getattr(machine.memory, name, None))}
    devices = tuple(msgspec.structs.replace(d, memory=part(d.memory)) for d in machine.devices)
    return msgspec.structs.replace(machine, memory=msgspec.structs.replace(machine.memory, **ram), devices=devices)


def row(name: str, shape: ModelShape, gigabytes: int) -> list[str]:
    """One line of the table."""
    machine = scaled(opened(MACHINE), gigabytes)
    found = placed_on(machine, shape)(PlacementLimits(max_ctx=64 * K))
    size = f"{shape.file_bytes / 1e9:.0f} GB"
    if not found.fits:
        reason = sentence(found.reasons[0]) if found.reasons else ""
        return [name, size, str(gigabytes), f"does not fit: {reason}", "", "", "", "", ""]
    at = found.settings
    rule = forecast_for(shape, at, machine)
    speeds = ["", "", "", ""]
    if found.streaming is not None:
        speeds[2] = f"{found.decode_tok_s or 0:.1f}"
    elif rule is not None:
        speeds = [f"{1 / s:.0f}" if s else "" for s in (rule.prompt_s(256), rule.prompt_s(DEEP))]
        speeds += [f"{1 / s:.1f}" if s else "" for s in (rule.decode_s(1), rule.decode_s(DEEP))]
        if at.n_ctx < DEEP:
            speeds[1] = speeds[3] = "–"
    place = f"{found.device if found.device == 'cpu' else found.backend}"
    place += ", experts on the CPU" if at.cpu_expert_layers else ""
    place += f", {at.expert_bytes / 1e9:.0f} GB of experts in memory" if at.expert_bytes else ""
    place += ", its table on the disk" if at.lazy_tables else ""
    return [name, size, str(gigabytes), place, f"{at.n_ctx // K}k", str(at.n_ubatch), *speeds]


def main() -> None:
    """Print the table, and record it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true")
    given = parser.parse_args()
    heads = "model | file | GB | where | context | ubatch | reads at 0 | at 64k | writes at 0 | at 64k"
    lines = [f"| {heads} |", "|---" * 10 + "|"]
    found = shapes()
    for name, shape in found.items():
        lines += [f"| {' | '.join(row(name, shape, size))} |" for size in SIZES]
    errors = (
        f"Half of the forecasts are off by less than {USUAL_ERROR:.0%}, one in ten by more than {RARE_ERROR:.0%}."
    )
    assumed = [f"{name}: {', '.join(f['assumed'])}" for name, f in published_headers.FACTS.items() if f["assumed"]]
    lines += [
        "",
        f"Tokens per second. {errors}",
        "",
        "What owners of this chip report (answers, at 0 and at 64k):",
        "",
    ]
    lines += [f"- {name}: {REPORTED[name]}" for name in found]
    lines += ["", "Assumed:", "", *(f"- {text}" for text in assumed)]
    text = "\n".join(lines)
    print(text)
    if given.record:
        title = "# Six models on 32 to 128 GB of unified memory"
        how = "Written by `python -m tests.bench.six_models --record`."
        (FOLDER / "six_models.md").write_text(f"{title}\n\n{how}\n\n{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
