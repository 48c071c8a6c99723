"""ONNX Runtime's execution providers for NPUs and GPUs: how each is found and what it needs.

This module only reads files and environment variables. Libraries are loaded in child processes.
"""

import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from engine.message_catalog.reasons import Reason, because

# The ONNX Runtime GenAI version in each release of AMD's software; a model of another release does not load.
# Source: AMD Ryzen AI Software release notes, 1.8 (July 2026).
RYZEN_AI_GENAI: Final = {"1.8": "0.14"}
_VERSION: Final = re.compile(r"(\d+\.\d+)(?:\.\d+)?")
UNTRIED: Final = because("untried")


class Adapter(msgspec.Struct, frozen=True):
    """One provider: `provider` is ONNX Runtime's name, `genai_name` the one in genai_config.json.

    `package` is the Python package that contains the plugin's `files`; `environment` is a variable with the
    library's path. `built_in` providers are part of a special build of onnxruntime. `tried` says what was tested on
    real hardware.
    """

    provider: str
    genai_name: str
    title: str
    vendors: tuple[str, ...]
    systems: tuple[str, ...]
    install: Reason
    tried: Reason = UNTRIED
    package: str = ""
    files: tuple[str, ...] = ()
    environment: str = ""
    plugin: bool = False
    built_in: bool = False
    options: Mapping[str, str] = msgspec.field(default_factory=dict)
    no_device: Reason | None = None

    def library(self, environ: Mapping[str, str]) -> str | None:
        """Path of the provider's library on this computer, or None."""
        if self.environment:
            return environ.get(self.environment)
        folder = _package(self.package)
        paths = [folder / name for name in self.files if (folder / name).exists()] if folder else []
        return str(paths[0]) if paths else None

    def problem(self, release: str | None, environ: Mapping[str, str]) -> Reason | None:
        """Why it cannot be used, with what to do; None if its files exist. `release` is the model's."""
        if self.built_in:
            return None
        library = self.library(environ)
        if not library:
            return because("provider_not_installed", provider=self.title, install=self.install)
        if not Path(library).is_file():
            return because("provider_library_gone", provider=self.title, library=library, install=self.install)
        if self.genai_name == "RyzenAI":
            return _wrong_release(library, release, environ)
        return None


_QNN = Adapter(
    provider="QNNExecutionProvider",
    genai_name="QNN",
    title="Qualcomm QNN",
    vendors=("Qualcomm",),
    systems=("windows", "linux"),
    install=because("get_qnn"),
    tried=because("tried_qnn"),
    package="onnxruntime_qnn",
    files=("libonnxruntime_providers_qnn.so", "onnxruntime_providers_qnn.dll"),
    plugin=True,
    no_device=because("no_device_qnn"),
)
_OPENVINO = Adapter(
    provider="OpenVINOExecutionProvider",
    genai_name="OpenVINO",
    title="Intel OpenVINO",
    vendors=("Intel",),
    systems=("windows", "linux"),
    install=because("get_openvino_ep"),
    tried=because("tried_openvino_ep"),
    package="onnxruntime_ep_openvino",
    files=("libonnxruntime_providers_openvino_plugin.so", "onnxruntime_providers_openvino_plugin.dll"),
    plugin=True,
    no_device=because("no_device_openvino_ep"),
)
_RYZEN = Adapter(
    provider="RyzenAIExecutionProvider",
    genai_name="RyzenAI",
    title="AMD Ryzen AI",
    vendors=("AMD",),
    systems=("windows", "linux"),
    install=because("get_ryzen_ai"),
    environment="RYZENAI_EP_PATH",
)
_VITIS = Adapter(
    provider="VitisAIExecutionProvider",
    genai_name="VitisAI",
    title="AMD Vitis AI",
    vendors=("AMD",),
    systems=("windows", "linux"),
    install=because("get_vitis_ai"),
    built_in=True,
)
_DML = Adapter(
    provider="DmlExecutionProvider",
    genai_name="DML",
    title="DirectML",
    vendors=("AMD", "Intel", "NVIDIA", "Qualcomm"),
    systems=("windows",),
    install=because("get_directml"),
    built_in=True,
)
_MIGRAPHX = Adapter(
    provider="MIGraphXExecutionProvider",
    genai_name="MIGraphX",
    title="AMD MIGraphX",
    vendors=("AMD",),
    systems=("linux", "windows"),
    install=because("get_migraphx"),
    built_in=True,
)
_COREML = Adapter(
    provider="CoreMLExecutionProvider",
    genai_name="CoreML",
    title="Apple Core ML",
    vendors=("Apple",),
    systems=("macos",),
    install=because("get_core_ml"),
    built_in=True,
)
ADAPTERS: Final = {a.provider: a for a in (_RYZEN, _VITIS, _OPENVINO, _QNN, _DML, _MIGRAPHX, _COREML)}


def adapter_of(name: str) -> Adapter | None:
    """The adapter with this ONNX Runtime name or genai_config.json name, case-insensitive."""
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
    """The release of AMD's software, from a VERSION file near the library or the installation folder's name."""
    for folder in (Path(library).parent, Path(library).parent.parent):
        note = folder / "VERSION"
        if note.is_file() and note.stat().st_size < 256:
            match = _VERSION.search(note.read_text(encoding="utf-8", errors="replace"))
            if match:
                return match[1]
    where = environ.get("RYZEN_AI_INSTALLATION_PATH", library)
    match = re.search(r"ryzen[_-]?ai[/\\_-]*(\d+\.\d+)", where, re.IGNORECASE)
    return match[1] if match else None


def _wrong_release(library: str, release: str | None, environ: Mapping[str, str]) -> Reason | None:
    """Why a model of `release` does not run with the installed software; None if it does or either is unknown."""
    installed = installed_release(library, environ)
    required = _VERSION.search(release or "")
    if installed is None or required is None or required[1] == installed:
        return None
    brings = RYZEN_AI_GENAI.get(required[1])
    if brings:
        return because("other_release_of", wanted=required[1], genai=brings, installed=installed)
    return because("other_release", wanted=required[1], installed=installed)
