"""Reads only the headers of a model on the hub: its shape, and whether it fits here.

`find` resolves the model argument of `tessera fit`: a file or its header, a model of the library, or a repository.
"""

from collections.abc import Callable
from pathlib import Path

import msgspec

from devices.errors import TesseraError
from engine.core.errors import BadModelFile, InputFault
from engine.core.paths import Paths
from engine.library.catalogue import Catalogue, require
from engine.library.hub.client import HubClient
from engine.library.hub.file_selection import choose, parse_hub_name
from engine.library.hub.plan import FitEstimator, plan_repository
from engine.library.hub.types import FitEstimate, RepoPlan
from engine.library.inspect_files import inspect_gguf
from engine.library.types import Details
from engine.message_catalog.reasons import Reason, because
from engine.placement.load_settings import default_context, load_settings, with_engine_args
from engine.placement.model_settings import open_model_settings
from engine.placement.placer import Placer, read_shape
from engine.placement.shape import ModelShape, shape_of
from engine.runner.engine_args import NO_ARGS
from engine.runner.protocol import LoadSettings
from quantize.errors import IncompleteFile
from quantize.files.gguf_file import GgufFile, read_gguf_header
from quantize.files.gguf_split import parse_split_name


def hub_shape(name: str, paths: Paths, estimate: FitEstimator | None = None) -> ModelShape:
    """Shape of `owner/name[:quant]`. Without a quant: the one that `estimate` rates best, else the default one.

    Raises: the hub client's errors. BadModelFile: the repository has no GGUF file whose header can be read.
    """
    parts = hub_parts(name, paths, estimate)
    tensors = [tensor for part in parts for tensor in part.tensors]
    return shape_of(parts[0], tensors, sum(part.file_bytes for part in parts))


def hub_parts(name: str, paths: Paths, estimate: FitEstimator | None = None) -> tuple[GgufFile, ...]:
    """Headers of all parts of `owner/name[:quant]`. Raises: as `hub_shape`."""
    headers: dict[int, tuple[GgufFile, ...]] = {}

    def keep(parts: tuple[GgufFile, ...], details: Details) -> FitEstimate | None:
        headers[sum(part.file_bytes for part in parts)] = parts
        return estimate(parts, details) if estimate is not None else None

    hub_name = parse_hub_name(name)
    plan: RepoPlan = plan_repository(HubClient(), paths, hub_name.repo, revision=hub_name.revision, estimate=keep)
    choice = choose(plan, hub_name).choice
    parts = headers.get(sum(file.size_bytes for file in choice.files))
    if parts is None:
        raise BadModelFile(name, because("headers_unreadable"))
    return parts


def fit_estimator(placer: Placer, describe: Callable[[Reason], str] | None = None) -> FitEstimator:
    """An estimator that respects the ledger's reservations. Uses formulas, because it runs for dozens of files.

    `describe` turns its reasons into text; without it there are none.
    """

    def estimate(parts: tuple[GgufFile, ...], details: Details) -> FitEstimate | None:
        tensors = [tensor for part in parts for tensor in part.tensors]
        shape = shape_of(parts[0], tensors, sum(part.file_bytes for part in parts))
        if not shape.layers or details.is_projector:
            return None
        settings = LoadSettings(path=parts[0].name, n_ctx=default_context(shape.context_train))
        placement = placer.judge_shape(parts[0].name, shape, settings)
        need = placement.need
        return FitEstimate(
            fits=placement.fits,
            needed_bytes=need.total_bytes,
            available_bytes=sum(placer.ledger.available(device) for device in need.devices),
            decode_tok_s=placement.decode_tok_s,
            device=placement.device_name,
            reasons=tuple(map(describe, placement.reasons)) if describe is not None else (),
            measured_on=placement.measured_on,
            streamed=placement.streaming is not None,
        )

    return estimate


class FittedModel(msgspec.Struct, frozen=True):
    """The argument of `tessera fit`. The path in `settings` is a file only if all of the model is here."""

    shape: ModelShape
    settings: LoadSettings
    note: Reason | None = None


def find(model: str, catalogue: Catalogue, placer: Placer) -> FittedModel:
    """Shape and settings; only the headers of a repository are read.

    Raises: ModelNotFound, the errors of HubClient and of reading the file.
    """
    if Path(model).is_file():
        return _of_file(model)
    user_settings = open_model_settings(catalogue.paths)
    entry = catalogue.get(user_settings.resolve(model, catalogue.get))
    if entry is None and (Path(model).exists() or model.startswith(("/", "./", "../", "~"))):
        raise InputFault(because("no_file", file=model), "model")
    if entry is None and "/" in model:
        return _unloaded(model, hub_shape(model, catalogue.paths, fit_estimator(placer)))
    entry = entry or require(catalogue, model)
    args = user_settings.get(entry.id).engine_args
    settings = with_engine_args(load_settings(entry), args) if args != NO_ARGS else load_settings(entry)
    return FittedModel(read_shape(settings.path), settings)


def of_header(name: str, header: GgufFile, note: Reason | None = None) -> FittedModel:
    """The model that begins with this header."""
    return _unloaded(name, shape_of(header, header.tensors, header.file_bytes), note)


def with_projector(settings: LoadSettings, projector: str) -> LoadSettings:
    """Settings that load this vision projector too. Raises: InputFault: it is not one."""
    if not _is_projector(Path(projector)):
        raise InputFault(because("no_projector", file=projector), "projector")
    return msgspec.structs.replace(settings, mmproj_path=projector)


def _is_projector(path: Path) -> bool:
    try:
        return inspect_gguf(path).is_projector
    except TesseraError:  # not a GGUF file
        return False


def _of_file(path: str) -> FittedModel:
    try:
        shape = read_shape(path)
    except BadModelFile as error:
        cause = error.__cause__
        if not isinstance(cause, IncompleteFile) or parse_split_name(Path(path).name) is not None:
            raise
        try:
            header = read_gguf_header(path)
        except TesseraError:  # the header is incomplete too
            raise error from cause
        note = because("only_the_header", have_bytes=cause.have_bytes, needed_bytes=header.file_bytes)
        return of_header(f"{path} (complete)", header, note)
    return FittedModel(shape, LoadSettings(path=path, n_ctx=default_context(shape.context_train)))


def _unloaded(name: str, shape: ModelShape, note: Reason | None = None) -> FittedModel:
    return FittedModel(shape, LoadSettings(path=name, n_ctx=default_context(shape.context_train)), note)
