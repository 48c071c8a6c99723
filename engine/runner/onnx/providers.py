"""Execution providers in the runner: which one is wished, registering its library, and what it really takes."""

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
    """The provider a load is for. `pinned` by the user, else asked for by the folder's configuration."""

    name: str
    adapter: Adapter | None
    library: str | None
    pinned: bool

    @property
    def measurable(self) -> bool:
        """Plain ONNX Runtime can tell what this provider takes; vendor folders are compiled whole."""
        return self.adapter is not None and self.pinned

    def explain(self, reason: str) -> str:
        """A failed load in words, with what to install when the provider is the reason."""
        if self.adapter is None:
            return f"ONNX Runtime could not load it: {reason}"
        return f"{self.adapter.title} could not load it: {reason}. {sentence(self.adapter.install)}"


class Share(msgspec.Struct, frozen=True):
    """How many of a graph's operators a provider took; `left` are the kinds it did not."""

    provider: str
    placed: int
    total: int
    left: tuple[str, ...] = ()

    def text(self) -> str:
        """For the dispatch card."""
        remaining = ", rest CPU" if self.placed < self.total else ""
        return f"{self.provider}: {self.placed} of {self.total} operators{remaining}"

    def refusal(self) -> str:
        """Why a model that the provider does not take is not loaded."""
        return (
            f"{self.provider} takes {self.placed} of this model's {self.total} operators; the others "
            f"({', '.join(self.left[:6])}) would run on the CPU. Choose the CPU, allow that "
            "(TESSERA_ONNX_FALLBACK=1), or use a model compiled for this provider."
        )


def chosen_provider(settings: LoadSettings, folder: OnnxFolder) -> ProviderChoice:
    """The pinned provider, or what the folder was compiled for, or the CPU.

    Raises: LoadFailed: no such provider is known; a vendor's folder was pinned to something else.
    """
    asked = [name for name in folder.providers if adapter_of(name) is not None]
    name = settings.provider or (asked[0] if asked else CPU)
    if name in {"cpu", CPU}:
        if asked:
            adapter = adapter_of(asked[0])
            title = adapter.title if adapter else asked[0]
            raise LoadFailed(f"it was compiled for {title} and has no form for a CPU")
        return ProviderChoice(CPU, None, None, pinned=bool(settings.provider))
    adapter = adapter_of(name)
    if adapter is None:
        raise LoadFailed(f"there is no execution provider {name!r} (known: cpu, {', '.join(ADAPTERS)})")
    problem = adapter.problem(folder.release, dict(os.environ))
    if problem and not adapter.built_in and not _brought(adapter.provider):
        raise LoadFailed(sentence(problem))
    return ProviderChoice(
        adapter.provider, adapter, adapter.library(dict(os.environ)), pinned=bool(settings.provider)
    )


def _brought(provider: str) -> bool:
    """This build of ONNX Runtime has the provider inside, as vendors' own builds do."""
    try:
        return provider in libraries.onnxruntime().get_available_providers()
    except (ImportError, OSError):
        return False


def register_plugin(og: Any, choice: ProviderChoice, *, for_genai: bool = True) -> bool:
    """Whether a plugin has to be registered; with onnxruntime-genai that is done here.

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
    """Tell onnxruntime-genai which provider to use; a vendor's folder has said it already."""
    if choice.name == CPU:
        config.clear_providers()
    elif choice.pinned and choice.adapter is not None:
        config.clear_providers()
        config.append_provider(choice.adapter.genai_name)
        for key, value in {**choice.adapter.options, **backend_options(choice)}.items():
            config.set_provider_option(choice.adapter.genai_name, key, value)


def backend_options(choice: ProviderChoice) -> dict[str, str]:
    """onnxruntime-genai gives QNN no device to guess its library from; it is beside the plugin."""
    beside = Path(choice.library).parent if choice.library else None
    for name in ("libQnnHtp.so", "QnnHtp.dll"):
        if beside is not None and (beside / name).is_file():
            return {"backend_path": str(beside / name)}
    return {}


def share_of(folder: OnnxFolder, choice: ProviderChoice, *, plugin: bool) -> Share:
    """Create a plain session on the provider and count where its operators went.

    Raises: LoadFailed: ONNX Runtime has no such provider here, or it refuses the graph.
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
    """A plain session on the wished provider, the CPU behind it.

    Raises: LoadFailed: no such provider or device here. Whatever ONNX Runtime throws.
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
    """Lets QNN compute floats in 16 bits, for which it must know the chip; the emulator on x86 plays an X Elite.

    Source: ONNX Runtime, QNN provider options; 60 is SC8380XP, whose NPU is of version 73.
    """
    if choice.name != QNN or platform.machine() not in {"x86_64", "AMD64"}:
        return {}
    chip = {"soc_model": "60", "htp_arch": "73", "enable_htp_fp16_precision": "1"}
    return {**chip, "offload_graph_io_quantization": "0"}


def count_operators(session: Any, provider: str) -> Share:
    """Operators of the final graph by provider. `get_providers` would list one that took nothing."""
    placed = total = 0
    left: dict[str, None] = {}
    for part in session.get_provider_graph_assignment_info():
        nodes = len(part.get_nodes())
        total += nodes
        if part.ep_name == provider:
            placed += nodes
        else:
            left.update(dict.fromkeys(node.op_type for node in part.get_nodes()))
    return Share(provider, placed, total, tuple(left))
