"""Model folders of other applications, so that their models can be used without copying."""

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

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
    """Folders for caches and for application data."""
    if platform == "darwin":
        return home / "Library" / "Caches", home / "Library" / "Application Support"
    if platform == "win32":
        local = Path(environment.get("LOCALAPPDATA", str(home / "AppData" / "Local")))
        return local, Path(environment.get("APPDATA", str(home / "AppData" / "Roaming")))
    caches = Path(environment.get("XDG_CACHE_HOME", str(home / ".cache")))
    return caches, Path(environment.get("XDG_DATA_HOME", str(home / ".local" / "share")))


def present(
    home: Path | None = None, environment: Mapping[str, str] | None = None, platform: str = sys.platform
) -> tuple[ForeignFolder, ...]:
    """The folders that exist, without duplicates."""
    found: dict[Path, ForeignFolder] = {}
    for folder in candidates(home or Path.home(), os.environ if environment is None else environment, platform):
        try:
            if folder.path.is_dir():
                found.setdefault(folder.path.resolve(), folder)
        except OSError:
            continue  # another user's folder: skip it silently
    return tuple(found.values())
