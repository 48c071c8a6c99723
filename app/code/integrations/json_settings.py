"""Change settings in JSON files, also with comments, without changing anything else."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from app.code.integrations.types import NeedsHand

Settings = Mapping[tuple[str, ...], Any]
# Distinguishes a missing key from null.
_MISSING: Any = object()

_TOKEN = re.compile(
    r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/|,(?=\s*(?:(?://[^\n]*\n|/\*.*?\*/)\s*)*[}\]])', re.DOTALL
)
_INDENT = re.compile(r"\n([ \t]+)\S")


def parse(text: str) -> Any:
    """Parse JSON with comments and trailing commas.

    Raises: ValueError.
    """
    return json.loads(_TOKEN.sub(lambda m: m.group() if m.group().startswith('"') else " ", text) or "{}")


def has_extras(text: str) -> bool:
    """Return True if there are comments or trailing commas, which a rewrite would lose."""
    return any(not match.group().startswith('"') for match in _TOKEN.finditer(text))


def with_settings(path: Path, text: str | None, settings: Settings) -> str:
    """The text with the settings (by their key path) inserted.

    Raises: NeedsHand: the file is not a JSON object, or has comments and already contains one of the top keys.
    """
    snippet = json.dumps(_nested(settings), indent=2)
    if text is None or not text.strip():
        return snippet + "\n"
    try:
        parsed = parse(text)
    except ValueError as error:
        raise NeedsHand(path, f"it cannot be read as JSON ({error})", snippet) from error
    if not isinstance(parsed, dict):
        raise NeedsHand(path, "it contains no JSON object", snippet)
    if not has_extras(text):
        for keys, value in settings.items():
            if not _put(parsed, keys, value):
                raise NeedsHand(path, f"{'.'.join(keys[:-1])} is not an object", snippet)
        return json.dumps(parsed, indent=_indent(text), ensure_ascii=False) + "\n"
    nested = _nested(settings)
    clash = [key for key in nested if key in parsed and parsed[key] != nested[key]]
    if clash:
        raise NeedsHand(path, f"it has comments and sets {', '.join(clash)} already", snippet)
    return _inserted(text, {key: value for key, value in nested.items() if key not in parsed})


def without_settings(text: str, settings: Settings, before: str | None) -> str:
    """The text without Tessera's settings: each one that was not changed since gets its previous value again."""
    parsed = parse(text)
    earlier = parse(before) if before else {}
    if has_extras(text):
        return _cut(text, _nested(settings))
    for keys, value in settings.items():
        if _get(parsed, keys) == value:
            old = _get(earlier, keys)
            if old is _MISSING:
                _remove(parsed, keys, earlier)
            else:
                _put(parsed, keys, old)
    return json.dumps(parsed, indent=_indent(text), ensure_ascii=False) + "\n"


def undo_settings(now: str, before: str | None, after: str) -> str:
    """`Integration.undo` for JSON files: reverts only Tessera's settings, whatever else has changed since."""
    return without_settings(now, dict(_changes(parse(before or "{}"), parse(after))), before)


def _changes(before: Any, after: Any, keys: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the leaves that differ, with their key paths."""
    if isinstance(after, dict) and (after or keys == ()):
        for key, value in after.items():
            yield from _changes(
                before.get(key, _MISSING) if isinstance(before, dict) else _MISSING, value, (*keys, key)
            )
    elif before is _MISSING or before != after:
        yield keys, after


def _inserted(text: str, added: dict[str, Any]) -> str:
    """Insert properties right after the opening brace; comments below stay where they are."""
    brace = text.index("{", next(_outside(text)))
    indent = _indent(text)
    lines = json.dumps(added, indent=indent, ensure_ascii=False).split("\n")[1:-1]
    block = "".join(f"\n{line}" for line in lines)
    more = _TOKEN.sub(lambda m: m.group() if m.group().startswith('"') else "", text[brace + 1 :]).strip() != "}"
    return text[: brace + 1] + block + ("," if more and lines else "") + text[brace + 1 :]


def _cut(text: str, added: dict[str, Any]) -> str:
    """Remove exactly what `_inserted` added, if it is still there."""
    for comma in (",", ""):
        for indent in ("\t", 2, 4):
            lines = json.dumps(added, indent=indent, ensure_ascii=False).split("\n")[1:-1]
            block = "".join(f"\n{line}" for line in lines) + comma
            if block in text:
                return text.replace(block, "", 1)
    return text


def _outside(text: str) -> Iterator[int]:
    """Yield the first position that is not in a comment."""
    position = 0
    for match in re.finditer(r"\s+|//[^\n]*|/\*.*?\*/", text, re.DOTALL):
        if match.start() != position:
            break
        position = match.end()
    yield position


def _indent(text: str) -> str | int:
    match = _INDENT.search(text)
    if match is None:
        return 2
    return "\t" if match.group(1)[0] == "\t" else len(match.group(1))


def _nested(settings: Settings) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for keys, value in settings.items():
        _put(result, keys, value)
    return result


def _put(target: dict[str, Any], keys: tuple[str, ...], value: Any) -> bool:
    for key in keys[:-1]:
        inner = target.setdefault(key, {})
        if not isinstance(inner, dict):
            return False
        target = inner
    target[keys[-1]] = value
    return True


def _get(target: Any, keys: tuple[str, ...]) -> Any:
    for key in keys:
        if not isinstance(target, dict) or key not in target:
            return _MISSING
        target = target[key]
    return target


def _remove(target: dict[str, Any], keys: tuple[str, ...], earlier: Any) -> None:
    """Remove a value, and objects that become empty, unless they existed before."""
    parent = _get(target, keys[:-1]) if len(keys) > 1 else target
    if isinstance(parent, dict):
        parent.pop(keys[-1], None)
        if not parent and len(keys) > 1 and _get(earlier, keys[:-1]) is _MISSING:
            _remove(target, keys[:-1], earlier)


# A marked block of Tessera's lines in a text file of another program.

_BEGIN, _END = "# >>> tessera (managed block; `tessera launch NAME --remove` takes it out)", "# <<< tessera"


def with_block(text: str | None, lines: Sequence[str], *, after: int | None = None) -> str:
    """The text with Tessera's block at its end, or after line `after` (1-based); replaces an older block."""
    text = without_block(text or "")
    block = [_BEGIN, *lines, _END]
    if after is None:
        head = text if not text or text.endswith("\n") else text + "\n"
        return head + "\n".join(block) + "\n"
    rows = text.split("\n")
    return "\n".join(rows[:after] + block + rows[after:])


def without_block(text: str) -> str:
    """The text without Tessera's block."""
    begin, end = re.escape(_BEGIN), re.escape(_END)
    return re.sub(rf"^[ \t]*{begin}\n.*?^[ \t]*{end}\n?", "", text, flags=re.DOTALL | re.MULTILINE)


def undo_block(now: str, before: str | None, after: str) -> str:
    """`Integration.undo` for files with Tessera's block and commented-out lines."""
    del before, after
    return restored(without_block(now))


_ASIDE = "# tessera set aside: "


def set_aside(text: str, keys: Sequence[str]) -> str:
    """Comment out top-level lines `key: value` that the block replaces, so that they can be restored."""
    pattern = re.compile(rf"^(?=(?:{'|'.join(map(re.escape, keys))})\s*:)", re.MULTILINE)
    return pattern.sub(_ASIDE, text)


def restored(text: str) -> str:
    """Restore the commented-out lines."""
    return text.replace(_ASIDE, "")
