"""File-format readers, one module per family. Imported only by the process that reads documents."""

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Final

from engine.documents.types import Page

# Kind to module and reader function; the module is imported for the first file of the kind.
_READERS: Final = {
    "text": ("text", "text"),
    "markdown": ("text", "markdown"),
    "code": ("text", "code"),
    "notebook": ("text", "notebook"),
    "html": ("html", "html"),
    "epub": ("html", "epub"),
    "pdf": ("pdf", "pdf"),
    "docx": ("office", "docx"),
    "pptx": ("office", "pptx"),
    "xlsx": ("office", "xlsx"),
    "opendocument": ("opendocument", "opendocument"),
    "rtf": ("rtf", "rtf"),
    "unread": ("opendocument", "unread"),
    "csv": ("table", "table"),
    "eml": ("mail", "eml"),
    "mbox": ("mail", "mbox"),
    "picture": ("pdf", "image_pages"),
}


def reader_of(kind: str) -> Callable[..., Iterator[Page]]:
    """The function that yields the pages of a path."""
    module, name = _READERS[kind]
    reader: Callable[..., Iterator[Page]] = getattr(import_module(f"engine.documents.formats.{module}"), name)
    return reader
