"""The server's device and ledger answers as what the page shows. No widgets here."""

from typing import Any

from PySide6.QtCore import QCoreApplication

from app.gui import words
from app.gui.widgets.memory_bar import Share

KINDS = {"cpu": "Processor", "igpu": "Integrated GPU", "dgpu": "Graphics card", "npu": "NPU", "remote": "Remote"}
_PARAMETERS_AT_4_BITS = 8 / 4.5  # parameters a byte holds at the usual 4.5 bits
_KEPT_FREE = 0.8  # room for the cache and the system


def summary(machine: dict[str, Any]) -> str:
    """One sentence about what this machine can do."""
    best = max(machine.get("devices") or [{}], key=lambda device: (rank(device), budget(device)))
    total = max(budget(best), (machine.get("memory") or {}).get("total_bytes") or 0)
    if not total:
        return tr("What this computer can do is not known yet.")
    parameters = total * _KEPT_FREE * _PARAMETERS_AT_4_BITS
    name = best.get("name") or tr("This computer")
    return tr("{name}, {memory} for models: up to about {n} parameters at 4 bits.").format(
        name=name, memory=words.size(total), n=words.count(parameters)
    )


def rank(device: dict[str, Any]) -> int:
    """GPUs before the processor, the usable before the others."""
    return (
        {"dgpu": 2, "igpu": 2, "cpu": 1}.get(device.get("kind", ""), 0) if device.get("state") == "usable" else -1
    )


def budget(device: dict[str, Any]) -> int:
    """Bytes the device can use for models; 0 when unknown."""
    memory = device.get("memory") or {}
    return int(memory.get("budget_bytes") or memory.get("physical_bytes") or 0)


def device_facts(device: dict[str, Any]) -> str:
    """Cores, instruction sets, driver, bandwidth: one line."""
    parts: list[str] = []
    cores = device.get("cores")
    if cores:
        parts.append(
            tr("{physical} cores, {threads} threads used").format(
                physical=cores.get("physical"), threads=cores.get("threads") or cores.get("allowed_logical")
            )
        )
    wide = [
        name
        for name in ("amx_int8", "avx512_vnni", "avx512_bf16", "avx512f", "avx2")
        if name in device.get("isa", ())
    ]
    if wide:
        parts.append(", ".join(name.upper().replace("_", "-") for name in wide[:3]))
    if device.get("driver"):
        parts.append(f"{device['driver']} {device.get('driver_version') or ''}".strip())
    bandwidth = (device.get("memory") or {}).get("bandwidth_gbs")
    if bandwidth:
        parts.append(tr("{n} GB/s").format(n=words.whole(bandwidth)))
    parts.extend(f"{runtime.get('backend')}: {runtime.get('state')}" for runtime in device.get("runtimes") or ())
    return " · ".join(parts)


def live_facts(reading: dict[str, Any]) -> str:
    """Utilization, temperature and power as far as the system tells; empty when it tells nothing."""
    if reading.get("asleep"):
        return tr("asleep")
    parts: list[str] = []
    if reading.get("busy_frac") is not None:
        parts.append(tr("{n} % in use").format(n=words.whole(100 * reading["busy_frac"])))
    if reading.get("temperature_c") is not None:
        parts.append(tr("{n} °C").format(n=words.whole(reading["temperature_c"])))
    if reading.get("power_w") is not None:
        parts.append(tr("{n} W").format(n=words.decimal(reading["power_w"])))
    return " · ".join(parts)


# What a part of the ledger is called, by its name there. The names are those of engine.fit.types.PartName.
PARTS = {
    "weights": "weights",
    "kv": "context",
    "recurrent": "state",
    "compute": "scratch",
    "output": "logits",
    "projector": "image reader",
    "overhead": "process",
    "prefixes": "kept prompts",
    "correction": "margin",
}


def pool_shares(pool: dict[str, Any], reservations: list[dict[str, Any]]) -> list[Share]:
    """Who holds what of a pool: our models by purpose, then everybody else."""
    shares: list[Share] = []
    ours = 0
    for item in reservations:
        drawn = (item.get("drawn") or {}).get(pool.get("id"), 0)
        if not drawn:
            continue
        parts = item.get("parts") or {}
        known = sum(value for value in parts.values() if isinstance(value, int | float))
        if known:
            shares.extend(
                Share(part, f"{item.get('owner')}: {tr(PARTS.get(part, part))}", round(drawn * value / known))
                for part, value in parts.items()
                if isinstance(value, int | float)
            )
        else:
            shares.append(Share("weights", str(item.get("owner")), int(drawn)))
        ours += drawn
    used = (pool.get("capacity_bytes") or 0) - (pool.get("free_bytes") or 0)
    others = max(0, used - ours)
    shares.append(Share("other", tr("Other programs and the system"), others))
    return shares


def tr(text: str) -> str:
    """Translate in this module's context."""
    return QCoreApplication.translate("devices", text)
