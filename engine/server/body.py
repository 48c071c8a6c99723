"""Parses and validates request bodies; errors name the field."""

import asyncio
import codecs
import re
import secrets
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Annotated, Any, ClassVar, Final, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import from_json
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import ClientDisconnect, Request

from engine.core.errors import Cancelled, InputFault
from engine.core.json_bounds import JsonSizeCounter, chunks

# Large bodies are parsed in short steps: long strings are cut out first and restored afterwards. A parser holds the
# GIL until it ends: 60 MB blocked all other requests for 0.3 s.

# The rest is parsed in one step of at most about 40 ms. A million tokens of text in many messages are 5 MB.
MAX_SHORT_BYTES: Final = 16 << 20
_CHUNK_BYTES: Final = 16 << 10
M = TypeVar("M", bound=BaseModel)


class ShortenedJson:
    """A JSON text without its long strings. `short` is the rest, with a mark in place of each removed string."""

    def __init__(self, raw: bytes | bytearray) -> None:
        """Can run in any thread; yields to others every few microseconds.

        Raises: InputFault: more values than any request needs, or an invalid string.
        """
        # The client cannot know this secret, so text that looks like a mark is a mark.
        self._secret = secrets.token_hex(16)
        self._mark = re.compile(rf"<{self._secret}:(\d+)>")
        self._texts: list[list[str]] = []
        self.short = b"".join(self._left(raw))
        if len(self.short) > MAX_SHORT_BYTES:
            most = f"{MAX_SHORT_BYTES >> 20} MiB"
            raise InputFault(f"The JSON has more than {most} outside its long strings; no request needs so much.")

    def _left(self, raw: bytes | bytearray) -> Iterator[bytes]:
        counter = JsonSizeCounter(MAX_OBJECTS, MAX_VALUES)
        cutting = False
        for chunk in chunks(raw, _CHUNK_BYTES):
            inside = counter.inside
            if counter.count(chunk) or not inside:
                cutting = False
                yield chunk
                continue
            if not cutting:
                cutting = True
                yield f"<{self._secret}:{len(self._texts)}>".encode()
                self._texts.append([])
            try:
                self._texts[-1].append(from_json(b'"%b"' % chunk))
            except ValueError as error:
                raise _not_json(str(error).partition(" at line ")[0]) from None

    @property
    def any(self) -> bool:
        """Whether any string was cut out."""
        return bool(self._texts)

    def put_back(self, body: M) -> M:
        """Restore the long strings in the body, in place. Can run in any thread.

        Raises:
            ValidationError: A string is too long for its field.
            InputFault: A name is too long.
        """
        self._model(body)
        return body

    def _model(self, model: BaseModel) -> None:
        extra = model.model_extra
        if extra:
            self._items(extra)
        for name in type(model).model_fields:
            value = getattr(model, name)
            restored = self._value(value)
            if restored is not None:  # validate again now that its length is known
                type(model).__pydantic_validator__.validate_assignment(model, name, restored)

    def _value(self, value: Any) -> Any:
        """The replacement for `value`, or None if nothing was cut out of it or it was restored in place."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, BaseModel):
            self._model(value)
        elif isinstance(value, dict):
            return value if self._items(value) else None
        elif isinstance(value, list):
            changed = False
            for index, inner in enumerate(value):
                restored = self._value(inner)
                if restored is not None:
                    value[index] = restored
                    changed = True
            return value if changed else None
        return None

    def _items(self, items: dict[str, Any]) -> bool:
        changed = False
        for key, inner in items.items():
            if self._secret in key:
                raise InputFault(f"A name in the JSON is longer than {_CHUNK_BYTES} bytes.")
            restored = self._value(inner)
            if restored is not None:
                items[key] = restored
                changed = True
        return changed

    def _text(self, value: str) -> str | None:
        if self._secret not in value:
            return None
        parts = self._mark.split(value)  # text, number, text, ...
        whole: list[str] = []
        for index, part in enumerate(parts):
            if index % 2:
                whole += self._texts[int(part)]
            else:
                whole.append(part)
        return "".join(whole)


# Metadata that clients attach to stored objects. Source: OpenAI's reference.
Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
]


# A text for which null means the same as no text, as in programs written in C++ or Go.
OptionalText = Annotated[str, BeforeValidator(lambda text: "" if text is None else text)]


class Body(BaseModel):
    """Base of request models: strict types, no NaN; unknown fields are collected so that they can be reported."""

    model_config = ConfigDict(
        strict=True, extra="allow", allow_inf_nan=False, protected_namespaces=(), defer_build=True
    )

    # `no_effect`: declared fields that are ignored. `shapes`: known keys of fields with free-form JSON.
    no_effect: ClassVar[frozenset[str]] = frozenset()
    shapes: ClassVar[Mapping[str, Any]] = {}

    def ignored(self) -> list[str]:
        """Names of ignored fields, including nested ones: `stream_options.x`, `messages[0].y`."""
        names = sorted(name for name, value in (self.model_extra or {}).items() if value is not None)
        for name in type(self).model_fields:
            value = getattr(self, name)
            if name in self.no_effect:
                names += [name] if value is not None else []
            elif name in self.shapes:
                names += unread(value, self.shapes[name], name)
            else:
                names += _inside(value, name)
        return names


def _inside(value: object, path: str) -> list[str]:
    if isinstance(value, Body):
        return [f"{path}.{inner}" for inner in value.ignored()]
    if isinstance(value, list) and any(isinstance(item, Body) for item in value):
        return [name for index, item in enumerate(value) for name in _inside(item, f"{path}[{index}]")]
    return []


# Bodies larger than this are parsed in short steps. Smaller ones take a few milliseconds.
LARGE_BYTES: Final = 1 << 20

_KINDS = frozenset({"str", "int", "float", "bool", "dict", "list"})


async def parse(request: Request, model: type[M]) -> M:
    """Parse the request's body as `model`.

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


