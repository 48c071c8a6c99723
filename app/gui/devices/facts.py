"""Converts the server's device and ledger responses to texts for the page. No widgets here."""

from collections.abc import Callable, Iterable, Sequence

from PySide6.QtCore import QCoreApplication

from app.gui import formatted
from app.gui.reasons import known_text
from app.gui.widgets.memory_bar import Share
from devices.first_look import device_name, gpu_lines
from engine.api.machine import Device, DeviceUsage, Machine, Pool, Reservation

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
    best, total = _best(machine), _total_bytes(machine)
    if not total:
        return tr("The hardware of this computer has not been checked yet.")
    name = (device_name(best) if best else "") or tr("This computer")
    if best is not None and best.kind == "dgpu" and budget(best):
        name = tr("{name} with {memory}").format(name=name, memory=formatted.size(budget(best)))
    return tr("{name}, {memory} for models: up to about {n} billion parameters.").format(
        name=name, memory=formatted.size(total), n=formatted.whole(_billions(total))
    )


def plain_summary(machine: Machine) -> str:
    """The same in plain words, without bits and backends; the System page has the details."""
    best, total = _best(machine), _total_bytes(machine)
    if not total:
        return tr("The hardware of this computer has not been checked yet.")
    words = tr("This computer runs models of up to about {n} billion parameters.")
    lines = [words.format(n=formatted.whole(_billions(total)))]
    gpus = [device for device in machine.devices if device.kind in _GPU_KINDS]
    if best is None or best.kind not in _GPU_KINDS:
        unused = next((device for device in gpus if device.state != "usable"), None)
        lines += [] if unused else [tr("They run on its CPU.")]
    else:
        unused = next((d for d in gpus if d.kind == "dgpu" and d.state != "usable"), None)
        lines.append(_where(best, total))
    if unused is not None:
        lines.append(tr("{name} is not used; the page System says why.").format(name=device_name(unused)))
    return "\n".join(lines)


def _where(gpu: Device, total: int) -> str:
    """Which models run on the GPU: a card holds few of them whole, and not every integrated GPU beats its CPU."""
    name = device_name(gpu)
    if gpu.kind == "dgpu" and 0 < budget(gpu) < total:
        words = tr("Those of up to about {n} billion run on {name}, larger ones in part.")
        return words.format(n=formatted.whole(_billions(budget(gpu))), name=name)
    is_strong = gpu.vendor == "Apple" or (gpu.vendor != "Qualcomm" and any(r.matrix_units for r in gpu.runtimes))
    if gpu.kind == "igpu" and not is_strong:
        return tr("They run on {name} or on its CPU, whichever is faster.").format(name=name)
    return tr("They run on {name}.").format(name=name)


def _best(machine: Machine) -> Device | None:
    """The device that most models run on: a card before an integrated GPU, although that one has more memory."""
    return max(machine.devices, key=lambda device: (rank(device), budget(device)), default=None)


def _total_bytes(machine: Machine) -> int:
    """Memory for models, on the largest device or in main memory, as far as this process may use it."""
    best, memory = _best(machine), machine.memory
    return max(budget(best) if best else 0, memory.limit_bytes or memory.total_bytes or 0)


def _billions(num_bytes: int) -> int:
    """Billions of parameters that fit into this memory, at least one."""
    return max(1, round(num_bytes * _USABLE_FRACTION * _PARAMETERS_AT_4_BITS / 1e9))


def gpu_text(machine: Machine) -> str:
    """What set-up and `tessera doctor` print about the GPUs: a line for each."""
    return "\n".join(
        formatted.without_ticks(line) for line in gpu_lines(machine, lambda text: known_text(tr(text)))
    )


def rank(device: Device) -> int:
    """Sort key: cards before integrated GPUs before the CPU, usable devices before others."""
    return {"dgpu": 3, "igpu": 2, "cpu": 1}.get(device.kind, 0) if device.state == "usable" else -1


def backend_text(name: str) -> str:
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
        backend_text(run.backend)
        for run in device.runtimes
        if run.state == "usable" and run.backend not in _RUNS_NOTHING_ALONE
    ]
    if usable:
        parts.append(tr("runs {backends}").format(backends=", ".join(usable)))
    return " · ".join(parts)


def live_facts(sample: DeviceUsage) -> str:
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
