"""Model folders of other applications, so that their models can be used without copying."""

import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from devices.msgspec_lock import learned
from engine.library.scan import Candidate, model_file

_log = logging.getLogger(__name__)

# Displayed in this order.
APPS = ("lmstudio", "ollama", "llama.cpp", "jan", "huggingface")


class ForeignFolder(msgspec.Struct, frozen=True):
    """One folder of models that another application owns."""

    app: str
    path: Path


def candidates(home: Path, environment: Mapping[str, str], platform: str) -> Iterator[ForeignFolder]:
    """All known locations, existing or not. Source: each application's documentation and defaults, 2026."""
    pointer = home / ".lmstudio-home-pointer"
    if pointer.is_file() and pointer.stat().st_size < 4096:  # noqa: PLR2004 a path
        yield ForeignFolder("lmstudio", Path(pointer.read_text(errors="replace").strip()) / "models")
    yield ForeignFolder("lmstudio", home / ".lmstudio" / "models")
    yield ForeignFolder("lmstudio", home / ".cache" / "lm-studio" / "models")
    if "OLLAMA_MODELS" in environment:
        yield ForeignFolder("ollama", Path(environment["OLLAMA_MODELS"]))
    yield ForeignFolder("ollama", home / ".ollama" / "models")
    yield ForeignFolder("ollama", Path("/usr/share/ollama/.ollama/models"))
    caches, data = _system_folders(home, environment, platform)
    if "LLAMA_CACHE" in environment:
        yield ForeignFolder("llama.cpp", Path(environment["LLAMA_CACHE"]))
    yield ForeignFolder("llama.cpp", caches / "llama.cpp")
    for name in ("Jan", "jan"):
        for engine in ("llamacpp", "llama.cpp"):
            yield ForeignFolder("jan", data / name / "data" / engine / "models")
    if "HF_HUB_CACHE" in environment:
        yield ForeignFolder("huggingface", Path(environment["HF_HUB_CACHE"]))
    hf_home = Path(environment.get("HF_HOME", str(caches / "huggingface")))
    yield ForeignFolder("huggingface", hf_home / "hub")
    yield ForeignFolder("huggingface", home / ".cache" / "huggingface" / "hub")


def _system_folders(home: Path, environment: Mapping[str, str], platform: str) -> tuple[Path, Path]:
    if platform == "darwin":
        return home / "Library" / "Caches", home / "Library" / "Application Support"
    if platform == "win32":
        local = Path(environment.get("LOCALAPPDATA", str(home / "AppData" / "Local")))
        return local, Path(environment.get("APPDATA", str(home / "AppData" / "Roaming")))
    caches = Path(environment.get("XDG_CACHE_HOME", str(home / ".cache")))
    return caches, Path(environment.get("XDG_DATA_HOME", str(home / ".local" / "share")))


def present() -> tuple[ForeignFolder, ...]:
    """The folders that exist, without duplicates."""
    folders: dict[Path, ForeignFolder] = {}
    for folder in candidates(Path.home(), os.environ, sys.platform):
        try:
            if folder.path.is_dir():
                folders.setdefault(folder.path.resolve(), folder)
        except OSError:
            continue  # another user's folder: skip it silently
    return tuple(folders.values())


# Models of an Ollama store: manifests name them, their blobs have no names.

_MODEL = "application/vnd.ollama.image.model"
_PROJECTOR = "application/vnd.ollama.image.projector"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MAX_MANIFEST_BYTES = 1024 * 1024
_MAX_MANIFESTS = 10_000


class _Layer(msgspec.Struct):
    media_type: str = msgspec.field(name="mediaType")
    digest: str


class _Manifest(msgspec.Struct):
    layers: list[_Layer] = []


def is_store(root: Path) -> bool:
    """Return whether the folder has the layout of an Ollama store."""
    return (root / "manifests").is_dir() and (root / "blobs").is_dir()


def find_ollama_models(root: Path) -> Iterator[Candidate]:
    """All models with a manifest and existing blobs. Digests are validated before they become part of a path."""
    manifests = sorted(p for p in (root / "manifests").glob("*/*/*/*"))[:_MAX_MANIFESTS]
    for path in manifests:
        layers = _layers(path)
        if _MODEL not in layers:
            continue
        blob = root / "blobs" / layers[_MODEL].replace(":", "-")
        projector = root / "blobs" / layers[_PROJECTOR].replace(":", "-") if _PROJECTOR in layers else None
        try:
            file = model_file(blob)
        except OSError:
            continue  # still being pulled, or pruned by Ollama
        _, namespace, model, tag = path.parts[-4:]
        owner = "" if namespace == "library" else f"{namespace}/"
        yield Candidate(
            "gguf",
            str(blob),
            (file,),
            title=f"{owner}{model}:{tag}",
            projector=str(projector) if projector and projector.is_file() else None,
            expected={blob.name: layers[_MODEL].removeprefix("sha256:")},
        )


def _layers(path: Path) -> dict[str, str]:
    """The digests of a manifest's layers by media type; empty if the file is not a manifest."""
    try:
        if path.is_symlink() or not path.is_file() or path.stat().st_size > _MAX_MANIFEST_BYTES:
            return {}
        manifest = msgspec.json.decode(path.read_bytes(), type=learned(_Manifest))
    except (OSError, ValueError, RecursionError) as error:
        _log.info("no manifest path=%s error=%s", path, type(error).__name__)
        return {}
    return {layer.media_type: layer.digest for layer in manifest.layers if _DIGEST.fullmatch(layer.digest)}
