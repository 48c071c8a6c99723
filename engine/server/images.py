"""Pictures of a request, which come with it or not at all."""

import base64
import binascii
from typing import Final

from engine.chat.types import ImagePart
from engine.core.errors import InputFault

# Pictures are decoded in the runner; this bounds what reaches it. A 40-megapixel PNG is about this large.
MAX_IMAGE_BYTES: Final = 32 << 20


def decode_data_url(url: object, param: str) -> ImagePart:
    """A picture from a `data:` URL. Files and web addresses are never opened on a client's behalf."""
    if not isinstance(url, str) or not url.startswith("data:"):
        raise InputFault(f"{param}: only data: URLs are accepted; the server opens no files or addresses.", param)
    header, _, payload = url.partition(",")
    media_type, _, encoding = header.removeprefix("data:").rpartition(";")
    if encoding != "base64" or not media_type.startswith("image/"):
        raise InputFault(f"{param} must be data:image/...;base64,...", param)
    if len(payload) > MAX_IMAGE_BYTES * 4 // 3:
        raise InputFault(f"{param} is larger than {MAX_IMAGE_BYTES} bytes.", param)
    try:
        return ImagePart(data=base64.b64decode(payload, validate=True), media_type=media_type)
    except binascii.Error as error:
        raise InputFault(f"{param} is not valid base64: {error}.", param) from None
