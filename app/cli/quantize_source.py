"""Sources that are models of the library rather than paths."""

from pathlib import Path


def library_path(name: str) -> Path:
    """The file or folder of a model of the library. Raises: ModelNotFound."""
    from engine.library.catalogue import Catalogue  # noqa: PLC0415 - opens the database
    from engine.library.lookup import require  # noqa: PLC0415

    catalogue = Catalogue()
    try:
        return require(catalogue, name).path
    finally:
        catalogue.close()
