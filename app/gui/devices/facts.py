"""Converts the server's device and ledger responses to texts for the page. No widgets here."""

from collections.abc import Callable, Iterable, Sequence

from PySide6.QtCore import QCoreApplication

from app.gui import formatted
from app.gui.widgets.memory_bar import Share
from devices.first_look import device_name, gpu_lines
from engine.api.machine import Device, LiveDevice, Machine, Pool, Reservation

KINDS = {"cpu": "CPU", "igpu": "Integrated GPU", "dgpu": "Dedicated GPU", "npu": "NPU", "remote": "Remote"}
# Plain descriptions of some backends. All other names are product names.
BACKENDS = {
    "cpu": "GGUF models",
    "onnx": "ONNX models",
    "rpc": "Other computers (RPC)",
    "tiles": "Tessera's CPU kernels for prompts",
}
_GPU_KINDS = frozenset({"igpu", "dgpu"})
_RUNS_NOTHING_ALONE = {"tiles"}  # computes parts of what another backend runs
_PRODUCTS = {
    "cuda": "CUDA",
    "vulkan": "Vulkan",
    "metal": "Metal",
    "sycl": "SYCL",
    "openvino": "OpenVINO",
    "hexagon": "Hexagon",
    "hip": "ROCm",
    "rocm": "ROCm",
    "opencl": "OpenCL",
    "flm": "FastFlowLM",
    "vllm": "vLLM",
    "llama-server": "llama-server",
}
_PARAMETERS_AT_4_BITS = 8 / 4.5  # parameters per byte at the usual 4.5 bits
_USABLE_FRACTION = 0.8  # leaves space for the KV cache and the system


def summary(machine: Machine) -> str:
    """One sentence about what this computer can run."""
    best, total = _best(machine)
    if not total:
        return tr("The hardware of this computer has not been checked yet.")
    name = (device_name(best) if best else "") or tr("This computer")
    return tr("{name}, {memory} for models: up to about {n} billion parameters.").format(
        name=name, memory=formatted.size(total), n=formatted.whole(_billions(total))
    )


def plain_summary(machine: Machine) -> str:
    """The same in plain words, without bits and backends; the System page has the details."""
    best, total = _best(machine)
    if not total:
        return tr("The hardware of this computer has not been checked yet.")
    words = tr("This computer runs models of up to about {n} billion parameters.")
    fits = words.format(n=formatted.whole(_billions(total)))
    unused = next((d for d in machine.devices if d.kind in _GPU_KINDS and d.state != "usable"), None)
    if best is not None and best.kind in _GPU_KINDS and best.state == "usable":
        return f"{fits}\n{tr('They run on {name}.').format(name=device_name(best))}"
    if unused is not None:
        return f"{fits}\n{tr('{name} is not used; the page System says why.').format(name=device_name(unused))}"
    return f"{fits}\n{tr('They run on its CPU.')}"


def _best(machine: Machine) -> tuple[Device | None, int]:
    """The best device for models, and the number of bytes for models."""
    best = max(machine.devices, key=lambda device: (rank(device), budget(device)), default=None)
    return best, max(budget(best) if best else 0, machine.memory.total_bytes or 0)


def _billions(num_bytes: int) -> int:
    """Billions of parameters that fit into this memory, at least one."""
    return max(1, round(num_bytes * _USABLE_FRACTION * _PARAMETERS_AT_4_BITS / 1e9))


def gpu_words(machine: Machine) -> str:
    """What set-up and `tessera doctor` print about the GPUs: a line for each."""
    return "\n".join(formatted.without_ticks(line) for line in gpu_lines(machine, tr))


def rank(device: Device) -> int:
    """Sort key: GPUs before the CPU, usable devices before others."""
    return {"dgpu": 2, "igpu": 2, "cpu": 1}.get(device.kind, 0) if device.state == "usable" else -1


