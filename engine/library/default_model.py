"""Chooses the model for requests that name none."""

from collections.abc import Collection, Sequence

import psutil

from devices.types import Machine
from engine.core.paths import installed_models
from engine.library.types import ModelEntry

# The reason why start.py did not download a chat model.
MISSING_NOTE = "missing.txt"


def demos(entries: Sequence[ModelEntry]) -> frozenset[str]:
    """Ids of the bundled toy model and of models built from it. They are for demonstrations only."""
    titles = {e.details.title for e in entries if e.origin.kind == "bundled"}
    return frozenset(e.id for e in entries if e.origin.kind == "bundled" or e.details.title in titles - {""})


def default_model(entries: Sequence[ModelEntry], loaded: Collection[str] = ()) -> ModelEntry | None:
    """The best model: one that chats, is loaded, was added by the user. A demo only if there is no other."""
    toys = demos(entries)
    usable = [e for e in entries if e.servable and e.state == "online"]
    # Remote models are never the default, so that no data leaves this computer without an explicit choice.
    usable = [e for e in usable if e.origin.kind != "remote" and {"chat", "completion"} & set(e.capabilities)]

    def rank(entry: ModelEntry) -> tuple[bool, bool, bool, bool]:
        chats = "chat" in entry.capabilities
        return entry.id in toys, not chats, entry.id not in loaded, entry.origin.kind == "installed"

    return min(usable, key=rank, default=None)


def missing_model_reason() -> str | None:
    """Why start.py downloaded no chat model; None if it did, or if start.py did not install this copy."""
    try:
        return (installed_models() / MISSING_NOTE).read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


# An estimate of how large a model this computer can hold, before anything is loaded.

_FRACTION = 0.8  # the rest is for the system and other programs
_BYTES_PER_PARAMETER = 0.69  # 4.8 bits per weight, and 15 % for context and buffers


def memory_bytes(machine: Machine) -> int:
    """Memory that a model may use: RAM within its limit, or that of a usable GPU if it is larger.

    An integrated GPU's is larger than RAM if firmware has set most of the memory aside for it.
    """
    ram = machine.memory
    total = ram.total_bytes or psutil.virtual_memory().total
    sizes = [total if ram.limit_bytes is None else min(total, ram.limit_bytes)]
    for device in machine.devices:
        if device.kind in {"igpu", "dgpu"} and device.state == "usable":
            own, whole = device.memory.dedicated_bytes or 0, device.memory.budget_bytes or 0
            sizes.append(min(whole, own + sizes[0]) if device.memory.unified else whole)
    return int(max(sizes) * _FRACTION)


def largest_parameters(machine: Machine) -> float:
    """Parameters of the largest model that fits at about 4.8 bits per weight."""
    return memory_bytes(machine) / _BYTES_PER_PARAMETER
