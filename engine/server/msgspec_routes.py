"""Routes that take and return structs of engine.api. They use msgspec and are described on the OpenAPI page.

An endpoint names both structs in its signature:

    @router.post("/models/pull", status_code=202)
    async def pull(request: Request, body: PullRequest) -> Job: ...

The struct parameter is read from the request's body. The body is optional if all fields have defaults.
"""

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import wraps
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from fastapi import Request
from fastapi.routing import APIRoute
from msgspec import inspect as inspection
from starlette.responses import Response

from devices.msgspec_lock import learned
from engine.api.sentences import described, encoded
from engine.core.errors import InputFault

T = TypeVar("T")
REF: Final = "#/components/schemas/{name}"
_AT: Final = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")
_MISSING: Final = re.compile(r"required field `(?P<name>[^`]+)`")
_JSON: Final = "application/json"
_MARK: Final = "x-contract"
_Endpoint = Callable[..., Awaitable[Any]]


class Contract(NamedTuple):
    """Body and response structs of an endpoint; None if it has no struct."""

    takes: type[msgspec.Struct] | None
    returns: type[msgspec.Struct] | None


_contracts: dict[str, Contract] = {}


class TypedRoute(APIRoute):
    """A route whose endpoint takes and returns structs. Other endpoints work as in FastAPI."""

    def __init__(self, path: str, endpoint: _Endpoint, *, status_code: int | None = None, **options: Any) -> None:
        key = f"{endpoint.__module__}.{endpoint.__qualname__}"
        signature = inspect.signature(endpoint)
        bodies = [p for p in signature.parameters.values() if _is_struct(p.annotation)]
        returns = signature.return_annotation if _is_struct(signature.return_annotation) else None
        if bodies or returns is not None:
            body = bodies[0] if bodies else None
            endpoint = _typed(endpoint, signature, body, returns, status_code or 200)
            _contracts[key] = Contract(body.annotation if body else None, returns)
            options["openapi_extra"] = {_MARK: key}
        super().__init__(path, endpoint, status_code=status_code, **options)


def take_contract(operation: dict[str, Any]) -> Contract | None:
    """The contract of the route behind an operation of FastAPI's page; removes the mark that links them."""
    return _contracts.get(operation.pop(_MARK, ""))


def decode(raw: bytes, kind: type[T]) -> T:
    """Decode a body as a struct.

    Raises: InputFault: not JSON, nested too deeply, or a field that is wrong or unknown; `param` names it.
    """
    try:
        body = msgspec.json.decode(raw, type=learned(kind))
        unknown = next(_unknown(inspection.type_info(kind), msgspec.json.decode(raw)), None)
    except msgspec.ValidationError as error:
        raise _fault(str(error)) from None
    except ValueError as error:
        raise InputFault(f"The body is not valid JSON: {error}.") from None
    except RecursionError:
        raise InputFault("The JSON is nested too deeply.") from None
    if unknown is not None:
        raise InputFault(f"{unknown}: there is no such field here.", unknown)
    return body


def _unknown(kind: inspection.Type, value: Any, path: str = "") -> Iterator[str]:
    """Paths of unknown keys. Free-form JSON and mappings may have any key."""
    if isinstance(kind, inspection.UnionType):
        structs = [inner for inner in kind.types if isinstance(inner, inspection.StructType | inspection.ListType)]
        kind = structs[0] if len(structs) == 1 else inspection.AnyType()
    if isinstance(kind, inspection.StructType) and isinstance(value, dict):
        fields = {field.encode_name: field.type for field in kind.fields}
        for name, inner in value.items():
            where = f"{path}.{name}" if path else name
            if name in fields:
                yield from _unknown(fields[name], inner, where)
            elif name != kind.tag_field:
                yield where
    elif isinstance(kind, inspection.ListType | inspection.VarTupleType) and isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _unknown(kind.item_type, inner, f"{path}[{index}]")


def components(kinds: Iterable[type[msgspec.Struct]]) -> tuple[tuple[dict[str, Any], ...], dict[str, Any]]:
    """References to the structs and their schemas, for the OpenAPI page."""
    references, schemas = msgspec.json.schema_components(list(kinds), ref_template=REF)
    return references, described(schemas)


def _fault(words: str) -> InputFault:
    """The validator's message with the field first, in the format of the other routes."""
    at = _AT.search(words)
    path = at["path"] if at else ""
    text = words[: at.start()] if at else words
    missing = _MISSING.search(text)
    if missing:
        path = f"{path}.{missing['name']}" if path else missing["name"]
    return InputFault(f"{path or 'body'}: {text}.", path or None)


def _typed(
    endpoint: _Endpoint,
    signature: inspect.Signature,
    body: inspect.Parameter | None,
    returns: type[msgspec.Struct] | None,
    status: int,
) -> _Endpoint:
    """The endpoint as FastAPI calls it: with the request and its path and query parameters."""
    optional = body is not None and not any(field.required for field in msgspec.structs.fields(body.annotation))

    @wraps(endpoint)
    async def typed(*, request: Request, **arguments: Any) -> Response:
        if body is not None:
            raw = await request.body()
            arguments[body.name] = body.annotation() if optional and not raw else decode(raw, body.annotation)
        if "request" in signature.parameters:
            arguments["request"] = request
        answer = await endpoint(**arguments)
        if returns is None:
            return answer if isinstance(answer, Response) else Response(status_code=status)
        return Response(encoded(answer), status_code=status, media_type=_JSON)

    others = [
        p.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for p in signature.parameters.values()
        if p is not body and p.name != "request"
    ]
    request_parameter = inspect.Parameter("request", inspect.Parameter.KEYWORD_ONLY, annotation=Request)
    typed.__signature__ = signature.replace(  # type: ignore[attr-defined]  # read by inspect.signature
        parameters=[request_parameter, *others], return_annotation=Response
    )
    return typed


def _is_struct(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, msgspec.Struct)
