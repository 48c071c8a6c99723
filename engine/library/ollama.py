"""Models of an Ollama store: named by manifests, kept as blobs without a name."""

import logging
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from devices.msgspec_lock import learned
from engine.library.scan import Candidate, model_file

_log = logging.getLogger(__name__)
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
    """Whether a folder is laid out as an Ollama store."""
    return (root / "manifests").is_dir() and (root / "blobs").is_dir()


def find_models(root: Path) -> Iterator[Candidate]:
    """Every model that a manifest names and whose blobs are there. A digest is checked before it becomes a path."""
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
            continue  # still being pulled, or pruned
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
    """Digest by media type of the layers a manifest lists; empty if it is no manifest."""
    try:
        if path.is_symlink() or not path.is_file() or path.stat().st_size > _MAX_MANIFEST_BYTES:
            return {}
        manifest = msgspec.json.decode(path.read_bytes(), type=learned(_Manifest))
    except (OSError, ValueError, RecursionError) as error:
        _log.info("no manifest path=%s error=%s", path, type(error).__name__)
        return {}
    return {layer.media_type: layer.digest for layer in manifest.layers if _DIGEST.fullmatch(layer.digest)}
