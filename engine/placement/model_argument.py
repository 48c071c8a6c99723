"""Resolves the model argument of `tessera fit`: a file, a model of the library, or a repository on the hub."""

from pathlib import Path

import msgspec

from engine.library.catalogue import Catalogue
from engine.library.lookup import require
from engine.placement.hub_shape import fit_estimator
from engine.placement.load_settings import default_context, load_settings, with_engine_args
from engine.placement.model_settings import open_model_settings
from engine.placement.placer import Placer, read_shape
from engine.placement.shape import ModelShape
from engine.runner.engine_args import NO_ARGS
from engine.runner.protocol import LoadSettings


def find(
    model: str, catalogue: Catalogue, placer: Placer, projector: str | None = None
) -> tuple[ModelShape, LoadSettings]:
    """Shape and settings; only the headers of a repository are read. `projector` is loaded with the model.

    Raises: ModelNotFound, the errors of HubClient and of reading the file.
    """
    shape, settings = _resolve(model, catalogue, placer)
    return shape, settings if projector is None else msgspec.structs.replace(settings, mmproj_path=projector)


def _resolve(model: str, catalogue: Catalogue, placer: Placer) -> tuple[ModelShape, LoadSettings]:
    if Path(model).is_file():
        shape = read_shape(model)
        return shape, LoadSettings(path=model, n_ctx=default_context(shape.context_train))
    entry = catalogue.get(model)
    if entry is None and "/" in model:
        from engine.placement.hub_shape import hub_shape

        shape = hub_shape(model, catalogue.paths, fit_estimator(placer))
        return shape, LoadSettings(path=model, n_ctx=default_context(shape.context_train))
    entry = entry or require(catalogue, model)
    args = open_model_settings(catalogue.paths).get(entry.id).engine_args
    settings = with_engine_args(load_settings(entry), args) if args != NO_ARGS else load_settings(entry)
    return read_shape(settings.path), settings
