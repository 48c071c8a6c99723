"""Supports any build of llama-server: its options, its devices, and the command line of a load.

Builds differ: forks for a chip, older and newer ones. Options that a build's --help does not list are not passed.
"""

import re
import subprocess
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec

from devices.environment import without_secrets
from devices.types import Machine
from engine.core.errors import InputFault
from engine.message_catalog.reasons import Reason, because
from engine.placement.shape import model_shape
from engine.runner.engine_args import NO_ARGS
from engine.runner.protocol import LoadSettings
from quantize.files.header_cache import cached_gguf_model

NAME: Final = "llama-server"
# A program that lists devices may have to load a driver first.
TIMEOUT_S: Final = 30.0
_MAX_OUTPUT: Final = 1 << 20
_OPTION: Final = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*")
_DEVICE: Final = re.compile(r"^\s+([A-Za-z][\w.-]*\d+): ", re.MULTILINE)
# A build without these options cannot be used; the reserved ones only Tessera may set.
NEEDED: Final = ("--model", "--alias", "--host", "--port", "--ctx-size", "--parallel")
RESERVED: Final = frozenset(
    {"-m", "--model", "-a", "--alias", "--host", "--port", "-c", "--ctx-size", "-np", "--parallel", "--api-key"}
    | {"--api-key-file", "--ssl-key-file", "--ssl-cert-file", "--path", "--api-prefix", "-hf", "--hf-repo"}
)


class Build(msgspec.Struct, frozen=True, kw_only=True):
    """A build of llama-server: its version, its options, and devices other than the CPU."""

    version: str
    options: frozenset[str]
    devices: tuple[str, ...] = ()
    names_flash_attention: bool = False


def inspect(program: str) -> Build:
    """Run the program once for each version of its file and read what it reports.

    Raises: InputFault: it cannot be started, or is not llama-server.
    """
    try:
        return _inspected(program, Path(program).stat().st_mtime_ns)
    except OSError as error:
        raise InputFault(because("program_gone", program=program, why=error.strerror or str(error))) from error


@lru_cache(maxsize=16)
def _inspected(program: str, _mtime_ns: int) -> Build:
    help_text = _output(program, "--help")
    options = frozenset(_OPTION.findall(help_text))
    missing = tuple(name for name in NEEDED if name not in options)
    if missing:
        raise InputFault(because("no_llama_server", program=program, missing=missing))
    lines = [line.strip() for line in _output(program, "--version").splitlines()]
    version = next((line.partition(":")[2].strip() for line in lines if line.startswith("version")), "")
    listed = _output(program, "--list-devices") if "--list-devices" in options else ""
    return Build(
        version=version[:80],
        options=options,
        devices=tuple(dict.fromkeys(_DEVICE.findall(listed))),
        names_flash_attention=bool(re.search(r"--flash-attn\s+\[?on\|", help_text)),
    )


def _output(program: str, option: str) -> str:
    """Output of the program. Raises: InputFault: it cannot be started, or does not exit."""
    try:
        done = subprocess.run(
            [program, option],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=TIMEOUT_S,
            check=False,
            env=without_secrets(),
        )
    except subprocess.TimeoutExpired as error:
        raise InputFault(because("program_silent", program=program, option=option, seconds=TIMEOUT_S)) from error
    except OSError as error:
        raise InputFault(because("program_gone", program=program, why=error.strerror or str(error))) from error
    return done.stdout[:_MAX_OUTPUT].decode("utf-8", "replace")


def check_arguments(arguments: tuple[str, ...]) -> None:
    """Check the arguments. Raises: InputFault: one sets what only Tessera may set: model, address, key, context."""
    reserved = next((name for name in arguments if name.partition("=")[0] in RESERVED), None)
    if reserved is not None:
        raise InputFault(because("argument_is_ours", argument=reserved))


def pins(build: Build, machine: Machine) -> tuple[str, ...]:
    """Devices of this machine that the build sees, as pin names; the CPU is always included."""
    seen = [
        f"{device.id}/{runtime.backend}"
        for device in machine.devices
        for runtime in device.runtimes
        if runtime.device_name in build.devices and runtime.state == "usable" and device.kind != "cpu"
    ]
    return (*dict.fromkeys(seen), "cpu")


def own_devices(build: Build, machine: Machine) -> tuple[str, ...]:
    """Devices of the build that Tessera does not know, such as a fork's chip."""
    here = {runtime.device_name for device in machine.devices for runtime in device.runtimes}
    return tuple(name for name in build.devices if name not in here)


