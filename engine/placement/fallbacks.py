"""Chooses the next settings after a failed load or a crash at the first token: one change at a time."""

from collections.abc import Callable, Mapping

import msgspec

from devices.types import Machine
from engine.message_catalog.reasons import because
from engine.placement.load_settings import DEFAULT_PARALLEL
from engine.placement.openvino import is_openvino
from engine.placement.types import Fallback
from engine.runner.protocol import LoadSettings

SMALLEST_UBATCH = 128
# Long prompts on small GPUs with a short time limit pass with this many rows. Source: llama.cpp, issue 21724.
SMALLEST_DEEP_UBATCH = 64
# Switches of backends that are tried before another backend or the CPU: matrix units and half precision of Vulkan
# drivers, pinned memory of CUDA and ROCm.
SWITCHES: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "vulkan": (
        ("matrix_units_off", ("GGML_VK_DISABLE_COOPMAT", "GGML_VK_DISABLE_COOPMAT2")),
        ("half_precision_off", ("GGML_VK_DISABLE_F16",)),
    ),
    "cuda": (("memory_not_pinned", ("GGML_CUDA_NO_PINNED",)),),
    "rocm": (("memory_not_pinned", ("GGML_CUDA_NO_PINNED",)),),
}
# A vendor's Vulkan drivers on Linux: the one that llama.cpp uses if several are installed, then the others.
# Each is the start of a file name: drivers are listed in one JSON file each.
DRIVERS: dict[str, tuple[str, str]] = {"AMD": ("radeon", "amd_"), "Intel": ("intel_icd", "intel_hasvk")}
# Value in settings without restrictions.
MAX_DRAFT = 16
# ggml's name of the operation.
FLASH_ATTENTION = "FLASH_ATTN_EXT"
# Cache types of V that attention can read without flash attention.
UNQUANTIZED = ("f16", "bf16", "f32")


def next_fallback(
    settings: LoadSettings,
    machine: Machine,
    tried: tuple[LoadSettings, ...],
    may_try: Callable[[LoadSettings], bool] = lambda _settings: True,
) -> Fallback | None:
    """The next settings to try, of those that `may_try` allows; None if nothing is left.

    In order: without the model's own draft head and state copies, another backend of the same device, a smaller
    ubatch, the plain f16 cache, switches of the backend, another Vulkan driver, the CPU, then without Tessera's own
    kernels, without repacked weights, and without mapping the file.
    """
    untried = (fallback for fallback in _fallbacks(settings, machine) if fallback.settings not in tried)
    return next((fallback for fallback in untried if may_try(fallback.settings)), None)


def _fallbacks(settings: LoadSettings, machine: Machine) -> list[Fallback]:
    replace = msgspec.structs.replace
    fallbacks = []
    if is_openvino(settings):
        return [_on_cpu(settings)]
    if settings.mtp or settings.max_rollback:
        plain = replace(settings, mtp=False, max_rollback=0)
        fallbacks.append(Fallback(settings=plain, change=because("without_guesses")))
    if settings.devices:
        fallbacks += _on_other_backends(settings, machine)
    smaller = settings.n_ubatch // 2
    if smaller >= SMALLEST_UBATCH:
        fallbacks.append(_with_ubatch(settings, smaller))
    if (settings.type_k, settings.type_v) != ("f16", "f16"):
        plain = replace(settings, type_k="f16", type_v="f16", flash_attn="auto")
        fallbacks.append(Fallback(settings=plain, change=because("cache_in_f16")))
    if settings.n_gpu_layers or settings.devices:
        fallbacks += _switched_off(settings, machine) if settings.devices else []
        fallbacks.append(_on_cpu(settings))
    return [*fallbacks, *_of_weights(settings)]


def prefill_fallbacks(settings: LoadSettings, machine: Machine) -> list[Fallback]:
    """The settings to try after a runner died while it read a long prompt.

    In order: half the ubatch, switches of the backend, another Vulkan driver, other backends, the CPU.
    """
    fallbacks, smaller = [], settings.n_ubatch // 2
    if smaller >= SMALLEST_DEEP_UBATCH:
        fallbacks.append(_with_ubatch(settings, smaller))
    if settings.devices and settings.n_gpu_layers:
        fallbacks += [*_switched_off(settings, machine), *_on_other_backends(settings, machine), _on_cpu(settings)]
    return fallbacks


def _with_ubatch(settings: LoadSettings, smaller: int) -> Fallback:
    reduced = msgspec.structs.replace(settings, n_ubatch=smaller, n_batch=min(settings.n_batch, 4 * smaller))
    return Fallback(settings=reduced, change=because("shorter_pieces", tokens=smaller))


