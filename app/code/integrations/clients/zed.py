"""Zed: https://zed.dev/docs/ai/llm-providers (OpenAI API compatible)."""

from pathlib import Path

from app.code.integrations.json_settings import Settings, undo_settings, with_settings
from app.code.integrations.types import Endpoint, FileEdit, Integration, read_config


def _edits(home: Path, endpoint: Endpoint) -> list[FileEdit]:
    model = {
        "name": endpoint.model,
        "display_name": f"{endpoint.model} (Tessera)",
        "max_tokens": endpoint.context,
        "max_output_tokens": endpoint.output_limit,
        "capabilities": {"tools": True, "images": False, "parallel_tool_calls": True, "prompt_cache_key": False},
    }
    base = ("language_models", "openai_compatible", "Tessera")
    settings: Settings = {(*base, "api_url"): endpoint.openai_url, (*base, "available_models"): [model]}
    path = home / ".config" / "zed" / "settings.json"
    before = read_config(path)
    return [FileEdit(path=path, before=before, after=with_settings(path, before, settings))]


def _steps(endpoint: Endpoint) -> str:
    return f"Zed asks once for the key of the provider Tessera: enter {endpoint.key!r} (or set TESSERA_API_KEY)."


INTEGRATION = Integration(
    name="zed",
    title="Zed",
    kind="editor",
    install="https://zed.dev/download",
    edits=_edits,
    undo=undo_settings,
    steps=_steps,
)
