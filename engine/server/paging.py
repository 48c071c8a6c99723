"""Lists in OpenAI's page format."""

from typing import Annotated, Any, Literal

from fastapi import Query

from engine.core.errors import InputFault

PageSize = Annotated[int, Query(ge=1, le=100)]
# OpenAI lists up to 10,000 files, and its client requests that many by default.
ManyFiles = Annotated[int, Query(ge=1, le=10_000)]
Order = Literal["asc", "desc"]


def page(items: list[dict[str, Any]], limit: int, after: str | None, order: Order) -> dict[str, Any]:
    """At most `limit` items after the one with id `after`. Raises: InputFault: no item has that id."""
    ordered = items if order == "asc" else items[::-1]
    start = 0
    if after is not None:
        ids = [item.get("id") for item in ordered]
        if after not in ids:
            raise InputFault(f"after: no item here has the id {after!r}.", "after")
        start = ids.index(after) + 1
    shown = ordered[start : start + limit]
    ends = {"first_id": shown[0].get("id") if shown else None, "last_id": shown[-1].get("id") if shown else None}
    return {"object": "list", "data": shown, "has_more": start + limit < len(ordered), **ends}
