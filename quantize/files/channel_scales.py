"""The channel scales of a smoothed file as a metadata value; LoRA adapters of its source need the same scaling."""

import base64
import binascii
import zlib
from array import array
from collections.abc import Mapping, Sequence

import msgspec

from devices.msgspec_lock import learned

KEY = "tessera.smoothing"
_MOST_BYTES = 64 << 20  # about a hundred times the size for a model with 70 billion weights


class ChannelScales(msgspec.Struct, frozen=True, kw_only=True):
    """Exponents of 2 by weight, one signed byte per channel: columns were multiplied, rows divided."""

    columns: dict[str, bytes]
    rows: dict[str, bytes]

    @classmethod
    def of(cls, columns: Mapping[str, Sequence[int]], rows: Mapping[str, Sequence[int]]) -> "ChannelScales":
        """Create from exponents as numbers."""
        return cls(
            columns={name: _bytes(some) for name, some in columns.items()},
            rows={name: _bytes(some) for name, some in rows.items()},
        )

    def encode(self) -> str:
        """Text for a metadata value. Weights with the same input have the same bytes, which compress well."""
        return base64.b64encode(zlib.compress(msgspec.json.encode(self), 9)).decode()


def read_channel_scales(text: str) -> ChannelScales | None:
    """Decode the metadata value; None if it is not valid."""
    try:
        unpacked = zlib.decompressobj()
        raw = unpacked.decompress(base64.b64decode(text, validate=True), _MOST_BYTES)
        return msgspec.json.decode(raw, type=learned(ChannelScales)) if unpacked.eof else None
    except (binascii.Error, zlib.error, ValueError, RecursionError):
        return None


def _bytes(exponents: Sequence[int]) -> bytes:
    return array("b", exponents).tobytes()
