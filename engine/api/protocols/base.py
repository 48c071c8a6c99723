"""Base of the answers that are read here."""

import msgspec


class ReadAnswer(msgspec.Struct):
    """Read here, never written: answers have more fields than these."""
