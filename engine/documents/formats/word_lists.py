"""Automatic numbers of paragraphs in Word documents."""

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from engine.documents.formats.archive import attribute, local

# Styles that are based on another one, in a chain of this length.
_MAX_BASES: Final = 12
_PLACE: Final = re.compile(r"%(\d)")
# Larger numbers have no Roman form, and letters would become long texts.
_MAX_NUMBER: Final = 4000
_MAX_CHARS: Final = 100
_ROMAN: Final = (
    (1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"), (50, "L"), (40, "XL"), (10, "X"),
    (9, "IX"), (5, "V"), (4, "IV"), (1, "I"),
)  # fmt: skip


class _ListLevel(NamedTuple):
    """A level of a list: its first number, the format of its numbers, and the text with %1 for the first level."""

    start: int
    form: str
    text: str


class ListNumbers:
    """The automatic numbers of paragraphs ("4.2", "(a)"), which are not in their text. Bullets are left out."""

    def __init__(self, numbering: Iterator[Any], styles: Iterator[Any]) -> None:
        abstract: dict[str, dict[int, _ListLevel]] = {}
        self._lists: dict[
            str, tuple[str, dict[int, _ListLevel]]
        ] = {}  # by id: what counts together, and the levels
        for element in (child for tree in numbering for child in tree):
            if local(element) == "abstractNum":
                abstract[attribute(element, "abstractNumId")] = dict(map(_list_level, _children(element, "lvl")))
            elif local(element) == "num":
                key, list_id = (
                    attribute(next(_children(element, "abstractNumId"), element)),
                    attribute(element, "numId"),
                )
                changes = dict(_override(o, abstract.get(key, {})) for o in _children(element, "lvlOverride"))
                self._lists[list_id] = (f"own {list_id}" if changes else key, {**abstract.get(key, {}), **changes})
        self._styles = {
            attribute(style, "styleId"): (_list_of(next(_children(style, "pPr"), None)), _based_on(style))
            for tree in styles
            for style in _children(tree, "style")
        }
        self._counts: dict[str, dict[int, int]] = {}

    def next(self, settings: Any, style: str) -> str:
        """The number of the next paragraph, which has these settings and this style; empty if it has none."""
        list_id, depth = _list_of(settings)
        for _ in range(_MAX_BASES):
            (styled_id, styled_depth), style = self._styles.get(style, (("", None), ""))
            list_id = list_id or styled_id
            depth = styled_depth if depth is None else depth
        key, levels = self._lists.get(list_id, ("", {}))
        depth = depth or 0
        if depth not in levels:
            return ""
        counts = self._counts.setdefault(key, {})
        counts[depth] = counts.get(depth, levels[depth].start - 1) + 1
        for deeper in [other for other in counts if other > depth]:
            del counts[deeper]

        def shown(match: re.Match[str]) -> str:
            level = levels.get(int(match[1]) - 1)
            return "" if level is None else _number(counts.get(int(match[1]) - 1, level.start), level.form)

        return "" if levels[depth].form in ("bullet", "none") else _PLACE.sub(shown, levels[depth].text).strip()


def _children(parent: Any, kind: str) -> Iterator[Any]:
    return (child for child in parent if local(child) == kind)


def _list_of(settings: Any) -> tuple[str, int | None]:
    """The id of a paragraph's list and the level in it, as far as its settings state them."""
    if settings is None:
        return "", None
    facts = {local(e): attribute(e) for numbers in _children(settings, "numPr") for e in numbers}
    depth = facts.get("ilvl", "")
    return facts.get("numId", ""), int(depth) if depth.isdecimal() else None


def _based_on(style: Any) -> str:
    return next((attribute(base) for base in _children(style, "basedOn")), "")


def _list_level(level: Any) -> tuple[int, _ListLevel]:
    facts = {local(child): attribute(child) for child in level}
    start, depth = facts.get("start", "1"), attribute(level, "ilvl")
    form = facts.get("numFmt", "decimal")
    return int(depth) if depth.isdecimal() else 0, _ListLevel(
        int(start) if start.isdecimal() else 1, form, facts.get("lvlText", "")[:_MAX_CHARS]
    )


def _override(element: Any, levels: dict[int, _ListLevel]) -> tuple[int, _ListLevel]:
    """A level that one list has different: all of it, or only its first number."""
    stated = attribute(element, "ilvl")
    depth = int(stated) if stated.isdecimal() else 0
    level = next((_list_level(child)[1] for child in _children(element, "lvl")), None)
    level = level or levels.get(depth, _ListLevel(1, "none", ""))
    start = next((attribute(child) for child in _children(element, "startOverride")), "")
    return depth, level._replace(start=int(start)) if start.isdecimal() else level


def _number(count: int, form: str) -> str:
    if form.endswith("Letter") and 0 < count < _MAX_NUMBER:
        letter = chr(ord("a") + (count - 1) % 26) * ((count - 1) // 26 + 1)
        return letter.upper() if form.startswith("upper") else letter
    if form.endswith("Roman") and 0 < count < _MAX_NUMBER:
        text = ""
        for value, sign in _ROMAN:
            text += sign * (count // value)
            count %= value
        return text if form.startswith("upper") else text.lower()
    return f"{count:02}" if form == "decimalZero" else str(count)
