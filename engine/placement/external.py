"""Programs that serve a model in place of our runners: how they start, what they take, and where they run it.

Such a program speaks OpenAI's protocol on loopback. `KINDS` has a row for each kind, and what differs between kinds
is in their rows. engine/upstreams/external.py starts them.
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
from engine.core.hf_folder import links_root, read_json
from engine.core.json_store import JsonStore, with_row
from engine.core.paths import Paths
from engine.message_catalog.reasons import Reason, because
from engine.placement import fastflowlm, llama_server
from engine.placement.estimate import CPU
from engine.placement.fit import overdraft
from engine.placement.fit_report import claim
from engine.placement.types import FitReport, Need, Part, PartName, Placement
from engine.runner.protocol import ExternalProgram, LoadSettings
from quantize.files.safetensors_file import safe_member

# The kind of models that another server runs (engine/upstreams): nothing is started or reserved here.
UPSTREAM: Final = "upstream"
# Numbers first are versions of llama-cpp-python.
_NAME: Final = re.compile(r"[a-z][a-z0-9._-]{0,39}")
# Their path: this, the upstream's name, a slash, the model's name there.
UPSTREAM_PREFIX: Final = "upstream:"
# Requests that vLLM computes at once, as our runner does.
VLLM_PARALLEL: Final = 4
# Keys and values are kept in two bytes a number unless its user asks for less. Source: vLLM, --kv-cache-dtype auto.
_CACHE_VALUE_BYTES: Final = 2
# Beside weights and cache: CUDA's context, the largest step's activations and CUDA graphs; and on the host the
# API server's and the engine's Python. Source: vLLM's own logs of 7B and 8B models; not measured by this project.
GPU_WORK_BYTES: Final = 3_000_000_000
HOST_BYTES: Final = 3_000_000_000
# vLLM takes a part of the GPU, given in hundredths here, and refuses to start where less is free.
_STEPS: Final = 100
GIB: Final = 1 << 30
_MOST: Final = 1 << 24
# FastFlowLM's server without a model, and a model of which its list tells nothing (a 3B of its list). Not measured.
FLM_BYTES: Final = 300_000_000
UNKNOWN_BYTES: Final = 3_000_000_000


class Address(msgspec.Struct, frozen=True):
    """Where a program is to listen, and the key that its requests will carry."""

    port: int
    key: str


class Command(msgspec.Struct, frozen=True):
    """How a program is started: its arguments, and variables beside those that every child gets."""

    arguments: tuple[str, ...]
    environment: dict[str, str] = {}


class ExternalKind(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of program.

    `title` is its name for people, `speaks` its protocol's kind: engine/chat/openai_forward.py has what a server
    of that kind takes and what it cannot do. `program` finds it (empty: it is not here). `reads` is the format of
    the library's models that it serves; `models` lists those of its own, again if asked to. It is ready when
    `health` is answered, and given up after `ready_s`; `advice` ends the report of a start that failed.
    `is_measured`: its process shows what the model takes. `memory_note` is what is not known of its memory.
    Without `place` and `need` the program is llama.cpp, and its loads are placed as ours are, by the same formulas.
    `facts` are fields of `ModelFacts` that are known here.
    """

    title: str
    speaks: str
    place: Callable[[LoadSettings, Machine, Ledger, str], Placement] | None = None
    need: Callable[[LoadSettings, Machine], Need] | None = None
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
    """The row of the program that serves a load; None: a runner of ours does."""
    return KINDS[settings.external.kind] if settings.external is not None else None


def external_settings(kind_name: str, path: str, n_ctx: int) -> LoadSettings | None:
    """How a program that was found here loads a model: a folder, or its own name of it; None: no such kind."""
    kind = KINDS.get(kind_name)
    if kind is None or kind.settings is None:
        return None
    return kind.settings(ExternalProgram(name=kind_name, kind=kind_name, program=kind.program()), path, n_ctx)


def place_external(settings: LoadSettings, machine: Machine, ledger: Ledger, owner: str = "") -> Placement:
    """Where its program runs the model. Raises: BadModelFile."""
    place = KINDS[settings.external.kind].place if settings.external is not None else None
    assert place is not None
    return place(settings, machine, ledger, owner)


def admit_external(model_id: str, settings: LoadSettings, machine: Machine, ledger: Ledger) -> None:
    """Reserve what a load takes here. Raises: NotEnoughMemory, BadModelFile."""
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
    """Whether it fits now; what takes nothing here always does."""
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
    """The file that `variable` names, else `name` of the search path; empty: there is none."""
    named = os.environ.get(variable)
    if named:
        return named if Path(named).is_file() else ""
    return installed_program(name) or ""


