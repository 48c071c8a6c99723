"""Untrusted archives: their unpacked size is limited before they are read."""

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from lxml import etree

from engine.documents.types import BadDocument

# Parsed XML takes about ten times as much memory.
MAX_INFLATED_BYTES: Final = 256 << 20
MAX_MEMBER_BYTES: Final = 96 << 20
# Office writes encrypted files into the container of its old formats.
_COMPOUND: Final = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"


@contextmanager
def open_archive(path: Path) -> Iterator[zipfile.ZipFile]:
    """An opened archive that is neither damaged nor a zip bomb. Raises: BadDocument."""
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, ValueError) as error:
        with path.open("rb") as file:
            if file.read(len(_COMPOUND)) == _COMPOUND:
                raise BadDocument("it is encrypted, or in a format of Office before 2007") from error
        raise BadDocument("it is damaged, or not what its name says") from error
    with archive:
        inflated = sum(member.file_size for member in archive.infolist())
        if inflated > MAX_INFLATED_BYTES:
            raise BadDocument(f"it unpacks to {inflated >> 20} MiB, more than {MAX_INFLATED_BYTES >> 20}")
        if any(member.flag_bits & 1 for member in archive.infolist()):
            raise BadDocument("it is encrypted")
        try:
            yield archive
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
            raise BadDocument("it is damaged") from error


def read_member(archive: zipfile.ZipFile, name: str) -> bytes:
    """One file of the archive. Raises: KeyError: it does not exist. Unreadable: its actual size is too large."""
    with archive.open(name) as member:
        raw = member.read(MAX_MEMBER_BYTES + 1)
    if len(raw) > MAX_MEMBER_BYTES:
        raise BadDocument(f"{name} in it has more than {MAX_MEMBER_BYTES >> 20} MiB")
    return raw


# Common parts of the Office formats: XML in an archive, and the relations between parts.

XML: Final = etree.XMLParser(resolve_entities=False, no_network=True, huge_tree=False)


def local(element: Any) -> str:
    """The local name of an element without its namespace; empty for comments and processing instructions."""
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


def attribute(element: Any, name: str = "val") -> str:
    """An attribute's value by its local name."""
    return next((value for key, value in element.items() if key.rpartition("}")[2] == name), "")


def relations(archive: Any, name: str) -> dict[str, tuple[str, str]]:
    """The related parts by id, as (part, kind); those of the package for "". Raises: KeyError: there is no list."""
    folder, _, leaf = name.rpartition("/")
    raw = read_member(archive, f"{folder}/_rels/{leaf}.rels".lstrip("/"))
    targets = {}
    for relation in etree.fromstring(raw, XML):
        target = relation.get("Target") or ""
        parts = [] if target.startswith("/") or not folder else folder.split("/")
        for part in target.strip("/").split("/"):
            parts = parts[:-1] if part == ".." else parts if part == "." else [*parts, part]
        targets[relation.get("Id") or ""] = ("/".join(parts), (relation.get("Type") or "").rsplit("/", 1)[-1])
    return targets
