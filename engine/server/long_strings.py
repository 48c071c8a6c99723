"""Large bodies parsed in short steps: long strings are cut out before the JSON is parsed and put back afterwards.

A parser holds the interpreter until it is done: 60 MB kept everybody else waiting for .3 s (docs/log.md, abuse).
"""

import re
import secrets
from collections.abc import Iterator
from typing import Any, Final, TypeVar

from pydantic import BaseModel
from pydantic_core import from_json

from engine.core.errors import InputFault
from engine.server.json_bounds import Counter, chunks

# What is left is parsed in one step of some 40 ms at most: a million tokens of text in many messages are 5 MB.
MAX_SHORT_BYTES: Final = 16 << 20
_CHUNK_BYTES: Final = 16 << 10

M = TypeVar("M", bound=BaseModel)


class Cut:
    """A JSON text without its long strings. `short` is what is left, with a mark where something was cut out."""

    def __init__(self, raw: bytes | bytearray) -> None:
        """Safe from any thread, in steps of some microseconds.

        Raises: InputFault: more values than any request needs, or a string that is none.
        """
        # Nobody who writes a body knows it, so what reads like a mark is one.
        self._secret = secrets.token_hex(16)
        self._mark = re.compile(rf"<{self._secret}:(\d+)>")
        self._texts: list[list[str]] = []
        self.short = b"".join(self._left(raw))
        if len(self.short) > MAX_SHORT_BYTES:
            most = f"{MAX_SHORT_BYTES >> 20} MiB"
            raise InputFault(f"The JSON has more than {most} beside its long strings; no request needs so much.")

    def _left(self, raw: bytes | bytearray) -> Iterator[bytes]:
        counter = Counter()
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
                raise InputFault(f"The body is not valid JSON: {str(error).partition(' at line ')[0]}.") from None

    @property
    def any(self) -> bool:
        """Whether something was cut out."""
        return bool(self._texts)

    def put_back(self, body: M) -> M:
        """The body with its long strings, in place. Safe from any thread.

        Raises: ValidationError: a string that is too long for its field; InputFault: a name that is too long.
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
            if restored is not None:  # checked again, for its length is only known now
                type(model).__pydantic_validator__.validate_assignment(model, name, restored)

    def _value(self, value: Any) -> Any:
        """What takes its place; None where nothing was cut out of it, or it was fixed in place."""
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
