"""Bodies of the vector store routes, and filters on file attributes."""

import operator
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field

from engine.core.errors import InputFault
from engine.server.body import ANY, Body, Metadata

# Maximum nesting of filters.
MAX_DEPTH: Final = 8
# Source: OpenAI's reference. More files can be added one by one or in batches.
MAX_FILES: Final = 500
Attributes = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)] | float | bool],
    Field(max_length=16),
]
FileIds = Annotated[list[str], Field(max_length=MAX_FILES)]


class StoreRequest(Body):
    """POST /v1/vector_stores. Text is always split by its structure, so `chunking_strategy` has no effect."""

    no_effect: ClassVar = frozenset({"chunking_strategy", "expires_after", "description"})
    shapes: ClassVar = {"metadata": ANY}

    name: Annotated[str, Field(max_length=120)] | None = None
    file_ids: FileIds | None = None
    metadata: Metadata | None = None
    chunking_strategy: dict[str, Any] | None = None
    expires_after: dict[str, Any] | None = None
    description: str | None = None


class FileRequest(Body):
    """POST /v1/vector_stores/{id}/files."""

    no_effect: ClassVar = frozenset({"chunking_strategy"})
    shapes: ClassVar = {"attributes": ANY}

    file_id: str
    attributes: Attributes | None = None
    chunking_strategy: dict[str, Any] | None = None


class BatchRequest(Body):
    """POST /v1/vector_stores/{id}/file_batches."""

    no_effect: ClassVar = frozenset({"chunking_strategy"})
    shapes: ClassVar = {"attributes": ANY}

    file_ids: FileIds
    attributes: Attributes | None = None
    chunking_strategy: dict[str, Any] | None = None


def _filter(depth: int) -> dict[str, Any]:
    keys: dict[str, Any] = {"type": ANY, "key": ANY, "value": ANY}
    return {**keys, "filters": _filter(depth - 1)} if depth else keys


class RankingOptions(Body):
    """Ranking of results; the server selects the `ranker`."""

    no_effect: ClassVar = frozenset({"ranker"})

    ranker: str | None = None
    score_threshold: Annotated[float, Field(ge=0, le=1)] | None = None


class Wanted(Body):
    """Result options shared by the search route and the `file_search` tool."""

    shapes: ClassVar = {"filters": _filter(MAX_DEPTH)}

    max_num_results: Annotated[int, Field(ge=1, le=50)] | None = None
    filters: dict[str, Any] | None = None
    ranking_options: RankingOptions | None = None


class StoreSearch(Wanted):
    """POST /v1/vector_stores/{id}/search. Queries are not rewritten."""

    no_effect: ClassVar = frozenset({"rewrite_query"})

    query: Annotated[str, Field(min_length=1)] | Annotated[list[str], Field(min_length=1, max_length=16)]
    rewrite_query: bool | None = None


class FileSearch(Wanted):
    """The tool `file_search` of POST /v1/responses. Stores are named by id, collections by id or name."""

    type: Literal["file_search"]
    vector_store_ids: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=16)]


_COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "gt": operator.gt,
    "gte": operator.ge,
    "lt": operator.lt,
    "lte": operator.le,
    "in": lambda value, values: value in values,
    "nin": lambda value, values: value not in values,
}


def fits(attributes: Mapping[str, Any], condition: Mapping[str, Any], depth: int = 0) -> bool:
    """Whether a file's attributes pass a filter. Raises: InputFault: the filter is invalid."""
    kind = condition.get("type")
    inner = condition.get("filters")
    if kind in ("and", "or") and isinstance(inner, list) and inner and depth < MAX_DEPTH:
        if not all(isinstance(each, dict) for each in inner):
            raise InputFault("filters: each must be an object.", "filters")
        passed = [fits(attributes, each, depth + 1) for each in inner]
        return all(passed) if kind == "and" else any(passed)
    compare, key = _COMPARISONS.get(str(kind)), condition.get("key")
    if compare is None or not isinstance(key, str) or "value" not in condition:
        raise InputFault(f"filters: {kind!r} with key and value, or and/or with filters, is needed.", "filters")
    if key not in attributes:
        return kind in ("ne", "nin")
    try:
        return bool(compare(attributes[key], condition["value"]))
    except TypeError:
        return False