def plain(settings: LoadSettings) -> LoadSettings:
    """The settings without features of Tessera's own runner, so that none is announced or reserved."""
    quantized = {settings.type_k, settings.type_v} - {"f16"}
    return msgspec.structs.replace(
        settings,
        tiles=(),
        expert_bytes=0,
        lazy_tables=False,
        repack=True,
        mtp=False,
        max_draft=0,
        max_rollback=0,
        draft_path=None,
        lora=(),
        flash_attn="on" if quantized else "auto",
        cache_dir=None,
        cache_ram_bytes=0,
        cache_disk_bytes=0,
        engine_args=NO_ARGS,
        remotes=(),
    )


def reasons(settings: LoadSettings, build: Build, own: tuple[str, ...]) -> tuple[Reason, ...]:
    """Why the model runs there, for the placement."""
    assert settings.external is not None
    runs = because("llama_server", engine=settings.external.name, version=build.version)
    return (runs, because("llama_server_devices", devices=own)) if own else (runs,)


def model_name(settings: LoadSettings) -> str:
    """The model name in requests."""
    return Path(settings.path).stem


def arguments(settings: LoadSettings, port: int) -> tuple[str, ...]:
    """The command line of a load. Raises: InputFault: as `inspect`."""
    program = settings.external
    assert program is not None
    build = inspect(program.program)
    cells = max(settings.kv_cells, settings.n_ctx)
    unified = "--kv-unified" in build.options  # otherwise each parallel request has its own share of the context
    parallel = settings.n_parallel if unified else max(1, min(settings.n_parallel, cells // settings.n_ctx))
    values: dict[str, Any] = {
        "--model": settings.path,
        "--alias": model_name(settings),
        "--host": "127.0.0.1",
        "--port": port,
        "--ctx-size": cells if unified else settings.n_ctx * parallel,
        "--parallel": parallel,
        "--batch-size": settings.n_batch,
        "--ubatch-size": settings.n_ubatch,
        "--cache-type-k": settings.type_k,
        "--cache-type-v": settings.type_v,
        "--cache-ram": 0,  # a prompt cache that the ledger does not count
        "--fit": "off",  # it would choose a context other than the reserved one
    }
    if settings.n_threads:
        batch = settings.n_threads_batch or settings.n_threads
        values |= {"--threads": settings.n_threads, "--threads-batch": batch}
    if build.names_flash_attention:
        values["--flash-attn"] = settings.flash_attn
    if settings.mmproj_path:
        values["--mmproj"] = settings.mmproj_path
    values |= _devices(settings, build)
    switches = {
        "--kv-unified": unified,
        "--jinja": True,
        "--offline": True,
        "--no-webui": True,
        "--no-mmap": not settings.use_mmap,
        "--mlock": settings.use_mlock,
        "--embeddings": settings.embeddings and "--reranking" not in program.arguments,
    }
    out = list(program.arguments)
    for name, value in values.items():
        if name in build.options:
            out += [name, str(value)]
    return (*out, *(name for name, is_on in switches.items() if is_on and name in build.options))


def _devices(settings: LoadSettings, build: Build) -> dict[str, Any]:
    """Options for the placement of layers. A build with devices that Tessera does not know decides itself."""
    if not settings.devices:
        if settings.n_gpu_layers:
            return {}
        return {"--n-gpu-layers": 0} | ({"--device": "none"} if build.devices else {})
    where: dict[str, Any] = {
        "--device": ",".join(settings.devices),
        "--n-gpu-layers": settings.n_gpu_layers if settings.n_gpu_layers >= 0 else 999,
    }
    if settings.tensor_split:
        where["--tensor-split"] = ",".join(f"{share:g}" for share in settings.tensor_split)
    if settings.cpu_expert_layers:
        where["--n-cpu-moe"] = settings.cpu_expert_layers
    return where


def facts(settings: LoadSettings) -> dict[str, Any]:
    """Facts from the file's header, as fields of `ModelFacts`."""
    assert settings.external is not None
    shape = model_shape(cached_gguf_model(settings.path))
    able: tuple[str, ...] = ("completion", "chat", "tools", *(("vision",) if settings.mmproj_path else ()))
    if settings.embeddings:
        able = ("rerank",) if "--reranking" in settings.external.arguments else ("embedding",)
    return {
        "n_params": sum(tensor.num_values for tensor in shape.tensors),
        "n_ctx_train": max(shape.context_train, settings.n_ctx),
        "capabilities": able,
    }
