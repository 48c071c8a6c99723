"""Request bodies: parsed once, checked strictly, errors name the field."""

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import ClientDisconnect, Request

from engine.core.errors import Cancelled, InputFault
from engine.server.json_bounds import UNCOUNTED_BYTES, check_counts
from engine.server.known_keys import unread
from engine.server.long_strings import Cut

# What clients may attach to what is stored for them. Source: OpenAI's reference.
Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
]


class Body(BaseModel):
    """Base of request models: no silent conversion, NaN refused, unknown fields kept so they can be reported."""

    model_config = ConfigDict(
        strict=True, extra="allow", allow_inf_nan=False, protected_namespaces=(), defer_build=True
    )

    # Declared fields that have no effect here, and the shapes of those that are free JSON.
    no_effect: ClassVar[frozenset[str]] = frozenset()
    shapes: ClassVar[Mapping[str, Any]] = {}

    def ignored(self) -> list[str]:
        """Names of what has no effect here, also inside other fields: `stream_options.x`, `messages[0].y`."""
        found = sorted(name for name, value in (self.model_extra or {}).items() if value is not None)
        for name in type(self).model_fields:
            value = getattr(self, name)
            if name in self.no_effect:
                found += [name] if value is not None else []
            elif name in self.shapes:
                found += unread(value, self.shapes[name], name)
            else:
                found += _inside(value, name)
        return found


def _inside(value: object, path: str) -> list[str]:
    if isinstance(value, Body):
        return [f"{path}.{inner}" for inner in value.ignored()]
    if isinstance(value, list) and any(isinstance(item, Body) for item in value):
        return [name for index, item in enumerate(value) for name in _inside(item, f"{path}[{index}]")]
    return []


# From here on a body is parsed in short steps: smaller ones take a few milliseconds.
LARGE_BYTES: Final = 1 << 20

_KINDS = frozenset({"str", "int", "float", "bool", "dict", "list"})
M = TypeVar("M", bound=BaseModel)


async def parse(request: Request, model: type[M]) -> M:
    """The request's body as `model`.

    Raises: InputFault: not JSON, too deeply nested, or a field out of range; `param` names it.
    """
    raw = await whole(request)
    try:
        if len(raw) > LARGE_BYTES:
            return await _parse_large(raw, model)
        if len(raw) > UNCOUNTED_BYTES:
            await asyncio.to_thread(check_counts, raw)
        return model.model_validate_json(raw)
    except ValidationError as error:
        raise fault(error) from None
    except RecursionError:
        raise InputFault("The JSON is nested too deeply.") from None


# One at a time, so that several together take no longer from everybody else than one.
_large = asyncio.Semaphore(1)


async def _parse_large(raw: bytes | bytearray, model: type[M]) -> M:
    async with _large:
        cut = await asyncio.to_thread(Cut, raw)
        body = model.model_validate_json(cut.short)
        return await asyncio.to_thread(cut.put_back, body) if cut.any else body


async def whole(request: Request) -> bytes | bytearray:
    """All bytes of the body. Raises: Cancelled: the client left before it had sent them."""
    buffered: bytes | bytearray | None = getattr(request.state, "whole_body", None)
    if buffered is not None:
        return buffered
    raw = bytearray()
    try:
        async for chunk in request.stream():  # joined at their end they would be copied in one step
            raw += chunk
    except ClientDisconnect:
        raise Cancelled("the client closed the connection") from None
    request.state.whole_body = raw
    return raw


async def parse_or(request: Request, model: type[M]) -> M:
    """The request's body as `model`, or its defaults when there is none. Raises: as `parse`."""
    if not await whole(request):
        return model()
    return await parse(request, model)


_SHOWN: Final = 60


def fault(error: ValidationError) -> InputFault:
    """The first problem of a validation error, with the field it is in."""
    first = _closest(error.errors(include_url=False))
    if first["type"] == "json_invalid":
        return InputFault(f"The body is not valid JSON: {first['msg'].removeprefix('Invalid JSON: ')}.")
    param = _path(first["loc"])
    given: Any = first.get("input")
    given = given[:_SHOWN] if isinstance(given, str) else given
    shown = "" if isinstance(given, dict | list) else f" (got {given!r:.{_SHOWN}})"
    return InputFault(f"{param or 'body'}: {first['msg']}{shown}.", param or None)


def _closest(problems: list[Any]) -> Any:
    """The first problem; where a field may be of several kinds, what is wrong with the kind that was sent."""
    first = problems[0]
    field = [p for p in problems if p["loc"][:1] == first["loc"][:1]]
    sent = type(first.get("input")).__name__

    def is_of_that_kind(problem: Any) -> bool:
        return any(isinstance(part, str) and part.startswith(sent) for part in problem["loc"][1:])

    fits = [problem for problem in field if is_of_that_kind(problem)]
    return fits[0] if fits and len(field) > 1 else first


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif path and (part in _KINDS or part[:1].isupper()):
            continue  # the name of a kind that the field may be of
        elif not any(mark in part for mark in "[(-"):
            path += f".{part}" if path else part
    return path


# Bodies of routes whose schemas nobody asked for yet: where they belong, and their models.
_unwritten: list[tuple[dict[str, Any], type[BaseModel]]] = []


def openapi_body(model: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    """The `openapi_extra` of a route whose body is parsed by `parse`; `write_schemas` makes it whole."""
    content: dict[str, Any] = {}
    _unwritten.append((content, model))
    return {"requestBody": {"required": required, "content": {"application/json": content}}}


def write_schemas() -> None:
    """Make the schemas of all bodies, for the OpenAPI page: a fifth of a second that few servers ever need."""
    while _unwritten:
        content, model = _unwritten.pop()
        content["schema"] = _inline(model)


def _inline(model: type[BaseModel]) -> dict[str, Any]:
    """The model's JSON schema with its definitions resolved in place."""
    schema = model.model_json_schema()
    definitions = schema.pop("$defs", {})

    def resolve(node: Any, depth: int = 0) -> Any:
        if isinstance(node, dict):
            reference = node.get("$ref")
            if isinstance(reference, str) and depth < 8:  # noqa: PLR2004 - our models nest less
                return resolve(definitions.get(reference.rsplit("/", 1)[-1], {}), depth + 1)
            return {k: resolve(v, depth) for k, v in node.items()}
        if isinstance(node, list):
            return [resolve(v, depth) for v in node]
        return node

    resolved = resolve(schema)
    assert isinstance(resolved, dict)
    return resolved
