"""External programs that serve a model instead of Tessera's runners: commands, memory needs and placement.

Such a program serves OpenAI's protocol on loopback. `KINDS` has one row per kind of program, with everything that
differs between kinds. engine/upstreams/external.py starts the programs.
"""

import math
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from devices.errors import TesseraError
from devices.memory_ledger import Ledger
from devices.programs import installed_program
from devices.types import Device, Machine
from engine.core.errors import BadModelFile, InputFault
from engine.core.hf_folder import read_json
from engine.core.json_store import JsonStore, with_row
from engine.core.paths import Paths
from engine.message_catalog.reasons import Reason, because
from engine.placement import fastflowlm, llama_server
from engine.placement.estimate import overdraft
from engine.placement.fit_report import claim
from engine.placement.types import CPU, FitReport, MemoryEstimate, MemoryPart, PartName, Placement
from engine.runner.protocol import ExternalProgram, LoadSettings
from quantize.files.safetensors_file import links_root, safe_member

# Models that another server runs (engine/upstreams): nothing is started or reserved on this computer.
UPSTREAM: Final = "upstream"
# Names that start with a digit are versions of llama-cpp-python.
_NAME: Final = re.compile(r"[a-z][a-z0-9._-]{0,39}")
# Prefix of their paths, followed by the upstream's name, a slash and the model's name on that server.
UPSTREAM_PREFIX: Final = "upstream:"
# Requests that vLLM runs in parallel, as many as Tessera's runner.
VLLM_PARALLEL: Final = 4
# Keys and values take two bytes per number unless the user sets a smaller type. Source: vLLM,
# --kv-cache-dtype auto.
_CACHE_VALUE_BYTES: Final = 2
# Memory in addition to weights and cache: CUDA's context, the largest step's activations and CUDA graphs; on the
# host the Python of the API server and the engine. Source: vLLM's own logs of 7B and 8B models; not measured by
# this project.
GPU_WORK_BYTES: Final = 3_000_000_000
HOST_BYTES: Final = 3_000_000_000
# vLLM takes a share of the GPU, set here in hundredths, and does not start if less is free.
_STEPS: Final = 100
GIB: Final = 1 << 30
_MOST: Final = 1 << 24
# FastFlowLM's server without a model, and a model whose size its list does not give (a 3B of its list). Not
# measured.
FLM_BYTES: Final = 300_000_000
UNKNOWN_BYTES: Final = 3_000_000_000


class Address(msgspec.Struct, frozen=True):
    """Port of a program, and the key that requests to it carry."""

    port: int
    key: str


class Command(msgspec.Struct, frozen=True):
    """Arguments of a program, and environment variables in addition to those of every child process."""

    arguments: tuple[str, ...]
    environment: dict[str, str] = {}


