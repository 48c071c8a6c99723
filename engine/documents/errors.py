"""Errors of collections."""

from pathlib import Path

from engine.core.errors import EnvironmentFault, InputFault
from engine.message_catalog.reasons import because


class NoCollection(InputFault):
    """No collection has that name or id."""

    code = "collection_not_found"

    def __init__(self, name: str, known: tuple[str, ...] = ()) -> None:
        lost = because("no_collection", name=name)
        super().__init__(because("no_collection_but", name=name, known=known) if known else lost, "collection")
        self.name = name
        self.known = known


class NotAgreed(InputFault):
    """Another server runs the model, and the user did not agree to send the collection's text to it."""

    code = "remote_not_agreed"

    def __init__(self, model: str, server: str) -> None:
        super().__init__(because("remote_not_agreed", model=model, server=server), "allow_remote")
        self.model = model
        self.server = server


class NoDocument(InputFault):
    """The collection has no such document, or the document has no such page."""

    code = "document_not_found"


class FileNotFound(InputFault):
    """No file with that id was uploaded, or it is not in that store."""

    code = "file_not_found"


class CollectionUnusable(EnvironmentFault):
    """The index on disk cannot be opened or written; `reason` says why."""

    code = "collection_unusable"

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(because("collection_unusable", path=str(path), why=reason))
        self.path = path
        self.reason = reason
