"""Checks which models of the library can be quantized, and explains why others cannot."""

from PySide6.QtCore import QCoreApplication

from app.gui.widgets.tensor_mosaic import bits_of
from engine.api.library import Model

# quantize.job.execute requires sources with at least this many bits per weight.
_LEAST_BITS = 8.0
_FORMATS = frozenset({"gguf", "safetensors"})


def unfit(model: Model) -> str:
    """Why this model cannot be quantized, or ""."""
    if model.state != "online":
        return _tr("Its file is missing.")
    if model.format not in _FORMATS:
        return _tr("Only GGUF and safetensors models can be made to fit.")
    coarse = sorted((bits_of(name), name) for name in model.details.type_bytes if 0 < bits_of(name) < _LEAST_BITS)
    if coarse:
        words = _tr(
            "It is already quantized to {name}, and the lost precision cannot be restored. Start from the original."
        )
        return words.format(name=coarse[0][1])
    return ""


def repository_of_original(model: Model) -> str:
    """The repository to look for the original of a model that is quantized already, or ""."""
    is_usable = model.state == "online" and model.origin.kind == "hub" and model.format == "gguf"
    return model.origin.repo or "" if is_usable and unfit(model) else ""


def _tr(text: str) -> str:
    return QCoreApplication.translate("fit", text)
