"""Files in OpenAI requests: text is read, all other types are refused, URLs are never opened."""

import base64
from collections.abc import Callable
from typing import Any, Final, TypeVar

from engine.chat.types import ImagePart, TextPart
from engine.core.errors import InputFault

P = TypeVar("P")
# The size of a text that is too long for any context.
MAX_FILE_BYTES: Final = 8 << 20


class UnreadablePart(InputFault):
    """A part of a message that cannot be read here, such as a PDF file or a web address."""


def part_or_text(read: Callable[[], P], param: str, *, required: bool) -> P | TextPart:
    """The part that `read` returns. If it cannot be read and is not required, a text in its place.

    A client that repeats the conversation could never remove a part of an earlier message or of a tool's result.
    Raises: UnreadablePart; InputFault.
    """
    try:
        return read()
    except UnreadablePart:
        if required:
            raise
        return TextPart(text="[part that cannot be read here]", replaces=param)


def decoded_base64(data: str, param: str) -> bytes:
    """The bytes of base64, which may be wrapped into lines as shells and mail programs write it.

    Raises: InputFault.
    """
    try:
        return base64.b64decode("".join(data.split()), validate=True)
    except ValueError as error:  # also for characters outside ASCII
        raise InputFault(f"{param} is not valid base64: {error}.", param) from None


def attached_text(file: object, param: str) -> TextPart:
    """The text of a file that the request contains as `file_data`, after its name.

    Raises: UnreadablePart: it is given by id or URL, or it is not text. InputFault: it is broken or too large.
    """
    fields: dict[str, Any] = file if isinstance(file, dict) else {}
    data = fields.get("file_data")
    if not isinstance(data, str):
        field = next((name for name in ("file_id", "file_url") if fields.get(name)), "file_data")
        raise UnreadablePart(
            f"{param}.{field}: send the file itself as file_data (base64); the server opens no addresses.",
            f"{param}.{field}",
        )
    header, _, payload = data.rpartition(",")
    if len(payload) > MAX_FILE_BYTES * 4 // 3:
        raise InputFault(f"{param}.file_data is larger than {MAX_FILE_BYTES} bytes.", f"{param}.file_data")
    raw = decoded_base64(payload, f"{param}.file_data")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        kind = header.removeprefix("data:").partition(";")[0] or "this file"
        raise UnreadablePart(
            f"{param}.file_data: only files of plain text (UTF-8) are read here, not {kind}; send its text.",
            f"{param}.file_data",
        ) from None
    name = fields.get("filename")
    return TextPart(text=f"{name}:\n{text}\n" if isinstance(name, str) and name else f"{text}\n")


# Images are decoded in the runner; this limits their size. A 40-megapixel PNG is about this large.
MAX_IMAGE_BYTES: Final = 32 << 20


def decode_data_url(url: object, param: str) -> ImagePart:
    """An image from a `data:` URL. Files and web addresses are never opened for a client."""
    if not isinstance(url, str) or not url.startswith("data:"):
        raise UnreadablePart(
            f"{param}: only data: URLs are accepted; the server opens no files or addresses.", param
        )
    header, _, payload = url.partition(",")
    media_type, _, encoding = header.removeprefix("data:").rpartition(";")
    if encoding != "base64" or not media_type.startswith("image/"):
        raise UnreadablePart(f"{param} must be data:image/...;base64,...", param)
    if len(payload) > MAX_IMAGE_BYTES * 4 // 3:
        raise InputFault(f"{param} is larger than {MAX_IMAGE_BYTES} bytes.", param)
    return ImagePart(data=decoded_base64(payload, param), media_type=media_type)
