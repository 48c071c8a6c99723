"""Reads the small files of a Hugging Face folder, with size limits and never outside the folder."""

from pathlib import Path
from typing import Any, Final

from quantize.files import json_file
from quantize.files.byte_source import FileSource
from quantize.files.safetensors_file import safe_member

MAX_JSON_BYTES: Final = 4 << 20
MAX_TEMPLATE_BYTES: Final = 1 << 20


def read_json(path: Path) -> dict[str, Any]:
    """Read one of the folder's JSON objects. Raises: BadFile."""
    return json_file.read_json(path, MAX_JSON_BYTES)


def chat_template(folder: Path, root: Path) -> str | None:
    """Return the chat template in a Hugging Face folder, or None."""
    own = folder / "chat_template.jinja"
    if own.exists():
        with FileSource(safe_member(folder, own.name, root)) as source:
            return source.read_at(0, min(source.size, MAX_TEMPLATE_BYTES)).decode(errors="replace")
    template = tokenizer_config(folder, root).get("chat_template")
    if isinstance(template, list):  # with several named templates, use the default one
        templates = {t.get("name"): t.get("template") for t in template if isinstance(t, dict)}
        template = templates.get("default")
    return text(template)


def text(value: object) -> str | None:
    """Return a non-empty string, else None."""
    return value if isinstance(value, str) and value else None


def tokenizer_config(folder: Path, root: Path) -> dict[str, Any]:
    """Return the tokenizer's settings; empty if there is no such file. Raises: BadFile."""
    path = folder / "tokenizer_config.json"
    return read_json(safe_member(folder, path.name, root)) if path.exists() else {}
