"""Filters on file attributes: OpenAI's comparisons and their combinations."""

import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

from engine.core.errors import InputFault

_COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "gt": operator.gt,
    "gte": operator.ge,
    "lt": operator.lt,
    "lte": operator.le,
    "in": lambda value, wanted: value in wanted,
    "nin": lambda value, wanted: value not in wanted,
}
# Maximum nesting of filters.
MAX_DEPTH: Final = 8


def fits(attributes: Mapping[str, Any], wanted: Mapping[str, Any], depth: int = 0) -> bool:
    """Whether a file's attributes pass a filter. Raises: InputFault: the filter is invalid."""
    kind = wanted.get("type")
    inner = wanted.get("filters")
    if kind in ("and", "or") and isinstance(inner, list) and inner and depth < MAX_DEPTH:
        if not all(isinstance(each, dict) for each in inner):
            raise InputFault("filters: each must be an object.", "filters")
        passed = [fits(attributes, each, depth + 1) for each in inner]
        return all(passed) if kind == "and" else any(passed)
    compare, key = _COMPARISONS.get(str(kind)), wanted.get("key")
    if compare is None or not isinstance(key, str) or "value" not in wanted:
        raise InputFault(f"filters: {kind!r} with key and value, or and/or with filters, is needed.", "filters")
    if key not in attributes:
        return kind in ("ne", "nin")
    try:
        return bool(compare(attributes[key], wanted["value"]))
    except TypeError:
        return False