# Parse one large body at a time, so that several do not block other requests longer than one.
_large = asyncio.Semaphore(1)


async def _parse_large(raw: bytes | bytearray, model: type[M]) -> M:
    async with _large:
        cut = await asyncio.to_thread(ShortenedJson, raw)
        body = model.model_validate_json(cut.short)
        return await asyncio.to_thread(cut.put_back, body) if cut.any else body


async def whole(request: Request) -> bytes | bytearray:
    """All bytes of the body, without a byte order mark.

    Raises: Cancelled: the client disconnected before it had sent them; InputFault: it is UTF-16.
    """
    buffered: bytes | bytearray | None = getattr(request.state, "whole_body", None)
    if buffered is not None:
        return buffered
    raw = bytearray()
    try:
        async for chunk in request.stream():  # joining the chunks at the end would copy them all in one step
            raw += chunk
    except ClientDisconnect:
        raise Cancelled("the client closed the connection") from None
    if raw.startswith(codecs.BOM_UTF8):  # PowerShell and editors on Windows write it
        del raw[: len(codecs.BOM_UTF8)]
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise InputFault("The body is UTF-16 text. Send JSON as UTF-8.")
    request.state.whole_body = raw
    return raw


async def form_of(request: Request, max_fields: int) -> FormData:
    """A form with at most one file; close it after use, because a large file uses a descriptor.

    Raises: InputFault: it cannot be read; Cancelled: the client disconnected before it had sent it.
    """
    import_module("python_multipart")  # without it Starlette's assertion would hide which part is missing
    try:
        return await request.form(max_files=1, max_fields=max_fields)
    except (MultiPartException, HTTPException) as error:
        why = error.message if isinstance(error, MultiPartException) else error.detail
        raise InputFault(f"The form cannot be read: {str(why).rstrip('.')}.", "file") from None
    except ClientDisconnect:
        raise Cancelled("the client closed the connection") from None


async def parse_or(request: Request, model: type[M]) -> M:
    """Parse the request's body as `model`; an empty body gives the defaults. Raises: as `parse`."""
    if not await whole(request):
        return model()
    return await parse(request, model)


# The parser's words for what clients really send, and clearer ones.
_JSON_PROBLEMS: Final = {
    "invalid unicode code point": "it is not UTF-8 text",
    **dict.fromkeys(
        ("unexpected end of hex escape", "lone leading surrogate in hex escape"),
        "an escape such as \\ud83d is half of a character, as in a text cut inside an emoji",
    ),
}


def _not_json(problem: str) -> InputFault:
    """The error of a body that is not JSON, from the parser's message, with or without its position."""
    words, at, place = problem.partition(" at line ")
    return InputFault(f"The body is not valid JSON: {_JSON_PROBLEMS.get(words, words)}{at}{place}.")


_SHOWN: Final = 60
# Fields of which one message names the problem. A client with more wrong fields sees the rest at its next try.
_MAX_FIELDS: Final = 3


def fault(error: ValidationError) -> InputFault:
    """The problems of a validation error, one for each of the first fields; `param` is the first field."""
    problems = error.errors(include_url=False)
    if problems[0]["type"] == "json_invalid":
        return _not_json(problems[0]["msg"].removeprefix("Invalid JSON: "))
    fields: dict[Any, list[Any]] = {}
    for problem in problems:
        fields.setdefault(problem["loc"][:1], []).append(problem)
    shown = [_closest(field) for field in list(fields.values())[:_MAX_FIELDS]]
    return InputFault(" ".join(map(_problem_text, shown)), _path(shown[0]["loc"]) or None)


def _problem_text(problem: Any) -> str:
    value: Any = problem.get("input")
    value = value[:_SHOWN] if isinstance(value, str) else value
    shown = "" if isinstance(value, dict | list) else f" (got {value!r:.{_SHOWN}})"
    return f"{_path(problem['loc']) or 'body'}: {problem['msg']}{shown}."


