"""What of a request has no effect here, reported in a header."""

import re
from typing import Final

_INDEX: Final = re.compile(r"\[\d+\]")
# A header of more names than this would be longer than some clients read.
MOST_NAMES: Final = 40


def ignored_header(names: list[str]) -> dict[str, str]:
    """The header that names fields of a request that have no effect here; clients chose some of the names."""
    if not names:
        return {}
    names = _grouped(names)
    shown = (name[:64].encode("ascii", "replace").decode() for name in names[:MOST_NAMES])
    listed = ", ".join("".join(c if c.isprintable() else "?" for c in name) for name in shown)
    more = f", and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return {"x-tessera-ignored": listed + more}


def _grouped(names: list[str]) -> list[str]:
    """What occurs several times in a list is reported once: `messages[].content[].cache_control`."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(_INDEX.sub("[]", name), []).append(name)
    return [found[0] if len(found) == 1 else pattern for pattern, found in groups.items()]
