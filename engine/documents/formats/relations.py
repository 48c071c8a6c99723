"""What the formats of Office share: XML in an archive, and which part leads to which."""

from typing import Any, Final

from lxml import etree

from engine.documents.formats.archive import read_member

XML: Final = etree.XMLParser(resolve_entities=False, no_network=True, huge_tree=False)


def local(element: Any) -> str:
    """The name of an element without its namespace; empty for comments and the like."""
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


def relations(archive: Any, name: str) -> dict[str, tuple[str, str]]:
    """(part, kind) by id of what a part leads to; of the whole package for "". Raises: KeyError: it has no list."""
    folder, _, leaf = name.rpartition("/")
    raw = read_member(archive, f"{folder}/_rels/{leaf}.rels".lstrip("/"))
    found = {}
    for relation in etree.fromstring(raw, XML):
        target = relation.get("Target") or ""
        parts = [] if target.startswith("/") or not folder else folder.split("/")
        for part in target.strip("/").split("/"):
            parts = parts[:-1] if part == ".." else parts if part == "." else [*parts, part]
        found[relation.get("Id") or ""] = ("/".join(parts), (relation.get("Type") or "").rsplit("/", 1)[-1])
    return found