def _switched_off(settings: LoadSettings, machine: Machine) -> list[Fallback]:
    runtimes = (r for d in machine.devices for r in d.runtimes if r.device_name == settings.devices[0])
    backend = next((r.backend for r in runtimes), "")
    fallbacks = []
    for kind, names in SWITCHES.get(backend, ()):
        variables = with_variables(settings.variables, dict.fromkeys(names, "1"))
        if variables != settings.variables:
            changed = msgspec.structs.replace(settings, variables=variables)
            fallbacks.append(Fallback(settings=changed, change=because(kind)))
    return [*fallbacks, *_by_other_driver(settings, machine)] if backend == "vulkan" else fallbacks


def _by_other_driver(settings: LoadSettings, machine: Machine) -> list[Fallback]:
    """The same through another installed Vulkan driver of the device's vendor, as AMDVLK next to RADV."""
    name = settings.devices[0]
    vendor = next((d.vendor for d in machine.devices for r in d.runtimes if r.device_name == name), "")
    usual, other = DRIVERS.get(vendor, (None, None))
    files = {path: path.rpartition("/")[2] for path in machine.vulkan_drivers}
    installed = [word for word in (usual, other) if word and any(f.startswith(word) for f in files.values())]
    if usual is None or len(installed) <= 1:
        return []
    # The lists of other vendors stay, so that their GPUs keep their numbers.
    left = ":".join(path for path, file in files.items() if not file.startswith(usual))
    variables = with_variables(settings.variables, {"VK_ICD_FILENAMES": left})
    if variables == settings.variables:
        return []
    changed = msgspec.structs.replace(settings, variables=variables)
    return [Fallback(settings=changed, change=because("other_vulkan_driver"))]


def with_variables(present: tuple[str, ...], more: Mapping[str, str]) -> tuple[str, ...]:
    """The variables of a load (NAME=VALUE) together with added ones, sorted by name."""
    variables = {name: value for name, _, value in (variable.partition("=") for variable in present)}
    return tuple(f"{name}={value}" for name, value in sorted({**variables, **more}.items()))


def _of_weights(settings: LoadSettings) -> list[Fallback]:
    fallbacks = []
    if settings.tiles:
        fallbacks.append(without_tiles(settings))
    if settings.repack:
        fallbacks.append(as_in_file(settings))
    if settings.use_mmap and not settings.expert_bytes:  # streamed experts do not fit without mmap
        mapped = msgspec.structs.replace(settings, use_mmap=False)
        fallbacks.append(Fallback(settings=mapped, change=because("read_the_file")))
    return fallbacks


def without_tiles(settings: LoadSettings) -> Fallback:
    """The same settings with llama.cpp's own kernels only."""
    return Fallback(settings=msgspec.structs.replace(settings, tiles=()), change=because("llama_kernels_only"))


def as_in_file(settings: LoadSettings) -> Fallback:
    """The same settings without repacked weights."""
    return Fallback(settings=msgspec.structs.replace(settings, repack=False), change=because("weights_as_in_file"))


def sound_fallbacks(settings: LoadSettings, machine: Machine) -> list[Fallback]:
    """Fallbacks for a device that computes wrong results, in order: no flash attention, other backends, the CPU."""
    fallbacks = []
    if is_openvino(settings):
        return [_on_cpu(settings)]
    if settings.flash_attn != "off":
        plain = without_flash_attention(settings)
        change = because("without_flash_attention", devices=settings.devices)
        fallbacks.append(Fallback(settings=plain, change=change))
    if settings.devices:
        fallbacks += _on_other_backends(settings, machine)
    return [*fallbacks, _on_cpu(settings)]


def without_flash_attention(settings: LoadSettings) -> LoadSettings:
    """The same settings with attention in separate steps, which cannot read a quantized V."""
    cache = settings.type_v if settings.type_v in UNQUANTIZED else "f16"
    return msgspec.structs.replace(settings, flash_attn="off", type_v=cache)


def _on_cpu(settings: LoadSettings) -> Fallback:
    """llama.cpp's own kernels; restores the settings that OpenVINO does not support."""
    cpu = msgspec.structs.replace(settings, n_gpu_layers=0, devices=(), tensor_split=(), cpu_expert_layers=0)
    if is_openvino(settings):
        cpu = msgspec.structs.replace(
            cpu, n_parallel=DEFAULT_PARALLEL, max_draft=MAX_DRAFT, n_batch=2048, n_ubatch=512
        )
    return Fallback(settings=cpu, change=because("on_processor"))


def _on_other_backends(settings: LoadSettings, machine: Machine) -> list[Fallback]:
    return [
        Fallback(
            settings=msgspec.structs.replace(settings, devices=(name,), tensor_split=()),
            change=because("other_backend", backend=backend, device=name),
        )
        for name, backend in other_backends(settings.devices[0], machine)
    ]


def other_backends(device_name: str, machine: Machine) -> list[tuple[str, str]]:
    """(backend device name, backend) of the same device through other backends, best prior first."""
    owner = next((d for d in machine.devices if any(r.device_name == device_name for r in d.runtimes)), None)
    if owner is None:
        return []
    return [
        (r.device_name, r.backend) for r in owner.runtimes if r.device_name != device_name and r.backend != "onnx"
    ]
