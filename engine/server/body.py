"""Request bodies: parsed once, checked strictly, errors name the field."""

from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import Request

from engine.errors import InputFault


class Body(BaseModel):
    """Base of request models: no silent conversion, NaN refused, unknown fields kept so they can be reported."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, protected_namespaces=())

    def ignored(self) -> list[str]:
        """Names of fields that this server does not know."""
        return sorted(self.model_extra or {})


M = TypeVar("M", bound=BaseModel)


async def parse(request: Request, model: type[M]) -> M:
    """The request's body as `model`.

    Raises: InputFault: not JSON, too deeply nested, or a field out of range; `param` names it.
    """
    raw = await request.body()
    try:
        return model.model_validate_json(raw)
    except ValidationError as error:
        raise fault(error) from None
    except RecursionError:
        raise InputFault("The JSON is nested too deeply.") from None


async def parse_or(request: Request, model: type[M]) -> M:
    """The request's body as `model`, or its defaults when there is none. Raises: as `parse`."""
    if not await request.body():
        return model()
    return await parse(request, model)


def fault(error: ValidationError) -> InputFault:
    """The first problem of a validation error, with the field it is in."""
    first = error.errors(include_url=False)[0]
    if first["type"] == "json_invalid":
        return InputFault(f"The body is not valid JSON: {first['msg'].removeprefix('Invalid JSON: ')}.")
    param = _path(first["loc"])
    given: Any = first.get("input")
    shown = "" if isinstance(given, dict | list) else f" (got {given!r:.60})"
    return InputFault(f"{param or 'body'}: {first['msg']}{shown}.", param or None)


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not any(mark in part for mark in "[(-"):  # names of union members are no field names
            path += f".{part}" if path else part
    return path


def openapi_body(model: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    """The `openapi_extra` of a route whose body is parsed by `parse`."""
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": _inline(model)}}}}


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
