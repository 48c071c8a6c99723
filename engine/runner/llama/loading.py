"""What a load of a model needs beside its weights: kept prefixes, a comparison, what drafts, its experts."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from devices.backends import openvino
from engine.core.startup_timing import Phases
from engine.core.types import DeviceCheck
from engine.runner import protocol
from engine.runner.engine_args import meaning
from engine.runner.llama.cache.checkpoints import budget
from engine.runner.llama.cache.prefix_store import PrefixStore, model_fingerprint
from engine.runner.llama.native import model as llama_model
from engine.runner.llama.native.device_check import (
    WRONG_KLD_MEAN,
    WRONG_KLD_MEAN_BFLOAT,
    NotComparable,
    read_reference,
)
from engine.runner.llama.native.device_verdict import checked
from engine.runner.llama.native.vocabulary import LlamaVocabulary
from engine.runner.llama.speculative.draft_model import DraftModel
from engine.runner.llama.speculative.model_drafter import ModelDrafter
from engine.runner.llama.speculative.mtp import MtpHead

if TYPE_CHECKING:
    from engine.runner.llama.experts.load import StreamedExperts


def load(
    api: Any, settings: protocol.LoadSettings, on_progress: Callable[[float], bool], phases: Phases
) -> "tuple[llama_model.LoadedModel, StreamedExperts | None]":
    """The model with its context, and its experts where they are streamed. Raises: LoadFailed."""
    if not settings.expert_bytes:
        return llama_model.load(api, settings, on_progress, phases), None
    from engine.runner.llama.experts.expert_cache import CannotStream  # noqa: PLC0415 - as above
    from engine.runner.llama.experts.load import StreamedExperts  # noqa: PLC0415 - other models start without it

    try:
        experts = StreamedExperts(api, settings)
        loaded = llama_model.load(api, settings, on_progress, phases, on_node=experts.callback)
        experts.begin()
    except CannotStream as error:
        raise llama_model.LoadFailed(f"its experts cannot be streamed: {error}") from error
    loaded.problem = experts.problem
    phases.done("experts")
    return loaded, experts


def prefix_store(api: Any, loaded: llama_model.LoadedModel) -> PrefixStore:
    """The store for this model's prefixes: only states of the same file, cache types and build fit."""
    settings = loaded.settings
    path = Path(settings.path)
    build = api.llama_version().decode()
    adapters = tuple(model_fingerprint(Path(adapter)) for adapter in settings.lora)
    shape: tuple[object, ...] = (settings.type_k, settings.type_v, settings.flash_attn, build, protocol.VERSION)
    shape += (*adapters, *meaning(settings.engine_args), settings.tiles, settings.repack)
    if settings.mmproj_path is not None:
        projector = Path(settings.mmproj_path).stat()
        shape += (settings.mmproj_path, projector.st_size, projector.st_mtime_ns)
    folder = Path(settings.cache_dir) if settings.cache_dir else None
    fingerprint = model_fingerprint(path, *shape)
    return PrefixStore(settings.cache_ram_bytes - budget(loaded), settings.cache_disk_bytes, folder, fingerprint)


def compared(loaded: llama_model.LoadedModel, vocabulary: LlamaVocabulary) -> DeviceCheck | None:
    """How the device compares with the CPU; None where no comparison is wanted or its reference is of no use.

    Raises: DeviceWrong.
    """
    path = loaded.settings.reference_path
    expected = read_reference(Path(path)) if path else None
    if expected is None:
        return None
    compiled = bool(openvino.target_of(loaded.settings.devices))  # whole graphs; a node alone is another program
    floor = WRONG_KLD_MEAN_BFLOAT if compiled else WRONG_KLD_MEAN
    try:
        return checked(expected, loaded, vocabulary, floor, whole=compiled)
    except NotComparable as error:
        sys.stderr.write(f"the device was not compared with the CPU: {error}\n")
        return None


def model_drafter(loaded: llama_model.LoadedModel, vocabulary: LlamaVocabulary) -> ModelDrafter | None:
    """What drafts: a draft model that was asked for, else the model's own head, where that can be used."""
    settings = loaded.settings
    if settings.draft_path:
        return DraftModel.load(loaded.api, settings, vocabulary)
    if settings.mtp:
        try:
            return MtpHead(loaded)
        except llama_model.LoadFailed as error:
            sys.stderr.write(f"the model's own head is not used: {error}\n")
    return None