class ExternalKind(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of program.

    `title` is its display name. `speaks` is its protocol's kind: engine/chat/openai_forward.py lists what a server
    of that kind accepts and what it cannot do. `program` returns its path (empty: not installed). `reads` is the
    format of the library's models that it serves; `models` lists its own models and can refresh that list. It is
    ready when `health` responds, and its start fails after `ready_s`; `advice` ends the message of a failed start.
    `is_measured`: its process shows the memory that the model takes. `memory_note` says what is unknown about its
    memory. Without `place` and `need` the program is llama.cpp, and its loads are placed with the same formulas as
    Tessera's own. `facts` are fields of `ModelFacts` that are known here.
    """

    title: str
    speaks: str
    place: Callable[[LoadSettings, Machine, Ledger, str], Placement] | None = None
    need: Callable[[LoadSettings, Machine], MemoryEstimate] | None = None
    memory_note: Reason | None = None
    program: Callable[[], str] = lambda: ""
    reads: str = ""
    models: Callable[[bool], tuple[fastflowlm.FlmModel, ...]] | None = None
    settings: Callable[[ExternalProgram, str, int], LoadSettings] | None = None
    command: Callable[[LoadSettings, Address], Command] | None = None
    facts: Callable[[LoadSettings], dict[str, Any]] = lambda _settings: {}
    model_name: Callable[[LoadSettings], str] = lambda settings: Path(settings.path).name
    health: str = "/health"
    ready_s: float = 300.0
    advice: str = ""
    is_measured: bool = True


def kind_of(settings: LoadSettings) -> ExternalKind | None:
    """The row of the program that serves a load; None if one of Tessera's runners does."""
    return KINDS[settings.external.kind] if settings.external is not None else None


def external_settings(kind_name: str, path: str, n_ctx: int) -> LoadSettings | None:
    """Settings to load a model (folder or own name) in a program found here; None if there is no such kind."""
    kind = KINDS.get(kind_name)
    if kind is None or kind.settings is None:
        return None
    return kind.settings(ExternalProgram(name=kind_name, kind=kind_name, program=kind.program()), path, n_ctx)


def place_external(settings: LoadSettings, machine: Machine, ledger: Ledger, owner: str = "") -> Placement:
    """Placement of a load in its external program. Raises: BadModelFile."""
    place = KINDS[settings.external.kind].place if settings.external is not None else None
    assert place is not None
    return place(settings, machine, ledger, owner)


def admit_external(model_id: str, settings: LoadSettings, machine: Machine, ledger: Ledger) -> None:
    """Reserve the memory of a load on this computer. Raises: NotEnoughMemory, BadModelFile."""
    external = settings.external
    assert external is not None
    need = _need_of(settings, machine)
    if not need.parts:
        return

    def report() -> FitReport:
        placed = place_external(settings, machine, ledger, model_id)
        return external_report(model_id, msgspec.structs.replace(placed, need=need, fits=False), machine, ledger)

    claim(model_id, need, f"{external.name}|{need.devices[0]}", machine, ledger, report)


def external_report(model_id: str, placement: Placement, machine: Machine, ledger: Ledger) -> FitReport:
    """Whether the load fits now; a load that takes no memory here always fits."""
    need, kind = placement.need, kind_of(placement.settings)
    if not need.parts:
        return FitReport(model=model_id, fits=True, need=need, available_bytes={}, largest_context=0)
    return FitReport(
        model=model_id,
        fits=placement.fits,
        need=need,
        available_bytes={device: ledger.available(device, machine, exclude=model_id) for device in need.devices},
        largest_context=need.n_ctx if placement.fits else 0,
        notes=(kind.memory_note,) if kind is not None and kind.memory_note is not None else (),
    )


def _program(variable: str, name: str) -> str:
    """The file that `variable` names, else `name` on the search path; empty if not found."""
    path = os.environ.get(variable)
    if path:
        return path if Path(path).is_file() else ""
    return installed_program(name) or ""


def _placed(
    settings: LoadSettings, machine: Machine, ledger: Ledger, owner: str, device: str, reasons: tuple[Reason, ...]
) -> Placement:
    assert settings.external is not None
    placed_on, need = machine.device(device), _need_of(settings, machine)
    return Placement(
        device=device,
        device_name=placed_on.name if placed_on else device,
        backend=settings.external.kind,
        n_layers=0,
        settings=settings,
        need=need,
        fits=overdraft(ledger, need, owner) is None,
        reasons=reasons,
    )


def _need_of(settings: LoadSettings, machine: Machine) -> MemoryEstimate:
    kind = kind_of(settings)
    assert kind is not None
    assert kind.need is not None
    return kind.need(settings, machine)


def _need(settings: LoadSettings, sizes: Iterable[tuple[PartName, str, int]]) -> MemoryEstimate:
    """Memory need of a load, part by part; no part comes from llama.cpp's formulas."""
    parts = tuple(MemoryPart(name=name, device=at, num_bytes=size, basis="prior") for name, at, size in sizes)
    return MemoryEstimate(
        n_ctx=settings.n_ctx,
        kv_cells=settings.kv_cells,
        n_sequences=settings.n_parallel,
        type_k="",
        type_v="",
        n_gpu_layers=0,
        parts=parts,
        resident_bytes=sum(part.num_bytes for part in parts if part.device == CPU),
    )


# ---- Models of upstreams


def upstream_settings(upstream: str, model: str, n_ctx: int) -> LoadSettings:
    """Settings of another server's model: its name and, if known, its context."""
    path = f"{UPSTREAM_PREFIX}{upstream}/{model}"
    return LoadSettings(path=path, n_ctx=n_ctx, external=ExternalProgram(name=upstream, kind=UPSTREAM))


def place_upstream(
    settings: LoadSettings, _machine: Machine | None = None, _ledger: Ledger | None = None, _owner: str = ""
) -> Placement:
    """Placement on an upstream: its device is `remote:` and the upstream's name."""
    name, _, model = settings.path.removeprefix(UPSTREAM_PREFIX).partition("/")
    return Placement(
        device=f"remote:{name}",
        device_name=name,
        backend="remote",
        n_layers=0,
        settings=settings,
        need=_need(settings, ()),
        fits=True,
        reasons=(because("upstream", upstream=name, model=model),),
    )


# ---- FastFlowLM, the server for AMD's NPUs


def _flm_settings(program: ExternalProgram, path: str, n_ctx: int) -> LoadSettings:
    return LoadSettings(path=path, n_ctx=n_ctx, n_parallel=1, external=program)


def _flm_place(settings: LoadSettings, machine: Machine, ledger: Ledger, owner: str) -> Placement:
    footprint = fastflowlm.installed_model(settings.path).footprint_bytes
    npu = next((d for d in machine.devices if d.kind == "npu" and d.vendor == "AMD"), None)
    memory = (
        because("flm_memory", gib=footprint / 2**30)
        if footprint
        else because("flm_memory_unknown", gib=UNKNOWN_BYTES / 2**30)
    )
    reasons = (because("flm" if npu else "flm_without_npu"), memory, because("untried"))
    return _placed(settings, machine, ledger, owner, npu.id if npu else "npu", reasons)


def _flm_need(settings: LoadSettings, _machine: Machine) -> MemoryEstimate:
    """Memory of the model according to FastFlowLM's list, and of its server; AMD's NPUs use system memory."""
    footprint = fastflowlm.installed_model(settings.path).footprint_bytes
    return _need(settings, (("weights", CPU, footprint or UNKNOWN_BYTES), ("overhead", CPU, FLM_BYTES)))


def _flm_command(settings: LoadSettings, address: Address) -> Command:
    options = ("--host", "127.0.0.1", "--port", str(address.port))  # its default is every network interface
    arguments = ("serve", settings.path, *options, "--ctx-len", str(settings.n_ctx))
    return Command(arguments, {"FLM_DISABLE_UPDATE_CHECK": "1"})


# ---- vLLM, which reads folders of safetensors


class VllmModel(msgspec.Struct, frozen=True, kw_only=True):
    """Facts from a folder's files: bytes of all weights, and bytes of cache per token."""

    weights_bytes: int
    token_bytes: int


def describe_folder(folder: Path) -> VllmModel:
    """Read the folder's configuration. Raises: BadModelFile: it does not give the size of a token's cache."""
    try:
        config = read_json(safe_member(folder, "config.json", links_root(folder)))
    except TesseraError as error:
        raise BadModelFile(str(folder), str(error)) from error
    inner = config.get("text_config")
    text_config = inner if isinstance(inner, dict) else config
    heads = _count(text_config, "num_attention_heads")
    width = _count(text_config, "head_dim") or _count(text_config, "hidden_size") // max(1, heads)
    rows = _count(text_config, "num_hidden_layers") * (_count(text_config, "num_key_value_heads") or heads) * width
    if not rows:
        raise BadModelFile(str(folder), because("no_layers_in_config"))
    weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    return VllmModel(weights_bytes=weights, token_bytes=2 * _CACHE_VALUE_BYTES * rows)


def _count(config: dict[str, Any], name: str) -> int:
    value = config.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < _MOST else 0


def _vllm_settings(program: ExternalProgram, path: str, n_ctx: int) -> LoadSettings:
    cells = n_ctx * VLLM_PARALLEL
    return LoadSettings(path=path, n_ctx=n_ctx, kv_cells=cells, n_parallel=VLLM_PARALLEL, external=program)


def _vllm_place(settings: LoadSettings, machine: Machine, ledger: Ledger, owner: str) -> Placement:
    """Placement on the NVIDIA GPU with the most free memory, else on the CPU. Raises: BadModelFile."""
    gpus = _nvidia(machine)
    gpu = max(gpus, key=lambda d: ledger.available(d.id, machine, exclude=owner), default=None)
    if gpu is None:
        settings = msgspec.structs.replace(settings, provider=CPU, gpu_frac=0.0)
        reasons = (because("vllm"), because("vllm_processor"), because("untried"))
        return _placed(settings, machine, ledger, owner, CPU, reasons)
    model = describe_folder(Path(settings.path))
    needed = model.weights_bytes + settings.kv_cells * model.token_bytes + GPU_WORK_BYTES
    part = math.ceil(needed / (gpu.memory.physical_bytes or 1) * _STEPS) / _STEPS
    settings = msgspec.structs.replace(settings, provider=f"cuda:{gpus.index(gpu)}", gpu_frac=part)
    gpu_reason = because("vllm_gpu", gib=_vllm_need(settings, machine).device_bytes(gpu.id) / 2**30)
    return _placed(settings, machine, ledger, owner, gpu.id, (because("vllm"), gpu_reason, because("untried")))


def _vllm_need(settings: LoadSettings, machine: Machine) -> MemoryEstimate:
    """Weights, cache and work memory of a load; on a GPU rounded up to its reserved share. Raises: BadModelFile."""
    model = describe_folder(Path(settings.path))
    gpu = next((d for i, d in enumerate(_nvidia(machine)) if settings.provider == f"cuda:{i}"), None)
    host: tuple[PartName, str, int] = ("overhead", CPU, HOST_BYTES)
    if gpu is None:
        cache = _cache_gib(settings, model) * GIB
        return _need(settings, (("weights", CPU, model.weights_bytes), ("kv", CPU, cache), host))
    cache = settings.kv_cells * model.token_bytes
    granted = int(settings.gpu_frac * (gpu.memory.physical_bytes or 0))
    work: tuple[PartName, str, int] = ("compute", gpu.id, max(0, granted - model.weights_bytes - cache))
    return _need(settings, (("weights", gpu.id, model.weights_bytes), ("kv", gpu.id, cache), work, host))


def _cache_gib(settings: LoadSettings, model: VllmModel) -> int:
    """GiB of cache for the CPU build: an integer, at least one."""
    return max(1, math.ceil(settings.kv_cells * model.token_bytes / GIB))


def _nvidia(machine: Machine) -> list[Device]:
    """NVIDIA GPUs in the order of their PCI addresses, as CUDA_DEVICE_ORDER=PCI_BUS_ID numbers them."""
    gpus = [d for d in machine.devices if d.kind == "dgpu" and d.vendor == "NVIDIA" and d.state == "usable"]
    return sorted((d for d in gpus if d.memory.physical_bytes), key=lambda d: d.id)


def _vllm_command(settings: LoadSettings, address: Address) -> Command:
    folder = Path(settings.path)
    arguments = ["serve", str(folder), "--host", "127.0.0.1", "--port", str(address.port)]
    arguments += ["--served-model-name", folder.name, "--max-model-len", str(settings.n_ctx)]
    # Nothing leaves this computer, and the server on loopback accepts only Tessera's requests.
    environment = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_API_KEY": address.key}
    provider, _, number = settings.provider.partition(":")
    if provider == "cuda":
        arguments += ["--gpu-memory-utilization", f"{settings.gpu_frac:.2f}"]
        environment |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": number}
    else:
        environment["VLLM_CPU_KVCACHE_SPACE"] = str(_cache_gib(settings, describe_folder(folder)))
    return Command(tuple(arguments), environment)


# ---- llama-server, any build of it, which reads GGUF files


class ProgramStore:
    """Programs that the user added, by name, in a file that the CLI and the server share.

    No HTTP route adds one: a client that may use models must not be able to make the server start a program.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._store = JsonStore(path, dict[str, ExternalProgram], dict)

    def all(self) -> dict[str, ExternalProgram]:
        """Every added program."""
        return self._store.get()

    def get(self, name: str) -> ExternalProgram:
        """One program. Raises: InputFault: no program has that name."""
        program = self.all().get(name)
        if program is None:
            raise InputFault(because("no_such_program", name=name, there=tuple(self.all()) or ("none",)), "engine")
        return program

    def add(self, name: str, program: Path, arguments: tuple[str, ...] = ()) -> llama_server.Build:
        """Add or replace a build of llama-server; return what it reports about itself.

        Raises: InputFault: a bad name, no such program, or arguments that only Tessera may set. OSError.
        """
        if not _NAME.fullmatch(name) or name in KINDS or name == "shipped":
            raise InputFault(because("program_name", name=name), "name")
        llama_server.check_arguments(arguments)
        build = llama_server.inspect(str(program.absolute()))
        kind = llama_server.NAME
        row = ExternalProgram(name=name, kind=kind, program=str(program.absolute()), arguments=arguments)
        self._store.change(lambda old: with_row(old, name, row))
        return build

    def remove(self, name: str) -> None:
        """Remove a program from the list; its file stays. Raises: InputFault: no program has that name. OSError."""
        self.get(name)
        self._store.change(lambda old: with_row(old, name, None))


def open_programs(paths: Paths) -> ProgramStore:
    """This user's added programs."""
    return ProgramStore(paths.config / "programs.json")


KINDS: Final = {
    llama_server.NAME: ExternalKind(
        title=llama_server.NAME,
        speaks="llama-server",
        memory_note=because("llama_server_memory"),
        reads="gguf",
        command=lambda settings, address: Command(
            llama_server.arguments(settings, address.port), {"LLAMA_API_KEY": address.key}
        ),
        facts=llama_server.facts,
        model_name=llama_server.model_name,
        health="/health",
        ready_s=1200.0,  # a large model from a slow disk
    ),
    "vllm": ExternalKind(
        title="vLLM",
        speaks="vllm",
        place=_vllm_place,
        need=_vllm_need,
        memory_note=because("vllm_memory"),
        program=lambda: _program("TESSERA_VLLM", "vllm"),
        reads="safetensors",
        settings=_vllm_settings,
        command=_vllm_command,
        health="/v1/models",
        ready_s=1200.0,  # a large model from a slow disk, plus compiling kernels and capturing CUDA graphs
    ),
    "flm": ExternalKind(
        title="FastFlowLM",
        speaks="flm",
        place=_flm_place,
        need=_flm_need,
        memory_note=because("flm_cache"),
        program=lambda: fastflowlm.executable() or "",
        models=lambda fresh: fastflowlm.installed_models(fresh=fresh),
        settings=_flm_settings,
        command=_flm_command,
        model_name=lambda settings: settings.path,
        health="/api/tags",
        ready_s=300.0,  # large models take minutes to load onto the NPU. Source: Lemonade waits as long
        advice="Try `flm validate`.",
        is_measured=False,  # the NPU's memory may not show in a process
    ),
    UPSTREAM: ExternalKind(
        title="another server",
        speaks="openai",
        place=place_upstream,
        need=lambda settings, _machine: _need(settings, ()),
    ),
}
