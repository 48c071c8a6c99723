"""What a draft model adds to a load."""

from functools import lru_cache
from pathlib import Path

import msgspec

from devices.errors import TesseraError
from engine.core.errors import BadModelFile, exhausted
from engine.message_catalog.reasons import because
from engine.placement.estimate import CPU, compute_prior, kv_layer_bytes
from engine.placement.need_types import Need, Part
from engine.placement.shape import ModelShape, model_shape
from engine.runner.load_limits import mtp_settings
from engine.runner.protocol import LoadSettings
from quantize.files.gguf_split import read_gguf_model


def draft_shape(path: str) -> ModelShape:
    """The shape of a draft model's file, read once while it stays the same.

    Raises: BadModelFile.
    """
    try:
        info = Path(path).stat()
        return _read(path, info.st_mtime_ns, info.st_size)
    except OSError as error:
        reason = because("draft_unreadable", why=error.strerror)
        raise exhausted(error) or BadModelFile(path, reason) from error
    except TesseraError as error:
        raise BadModelFile(path, because("draft_bad", why=str(error))) from error


@lru_cache(maxsize=16)
def _read(path: str, _changed_ns: int, _size: int) -> ModelShape:
    return model_shape(read_gguf_model(path))


def with_head(need: Need, shape: ModelShape, settings: LoadSettings, gpu: str | None) -> Need:
    """`need` and what the context of the model's own head takes: its cache, its scratch, and hidden rows."""
    at = mtp_settings(settings)
    attention = max(shape.layers, key=lambda layer: layer.key_values)  # a head is such a block
    alone = msgspec.structs.replace(shape, layers=(attention,))
    hidden = 4 * shape.embedding * (settings.n_batch + at.n_batch)
    size = sum(kv_layer_bytes(alone, at)) + compute_prior(alone, at) + hidden
    device = gpu if gpu and settings.n_gpu_layers else CPU
    part = Part(name="draft", device=device, num_bytes=size, basis="prior")
    resident = need.resident_bytes + (size if device == CPU else 0)
    return msgspec.structs.replace(need, parts=(*need.parts, part), resident_bytes=resident)


def with_draft(need: Need, draft: Need) -> Need:
    """`need` and that of the draft model, which shares the process of its target."""
    parts = tuple(
        Part(
            name="draft",
            device=part.device,
            num_bytes=part.num_bytes,
            mapped_bytes=part.mapped_bytes,
            basis="prior",
        )
        for part in draft.parts
        if part.name != "overhead"
    )
    shared = draft.part_bytes("overhead")
    return msgspec.structs.replace(
        need,
        parts=(*need.parts, *parts),
        resident_bytes=need.resident_bytes + max(0, draft.resident_bytes - shared),
    )
