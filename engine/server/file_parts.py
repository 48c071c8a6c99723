"""Files inside a request, in the words of OpenAI's protocols: text is read, nothing else is opened."""

import base64
import binascii
from typing import Any, Final

from engine.chat.types import TextPart
from engine.core.errors import InputFault

# As long as a text that no context holds any more.
MAX_FILE_BYTES: Final = 8 << 20


def attached_text(file: object, param: str) -> TextPart:
    """The text of a file that is in the request as `file_data`, behind its name.

    Raises: InputFault: it is named by an id or an address, or it is no text.
    """
    found: dict[str, Any] = file if isinstance(file, dict) else {}
    data = found.get("file_data")
    if not isinstance(data, str):
        given = next((name for name in ("file_id", "file_url") if found.get(name)), "file_data")
        raise InputFault(
            f"{param}.{given}: send the file itself as file_data (base64); the server opens no addresses.",
            f"{param}.{given}",
        )
    header, _, payload = data.rpartition(",")
    if len(payload) > MAX_FILE_BYTES * 4 // 3:
        raise InputFault(f"{param}.file_data is larger than {MAX_FILE_BYTES} bytes.", f"{param}.file_data")
    try:
        text = base64.b64decode(payload, validate=True).decode("utf-8")
    except binascii.Error as error:
        raise InputFault(f"{param}.file_data is not valid base64: {error}.", f"{param}.file_data") from None
    except UnicodeDecodeError:
        kind = header.removeprefix("data:").partition(";")[0] or "this file"
        raise InputFault(
            f"{param}.file_data: only files of plain text (UTF-8) are read here, not {kind}; send its text.",
            f"{param}.file_data",
        ) from None
    name = found.get("filename")
    return TextPart(text=f"{name}:\n{text}\n" if isinstance(name, str) and name else f"{text}\n")
