"""Finds a model by name; the error lists similar ids."""

import difflib

from engine.core.errors import ModelNotFound
from engine.library.catalogue import Catalogue
from engine.library.types import ModelEntry


def require(catalogue: Catalogue, name: str) -> ModelEntry:
    """The model with that name; refreshes the catalogue if unknown. Raises: ModelNotFound with the closest ids."""
    entry = catalogue.get(name)
    if entry is None:
        catalogue.refresh()
        entry = catalogue.get(name)
    if entry is not None:
        return entry
    ids = [entry.id for entry in catalogue.entries()]
    close = difflib.get_close_matches(name.lower(), ids, n=5, cutoff=0.4)
    raise ModelNotFound(name, tuple(close or ids[:8]))