def _closest(field: list[Any]) -> Any:
    """The first problem of a field; for a union field, that of the type that was sent, else of the closest one.

    The closest type has the fewest problems; among equals, those that are deepest in the value.
    """
    members: dict[Any, list[Any]] = {}
    for problem in field:
        members.setdefault(problem["loc"][1:2], []).append(problem)
    if len(members) == 1:
        return field[0]
    sent = type(field[0].get("input")).__name__

    def distance(problems: list[Any]) -> tuple[bool, int, int]:
        first = problems[0]
        is_of_that_kind = any(isinstance(part, str) and part.startswith(sent) for part in first["loc"][1:])
        return not is_of_that_kind, len(problems), -len(first["loc"])

    return min(members.values(), key=distance)[0]


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif path and (part in _KINDS or part[:1].isupper()):
            continue  # the name of a member type of a union
        elif not any(mark in part for mark in "[(-"):
            path += f".{part}" if path else part
    return path


# Bodies whose schemas are not written yet: the target dict and the model.
_unwritten: list[tuple[dict[str, Any], type[BaseModel]]] = []


def openapi_body(model: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    """The `openapi_extra` of a route whose body is parsed by `parse`; `write_schemas` fills in the schema later."""
    content: dict[str, Any] = {}
    _unwritten.append((content, model))
    return {"requestBody": {"required": required, "content": {"application/json": content}}}


def write_schemas() -> None:
    """Write the schemas of all bodies for the OpenAPI page. Takes 0.2 s, so it runs only on demand."""
    while _unwritten:
        content, model = _unwritten.pop()
        content["schema"] = _inline(model)


def _inline(model: type[BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema()
    definitions = schema.pop("$defs", {})

    def resolve(node: Any, depth: int = 0) -> Any:
        if isinstance(node, dict):
            reference = node.get("$ref")
            if isinstance(reference, str) and depth < 8:
                return resolve(definitions.get(reference.rsplit("/", 1)[-1], {}), depth + 1)
            return {k: resolve(v, depth) for k, v in node.items()}
        if isinstance(node, list):
            return [resolve(v, depth) for v in node]
        return node

    resolved = resolve(schema)
    assert isinstance(resolved, dict)
    return resolved


_INDEX: Final = re.compile(r"\[\d+\]")
# Maximum number of names in the header; some clients limit its length.
MOST_NAMES: Final = 40


def ignored_header(names: list[str]) -> dict[str, str]:
    """The header that lists ignored fields of a request. Clients chose some of these names."""
    if not names:
        return {}
    names = _grouped(names)
    shown = (name[:64].encode("ascii", "replace").decode() for name in names[:MOST_NAMES])
    listed = ", ".join("".join(c if c.isprintable() else "?" for c in name) for name in shown)
    more = f", and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return {"x-tessera-ignored": listed + more}


def _grouped(names: list[str]) -> list[str]:
    """Merge repeated names into one pattern: `messages[].content[].cache_control`."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(_INDEX.sub("[]", name), []).append(name)
    return [members[0] if len(members) == 1 else pattern for pattern, members in groups.items()]


# Known keys of free-form JSON objects. Other keys are reported as ignored. A shape is a dict from each known key to
# the shape of its value. `ANY` accepts everything (a JSON schema, the arguments of a call). `ByType` selects a
# shape by the object's `type`. A list has the shape of its items.


class ByType(dict[str, Any]):
    """Shapes by the value of `type`; the key "" is for objects with an unknown type."""


ANY: Final = None


def unread(value: object, shape: Any, path: str) -> list[str]:
    """Paths of the keys in `value` that are not in `shape`. Null values are not reported."""
    if isinstance(value, list):
        return [name for index, item in enumerate(value) for name in unread(item, shape, f"{path}[{index}]")]
    if not isinstance(value, dict) or shape is ANY:
        return []
    if isinstance(shape, ByType):
        shape = shape.get(str(value.get("type")), shape.get("", ANY))
        if shape is ANY:
            return []
    names: list[str] = []
    for key, inner in value.items():
        where = f"{path}.{key}"
        if key not in shape:
            names += [where] if inner is not None else []
        else:
            names += unread(inner, shape[key], where)
    return names


# Objects cost the most: messages, their parts, tools and the nodes of their schemas. Validating and translating
# this many takes about 100 ms, which blocks all other requests. Measured: log-archive.md, abuse.
MAX_OBJECTS: Final = 30_000
# Numbers and short strings: enough for a prompt of 250,000 token ids.
MAX_VALUES: Final = 300_000
# Smaller bodies cannot have that many values.
UNCOUNTED_BYTES: Final = 64 << 10


def check_counts(raw: bytes | bytearray) -> None:
    """Raises: InputFault: more values, or objects, than any request needs. Can run in any thread; yields often."""
    JsonSizeCounter(MAX_OBJECTS, MAX_VALUES).count_all(raw)
