"""The execution providers of ONNX Runtime that could reach an NPU or GPU: how each is found and what it needs.

Nothing is imported or loaded here: files and environment variables only. Loading happens in children.
"""

import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

# The runtime that each release of AMD's software brings; a model of another release does not load.
# Source: AMD Ryzen AI Software release notes, 1.8 (July 2026).
RYZEN_AI_GENAI: Final = {"1.8": "0.14"}
_VERSION: Final = re.compile(r"(\d+\.\d+)(?:\.\d+)?")
UNTRIED: Final = "not tried on hardware by this project"


class Adapter(msgspec.Struct, frozen=True):
    """One provider: `provider` is ONNX Runtime's name, `genai_name` the one in genai_config.json.

    `package` is a Python package that brings the plugin's `files`; `environment` a variable that names the library.
    `built_in` providers are part of a special build of onnxruntime. `tried` says what was really run.
    """

    provider: str
    genai_name: str
    title: str
    vendors: tuple[str, ...]
    systems: tuple[str, ...]
    install: str
    tried: str = UNTRIED
    package: str = ""
    files: tuple[str, ...] = ()
    environment: str = ""
    plugin: bool = False
    built_in: bool = False
    options: Mapping[str, str] = msgspec.field(default_factory=dict)
    no_device: str = ""

    def library(self, environ: Mapping[str, str]) -> str | None:
        """The provider's library on this machine, or None."""
        if self.environment:
            return environ.get(self.environment)
        folder = _package(self.package)
        found = [folder / name for name in self.files if (folder / name).exists()] if folder else []
        return str(found[0]) if found else None

    def problem(self, release: str | None, environ: Mapping[str, str]) -> str:
        """Why it cannot be used, with what to do; empty when its files are there. `release` is the model's."""
        if self.built_in:
            return ""
        library = self.library(environ)
        if not library:
            return f"{self.title} is not installed. {self.install}"
        if not Path(library).is_file():
            return f"{self.title}: {library} is not there. {self.install}"
        if self.genai_name == "RyzenAI":
            return _wrong_release(library, release, environ)
        return ""


_QNN = Adapter(
    provider="QNNExecutionProvider",
    genai_name="QNN",
    title="Qualcomm QNN",
    vendors=("Qualcomm",),
    systems=("windows", "linux"),
    install="Install its plugin: pip install onnxruntime-qnn (Qualcomm's licence).",
    tried="run on Qualcomm's x86-64 emulator only; " + UNTRIED,
    package="onnxruntime_qnn",
    files=("libonnxruntime_providers_qnn.so", "onnxruntime_providers_qnn.dll"),
    plugin=True,
    no_device="It needs a Hexagon NPU, or on x86-64 Linux the emulator of its wheel.",
)
_OPENVINO = Adapter(
    provider="OpenVINOExecutionProvider",
    genai_name="OpenVINO",
    title="Intel OpenVINO",
    vendors=("Intel",),
    systems=("windows", "linux"),
    install="Install its plugin: pip install onnxruntime-ep-openvino, on a computer with an Intel processor.",
    tried="the wheel of 1.24.1 was run on a CPU; its NPU was " + UNTRIED,
    package="onnxruntime_ep_openvino",
    files=("libonnxruntime_providers_openvino_plugin.so", "onnxruntime_providers_openvino_plugin.dll"),
    plugin=True,
    no_device="It lists Intel devices only.",
)
_RYZEN = Adapter(
    provider="RyzenAIExecutionProvider",
    genai_name="RyzenAI",
    title="AMD Ryzen AI",
    vendors=("AMD",),
    systems=("windows", "linux"),
    install=(
        "Install AMD's Ryzen AI Software, let RYZENAI_EP_PATH name its libonnxruntime_providers_ryzenai library, "
        "and TESSERA_ONNX_PYTHON the Python of its environment (docs/onnx.md)."
    ),
    environment="RYZENAI_EP_PATH",
)
_VITIS = Adapter(
    provider="VitisAIExecutionProvider",
    genai_name="VitisAI",
    title="AMD Vitis AI",
    vendors=("AMD",),
    systems=("windows", "linux"),
    install="It comes with AMD's Ryzen AI Software, as a build of onnxruntime of its own.",
    built_in=True,
)
_DML = Adapter(
    provider="DmlExecutionProvider",
    genai_name="DML",
    title="DirectML",
    vendors=("AMD", "Intel", "NVIDIA", "Qualcomm"),
    systems=("windows",),
    install="It is part of onnxruntime-directml, which ended with 1.24; Windows ML replaces it.",
    built_in=True,
)
_MIGRAPHX = Adapter(
    provider="MIGraphXExecutionProvider",
    genai_name="MIGraphX",
    title="AMD MIGraphX",
    vendors=("AMD",),
    systems=("linux", "windows"),
    install="It is part of onnxruntime-migraphx, from AMD's ROCm repository.",
    built_in=True,
)
_COREML = Adapter(
    provider="CoreMLExecutionProvider",
    genai_name="CoreML",
    title="Apple Core ML",
    vendors=("Apple",),
    systems=("macos",),
    install="It is part of onnxruntime for macOS.",
    built_in=True,
)
ADAPTERS: Final = {a.provider: a for a in (_RYZEN, _VITIS, _OPENVINO, _QNN, _DML, _MIGRAPHX, _COREML)}


def adapter_of(name: str) -> Adapter | None:
    """The adapter of ONNX Runtime's name or of the one in genai_config.json, in any case."""
    folded = name.casefold()
    for adapter in ADAPTERS.values():
        if folded in {adapter.provider.casefold(), adapter.genai_name.casefold()}:
            return adapter
    return None


def _package(name: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(name) if name else None
    except (ImportError, ValueError):
        return None
    return Path(next(iter(spec.submodule_search_locations))) if spec and spec.submodule_search_locations else None


def installed_release(library: str, environ: Mapping[str, str]) -> str | None:
    """The release of AMD's software, from a VERSION file beside the library or the folder it was installed to."""
    for folder in (Path(library).parent, Path(library).parent.parent):
        note = folder / "VERSION"
        if note.is_file() and note.stat().st_size < 256:  # noqa: PLR2004 - a version, not a book
            match = _VERSION.search(note.read_text(encoding="utf-8", errors="replace"))
            if match:
                return match[1]
    where = environ.get("RYZEN_AI_INSTALLATION_PATH", library)
    match = re.search(r"ryzen[_-]?ai[/\\_-]*(\d+\.\d+)", where, re.IGNORECASE)
    return match[1] if match else None


def _wrong_release(library: str, release: str | None, environ: Mapping[str, str]) -> str:
    """Why a model of `release` does not run on what is installed; empty when it does, or when neither tells."""
    installed = installed_release(library, environ)
    wanted = _VERSION.search(release or "")
    if installed is None or wanted is None or wanted[1] == installed:
        return ""
    brings = RYZEN_AI_GENAI.get(wanted[1])
    which = f" (onnxruntime-genai {brings})" if brings else ""
    return (
        f"The model was compiled for Ryzen AI {wanted[1]}{which}, but {installed} is installed. "
        f"Install Ryzen AI Software {wanted[1]}, or a model made for {installed}."
    )
