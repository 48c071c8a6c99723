"""Reads an untrusted JSON file of a model's folder."""

import json
from pathlib import Path
from typing import Any

from quantize.errors import BadFile
from quantize.files.byte_source import FileSource


def read_json(path: Path, most_bytes: int) -> dict[str, Any]:
    """Read a JSON object. Raises: Unreadable. BadFile: it is larger than `most_bytes`, or invalid."""
    with FileSource(path) as source:
        if source.size > most_bytes:
            raise BadFile(str(path), f"{source.size} bytes of JSON; at most {most_bytes} are read")
        raw = source.read_at(0, source.size)
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise BadFile(str(path), f"no valid JSON: {str(error)[:200]}") from error
    if not isinstance(value, dict):
        raise BadFile(str(path), "not a JSON object")
    return value