def backend_words(name: str) -> str:
    """A backend's description, or its product name."""
    return tr(BACKENDS[name]) if name in BACKENDS else _PRODUCTS.get(name, name)


def budget(device: Device) -> int:
    """Bytes that the device can use for models; 0 if unknown."""
    return device.memory.budget_bytes or device.memory.physical_bytes or 0


def device_facts(device: Device) -> str:
    """One line: cores, instruction sets, driver, bandwidth."""
    parts: list[str] = []
    if device.cores is not None:
        physical, threads = device.cores.physical, device.cores.threads
        cores = tr("1 core") if physical == 1 else tr("{n} cores").format(n=physical)
        used = tr("1 thread used") if threads == 1 else tr("{n} threads used").format(n=threads)
        parts.append(f"{cores}, {used}")
    wide = [name for name in ("amx_int8", "avx512_vnni", "avx512_bf16", "avx512f", "avx2") if name in device.isa]
    if wide:
        parts.append(", ".join(name.upper().replace("_", "-") for name in wide[:3]))
    if device.driver:
        parts.append(f"{device.driver} {device.driver_version or ''}".strip())
    if device.memory.bandwidth_gbs:
        parts.append(tr("{n} GB/s").format(n=formatted.whole(device.memory.bandwidth_gbs)))
    usable = [
        backend_words(run.backend)
        for run in device.runtimes
        if run.state == "usable" and run.backend not in _RUNS_NOTHING_ALONE
    ]
    if usable:
        parts.append(tr("runs {backends}").format(backends=", ".join(usable)))
    return " · ".join(parts)


def live_facts(sample: LiveDevice) -> str:
    """Utilization, temperature and power, as far as the system reports them."""
    if sample.asleep:
        return tr("asleep")
    parts: list[str] = []
    if sample.busy_frac is not None:
        parts.append(tr("{n} % in use").format(n=formatted.whole(100 * sample.busy_frac)))
    if sample.temperature_c is not None:
        parts.append(tr("{n} °C").format(n=formatted.whole(sample.temperature_c)))
    if sample.power_w is not None:
        parts.append(tr("{n} W").format(n=formatted.decimal(sample.power_w)))
    return " · ".join(parts)


# Names of the ledger's parts, by engine.placement.types.PartName.
PARTS = {
    "weights": "weights",
    "experts": "experts",
    "kv": "context",
    "recurrent": "state",
    "compute": "working memory",
    "output": "working memory",
    "projector": "image reader",
    "overhead": "working memory",
    "prefixes": "cached prompts",
    "correction": "margin",
}


def part_shares(parts: Iterable[tuple[str, int]]) -> list[Share]:
    """What a model's memory is for; parts of one name are added up."""
    shares: dict[str, Share] = {}
    for part, value in parts:
        words = tr(PARTS.get(part, part))
        before = shares.get(words)
        if value:
            shares[words] = Share(
                before.owner if before else part, words, value + (before.num_bytes if before else 0)
            )
    return list(shares.values())


def pool_shares(pool: Pool, reservations: Sequence[Reservation], title: Callable[[str], str] = str) -> list[Share]:
    """Users of a memory pool: each Tessera model with its parts, then everything else. `title` names an owner."""
    shares: list[Share] = []
    ours = 0
    for number, item in enumerate(reservations):
        drawn = item.drawn.get(pool.id, 0)
        if not drawn:
            continue
        total = sum(item.parts.values())
        parts = tuple(
            (share.name, round(drawn * share.num_bytes / total)) for share in part_shares(item.parts.items())
        )
        shares.append(Share(f"model {number}", title(item.owner), drawn, parts if total else ()))
        ours += drawn
    others = max(0, pool.capacity_bytes - pool.free_bytes - ours)
    shares.append(Share("other", tr("Other programs and the system"), others))
    return shares


def tr(text: str) -> str:
    """Translate in this module's context."""
    return QCoreApplication.translate("devices", text)