def _placed(
    settings: LoadSettings, machine: Machine, ledger: Ledger, owner: str, device: str, reasons: tuple[Reason, ...]
) -> Placement:
    assert settings.external is not None
    found, need = machine.device(device), _need_of(settings, machine)
    return Placement(
        device=device,
        device_name=found.name if found else device,
        backend=settings.external.kind,
        n_layers=0,
        settings=settings,
        need=need,
        fits=overdraft(ledger, need, owner) is None,
        reasons=reasons,
    )


def _need_of(settings: LoadSettings, machine: Machine) -> Need:
    kind = kind_of(settings)
    assert kind is not None
    assert kind.need is not None
    return kind.need(settings, machine)


def _need(settings: LoadSettings, sizes: Iterable[tuple[PartName, str, int]]) -> Need:
    """What a load takes, part by part; none of it is a formula of llama.cpp's."""
    parts = tuple(Part(name=name, device=at, num_bytes=size, basis="prior") for name, at, size in sizes)
    return Need(
        n_ctx=settings.n_ctx,
        kv_cells=settings.kv_cells,
        n_sequences=settings.n_parallel,
        type_k="",
        type_v="",
        n_gpu_layers=0,
        parts=parts,
        resident_bytes=sum(part.num_bytes for part in parts if part.device == CPU),
    )


# ---- models of upstreams


def upstream_settings(upstream: str, model: str, n_ctx: int) -> LoadSettings:
    """A model of another server, which chose its own settings; these name it, and what is known of its context."""
    path = f"{UPSTREAM_PREFIX}{upstream}/{model}"
    return LoadSettings(path=path, n_ctx=n_ctx, external=ExternalProgram(name=upstream, kind=UPSTREAM))


def place_upstream(
    settings: LoadSettings, _machine: Machine | None = None, _ledger: Ledger | None = None, _owner: str = ""
) -> Placement:
    """On an upstream: its device is `remote:` and its name."""
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


# ---- FastFlowLM, the server of AMD's NPUs


def _flm_settings(program: ExternalProgram, path: str, n_ctx: int) -> LoadSettings:
    return LoadSettings(path=path, n_ctx=n_ctx, n_parallel=1, external=program)


def _flm_place(settings: LoadSettings, machine: Machine, ledger: Ledger, owner: str) -> Placement:
    """On the NPU that it drives."""
    footprint = fastflowlm.installed_model(settings.path).footprint_bytes
    npu = next((d for d in machine.devices if d.kind == "npu" and d.vendor == "AMD"), None)
    memory = (
        because("flm_memory", gb=footprint / 1e9)
        if footprint
        else because("flm_memory_unknown", gb=UNKNOWN_BYTES / 1e9)
    )
    reasons = (because("flm" if npu else "flm_without_npu"), memory, because("untried"))
    return _placed(settings, machine, ledger, owner, npu.id if npu else "npu", reasons)


def _flm_need(settings: LoadSettings, _machine: Machine) -> Need:
    """What its list says that a model takes, and its server; an NPU of AMD works in the CPU's memory."""
    footprint = fastflowlm.installed_model(settings.path).footprint_bytes
    return _need(settings, (("weights", CPU, footprint or UNKNOWN_BYTES), ("overhead", CPU, FLM_BYTES)))


def _flm_command(settings: LoadSettings, address: Address) -> Command:
    options = ("--host", "127.0.0.1", "--port", str(address.port))  # its default is every network interface
    arguments = ("serve", settings.path, *options, "--ctx-len", str(settings.n_ctx))
    return Command(arguments, {"FLM_DISABLE_UPDATE_CHECK": "1"})


# ---- vLLM, which reads folders of safetensors


class VllmModel(msgspec.Struct, frozen=True, kw_only=True):
    """What a folder's files say: bytes of all weights, and of the cache of one token."""

    weights_bytes: int
    token_bytes: int


