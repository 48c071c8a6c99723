"""Execution providers in the runner: selects one, registers its library, and counts its operators."""

import os
import platform
from pathlib import Path
from typing import Any, Final

import msgspec

from engine.message_catalog import sentence
from engine.onnx.folder import OnnxFolder
from engine.onnx.providers import ADAPTERS, Adapter, adapter_of
from engine.runner import onnx_libraries as libraries
from engine.runner.onnx.errors import LoadFailed
from engine.runner.protocol import LoadSettings

CPU: Final = "CPUExecutionProvider"
QNN: Final = "QNNExecutionProvider"


class ProviderChoice(msgspec.Struct, frozen=True):
    """The provider of a load. `pinned`: chosen by the user, otherwise by the folder's configuration."""

    name: str
    adapter: Adapter | None
    library: str | None
    pinned: bool

    @property
    def measurable(self) -> bool:
        """Whether plain ONNX Runtime can count this provider's operators; vendor folders are compiled whole."""
        return self.adapter is not None and self.pinned

    def explain(self, reason: str) -> str:
        """Return a load error as text, with what to install if the provider is the cause."""
        if self.adapter is None:
            return f"ONNX Runtime could not load it: {reason}"
        return f"{self.adapter.title} could not load it: {reason}. {sentence(self.adapter.install)}"


class Share(msgspec.Struct, frozen=True):
    """Number of a graph's operators that a provider accepted; `left` are the types of the others."""

    provider: str
    placed: int
    total: int
    left: tuple[str, ...] = ()

    def text(self) -> str:
        """Return the text for the placement card."""
        remaining = ", rest CPU" if self.placed < self.total else ""
        return f"{self.provider}: {self.placed} of {self.total} operators{remaining}"

    def refusal(self) -> str:
        """Return why a model is not loaded if the provider does not accept all of it."""
        return (
            f"{self.provider} takes {self.placed} of this model's {self.total} operators; the others "
            f"({', '.join(self.left[:6])}) would run on the CPU. Choose the CPU, allow that "
            "(TESSERA_ONNX_FALLBACK=1), or use a model compiled for this provider."
        )


def chosen_provider(settings: LoadSettings, folder: OnnxFolder) -> ProviderChoice:
    """Return the pinned provider, else the one that the folder was compiled for, else the CPU.

    Raises: LoadFailed: the provider is unknown; a vendor's folder was pinned to another one.
    """
    adapters = [name for name in folder.providers if adapter_of(name) is not None]
    name = settings.provider or (adapters[0] if adapters else CPU)
    if name in {"cpu", CPU}:
        if adapters:
            adapter = adapter_of(adapters[0])
            title = adapter.title if adapter else adapters[0]
            raise LoadFailed(f"it was compiled for {title} and has no form for a CPU")
        return ProviderChoice(CPU, None, None, pinned=bool(settings.provider))
    adapter = adapter_of(name)
    if adapter is None:
        raise LoadFailed(f"there is no execution provider {name!r} (known: cpu, {', '.join(ADAPTERS)})")
    problem = adapter.problem(folder.release, dict(os.environ))
    if problem and not adapter.built_in and not _is_included(adapter.provider):
        raise LoadFailed(sentence(problem))
    return ProviderChoice(
        adapter.provider, adapter, adapter.library(dict(os.environ)), pinned=bool(settings.provider)
    )


def _is_included(provider: str) -> bool:
    """Whether this build of ONNX Runtime includes the provider, as vendors' own builds do."""
    try:
        return provider in libraries.onnxruntime().get_available_providers()
    except (ImportError, OSError):
        return False


def register_plugin(og: Any, choice: ProviderChoice, *, for_genai: bool = True) -> bool:
    """Return whether a plugin must be registered; for onnxruntime-genai this registers it.

    Raises: LoadFailed: it does not load.
    """
    if choice.library is None or choice.adapter is None or not choice.adapter.plugin:
        return False
    try:
        if for_genai:
            og.register_execution_provider_library(choice.name, choice.library)
    except Exception as error:
        raise LoadFailed(choice.explain(libraries.reason(error))) from error
    return True


