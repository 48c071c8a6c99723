"""Reads format and size from an image's first bytes, before any native code decodes it.

The decoder in libmtmd also accepts audio and, in some builds, starts ffmpeg for unknown formats; only the formats
below reach it. A file of a few kilobytes can claim a billion pixels, so the claimed size is checked first.
"""

import struct
from typing import Final

# The largest phone sensors; decoded as RGB that is 150 MB, in the child. Vision models use far fewer pixels.
MAX_PIXELS: Final = 50_000_000
_PNG: Final = b"\x89PNG\r\n\x1a\n"
_JPEG: Final = b"\xff\xd8\xff"
_GIF: Final = (b"GIF87a", b"GIF89a")
_BMP_HEADER_BYTES: Final = 26
# Start-of-frame markers of JPEG; C4, C8 and CC have other meanings.
_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_BARE: Final = frozenset({0x01, *range(0xD0, 0xD9)})


class ImageRefused(ValueError):
    """The image cannot be decoded; the message says why."""


def check_image(data: bytes) -> tuple[int, int]:
    """Return the width and height in pixels that the header claims.

    Raises: ImageRefused: another format, a broken header, or more than MAX_PIXELS.
    """
    try:
        width, height = _size(data)
    except (struct.error, IndexError):
        raise ImageRefused("the image ends within its header") from None
    if width <= 0 or height <= 0:
        raise ImageRefused(f"the image claims a size of {width} x {height} pixels")
    if width * height > MAX_PIXELS:
        raise ImageRefused(f"the image has {width} x {height} pixels; at most {MAX_PIXELS} are decoded")
    return width, height


def _size(data: bytes) -> tuple[int, int]:
    if data.startswith(_PNG):
        width, height = struct.unpack_from(">II", data, 16)
        return width, height
    if data.startswith(_JPEG):
        return _jpeg_size(data)
    if data.startswith(_GIF):
        width, height = struct.unpack_from("<HH", data, 6)
        return width, height
    if data.startswith(b"BM") and len(data) >= _BMP_HEADER_BYTES:
        width, height = struct.unpack_from("<ii", data, 18)
        return width, abs(height)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        raise ImageRefused("WebP images cannot be decoded here; send PNG or JPEG")
    raise ImageRefused("this is not a PNG, JPEG, GIF or BMP image")


def _jpeg_size(data: bytes) -> tuple[int, int]:
    """Return the size from the first frame header; segments before it are skipped."""
    at = 2
    while True:
        if data[at] != 0xFF:
            raise ImageRefused("the JPEG image is broken")
        mark = data[at + 1]
        if mark == 0xFF:
            at += 1
        elif mark in _BARE:
            at += 2
        elif mark in _FRAMES:
            height, width = struct.unpack_from(">HH", data, at + 5)
            return width, height
        else:
            at += 2 + int(struct.unpack_from(">H", data, at + 2)[0])