def describe_folder(folder: Path) -> VllmModel:
    """Read the folder's configuration. Raises: BadModelFile: it does not say how large a token's cache is."""
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
    """On the NVIDIA GPU with most room, else on the CPU. Raises: BadModelFile."""
    gpus = _nvidia(machine)
    gpu = max(gpus, key=lambda d: ledger.available(d.id, machine, exclude=owner), default=None)
    if gpu is None:
        settings = msgspec.structs.replace(settings, provider=CPU, gpu_frac=0.0)
        reasons = (because("vllm"), because("vllm_processor"), because("untried"))
        return _placed(settings, machine, ledger, owner, CPU, reasons)
    model = describe_folder(Path(settings.path))
    wanted = model.weights_bytes + settings.kv_cells * model.token_bytes + GPU_WORK_BYTES
    part = math.ceil(wanted / (gpu.memory.physical_bytes or 1) * _STEPS) / _STEPS
    settings = msgspec.structs.replace(settings, provider=f"cuda:{gpus.index(gpu)}", gpu_frac=part)
    taken = because("vllm_gpu", gb=_vllm_need(settings, machine).device_bytes(gpu.id) / 1e9)
    return _placed(settings, machine, ledger, owner, gpu.id, (because("vllm"), taken, because("untried")))


def _vllm_need(settings: LoadSettings, machine: Machine) -> Need:
    """Weights, cache and work of a load; on a GPU rounded up to the part it is given. Raises: BadModelFile."""
    model = describe_folder(Path(settings.path))
    gpu = next((d for i, d in enumerate(_nvidia(machine)) if settings.provider == f"cuda:{i}"), None)
    host: tuple[PartName, str, int] = ("overhead", CPU, HOST_BYTES)
    if gpu is None:
        cache = _cache_gib(settings, model) * GIB
        return _need(settings, (("weights", CPU, model.weights_bytes), ("kv", CPU, cache), host))
    cache = settings.kv_cells * model.token_bytes
    given = int(settings.gpu_frac * (gpu.memory.physical_bytes or 0))
    work: tuple[PartName, str, int] = ("compute", gpu.id, max(0, given - model.weights_bytes - cache))
    return _need(settings, (("weights", gpu.id, model.weights_bytes), ("kv", gpu.id, cache), work, host))


def _cache_gib(settings: LoadSettings, model: VllmModel) -> int:
    """GiB of cache that the CPU build is given: whole ones, at least one."""
    return max(1, math.ceil(settings.kv_cells * model.token_bytes / GIB))


def _nvidia(machine: Machine) -> list[Device]:
    """NVIDIA's GPUs in the order of their PCI addresses, as CUDA_DEVICE_ORDER=PCI_BUS_ID counts them."""
    found = [d for d in machine.devices if d.kind == "dgpu" and d.vendor == "NVIDIA" and d.state == "usable"]
    return sorted((d for d in found if d.memory.physical_bytes), key=lambda d: d.id)


def _vllm_command(settings: LoadSettings, address: Address) -> Command:
    folder = Path(settings.path)
    arguments = ["serve", str(folder), "--host", "127.0.0.1", "--port", str(address.port)]
    arguments += ["--served-model-name", folder.name, "--max-model-len", str(settings.n_ctx)]
    # Nothing leaves this computer, and the server on loopback answers nobody but us.
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
    """Programs that the user added, by name, in a file that the terminal and the server share.

    No route of the server adds one: whoever may ask it for models may not make it start a program.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._store = JsonStore(path, dict[str, ExternalProgram], dict)

    def all(self) -> dict[str, ExternalProgram]:
        """Every added program."""
        return self._store.get()

    def get(self, name: str) -> ExternalProgram:
        """One of them. Raises: InputFault: there is none of that name."""
        found = self.all().get(name)
        if found is None:
            raise InputFault(because("no_such_program", name=name, there=tuple(self.all()) or ("none",)), "engine")
        return found

    def add(self, name: str, program: Path, arguments: tuple[str, ...] = ()) -> llama_server.Build:
        """Add a build of llama-server, or replace it; returns what it says of itself.

        Raises: InputFault: a bad name, no such program, or arguments that are Tessera's to decide. OSError.
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
        """Forget a program; its file stays. Raises: InputFault: there is none of that name. OSError."""
        self.get(name)
        self._store.change(lambda old: with_row(old, name, None))


def open_programs(paths: Paths) -> ProgramStore:
    """This user's programs."""
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
        ready_s=1200.0,  # weights of a large model from a slow disk, its kernels compiled and its graphs captured
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
        ready_s=300.0,  # large models take minutes to reach the NPU. Source: Lemonade waits as long
        advice="Try `flm validate`.",
        is_measured=False,  # what the NPU holds may not show in a process
    ),
    UPSTREAM: ExternalKind(
        title="another server",
        speaks="openai",
        place=place_upstream,
        need=lambda settings, _machine: _need(settings, ()),
    ),
}