def append_provider(config: Any, choice: ProviderChoice) -> None:
    """Set onnxruntime-genai's provider; a vendor's folder already names it."""
    if choice.name == CPU:
        config.clear_providers()
    elif choice.pinned and choice.adapter is not None:
        config.clear_providers()
        config.append_provider(choice.adapter.genai_name)
        for key, value in {**choice.adapter.options, **backend_options(choice)}.items():
            config.set_provider_option(choice.adapter.genai_name, key, value)


def backend_options(choice: ProviderChoice) -> dict[str, str]:
    """Return the path of QNN's backend library, next to the plugin: onnxruntime-genai does not set it."""
    beside = Path(choice.library).parent if choice.library else None
    for name in ("libQnnHtp.so", "QnnHtp.dll"):
        if beside is not None and (beside / name).is_file():
            return {"backend_path": str(beside / name)}
    return {}


def share_of(folder: OnnxFolder, choice: ProviderChoice, *, plugin: bool) -> Share:
    """Create a plain session on the provider and count its operators.

    Raises: LoadFailed: this ONNX Runtime does not have the provider, or it refuses the graph.
    """
    ort = libraries.onnxruntime()
    assert choice.adapter is not None
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    try:
        session = open_session(ort, options, str(folder.graphs[0]), choice, register=plugin)
        return count_operators(session, choice.name)
    except LoadFailed:
        raise
    except Exception as error:
        raise LoadFailed(choice.explain(libraries.reason(error))) from error


def open_session(ort: Any, options: Any, graph: str, choice: ProviderChoice, *, register: bool = False) -> Any:
    """Return a plain session on the requested provider, with the CPU as fallback.

    Raises: LoadFailed: no such provider or device. Any exception of ONNX Runtime.
    """
    if choice.adapter is None:
        return ort.InferenceSession(graph, options, providers=[CPU])
    if not choice.adapter.plugin or choice.library is None:
        if choice.name not in ort.get_available_providers():
            raise LoadFailed(f"This ONNX Runtime has no {choice.name}. {sentence(choice.adapter.install)}")
        return ort.InferenceSession(graph, options, providers=[(choice.name, dict(choice.adapter.options)), CPU])
    if register:
        ort.register_execution_provider_library(choice.name, choice.library)
    devices = [d for d in ort.get_ep_devices() if d.ep_name == choice.name]
    if not devices:
        raise LoadFailed(
            f"{choice.adapter.title} is installed but finds no device. {sentence(choice.adapter.no_device)}"
        )
    provider_options = {**choice.adapter.options, **backend_options(choice), **float_options(choice)}
    options.add_provider_for_devices(devices[:1], provider_options)
    return ort.InferenceSession(graph, options)


def float_options(choice: ProviderChoice) -> dict[str, str]:
    """Return options for 16-bit floats in QNN, which needs the chip: the emulator on x86 acts as an X Elite.

    Source: ONNX Runtime, QNN provider options; 60 is SC8380XP, whose NPU is of version 73.
    """
    if choice.name != QNN or platform.machine() not in {"x86_64", "AMD64"}:
        return {}
    chip = {"soc_model": "60", "htp_arch": "73", "enable_htp_fp16_precision": "1"}
    return {**chip, "offload_graph_io_quantization": "0"}


def count_operators(session: Any, provider: str) -> Share:
    """Count operators of the final graph by provider. `get_providers` also lists providers without any."""
    placed = total = 0
    unplaced: dict[str, None] = {}
    for part in session.get_provider_graph_assignment_info():
        nodes = len(part.get_nodes())
        total += nodes
        if part.ep_name == provider:
            placed += nodes
        else:
            unplaced.update(dict.fromkeys(node.op_type for node in part.get_nodes()))
    return Share(provider, placed, total, tuple(unplaced))
