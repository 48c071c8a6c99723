"""OpenCode: https://opencode.ai/docs/providers (custom provider, OpenAI-compatible)."""

import json
from pathlib import Path
from typing import Any

from app.code.integrations.json_settings import Settings, undo_settings, with_settings
from app.code.integrations.types import Endpoint, FileEdit, Integration, Launch, read_config


def _provider(endpoint: Endpoint) -> dict[str, Any]:
    limit = {"context": endpoint.context, "output": endpoint.output_limit}
    return {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Tessera",
        "options": {"baseURL": endpoint.openai_url, "apiKey": endpoint.key},
        "models": {endpoint.model: {"name": endpoint.model, "limit": limit}},
    }


def _edits(home: Path, endpoint: Endpoint) -> list[FileEdit]:
    path = home / ".config" / "opencode" / "opencode.json"
    before = read_config(path)
    settings: Settings = {
        **({("$schema",): "https://opencode.ai/config.json"} if before is None else {}),
        ("provider", "tessera"): _provider(endpoint),
        ("model",): f"tessera/{endpoint.model}",
    }
    return [FileEdit(path=path, before=before, after=with_settings(path, before, settings))]


def _launch(endpoint: Endpoint, folder: Path) -> Launch:
    config = {
        "$schema": "https://opencode.ai/config.json",
        "provider": {"tessera": _provider(endpoint)},
        "model": f"tessera/{endpoint.model}",
        "small_model": f"tessera/{endpoint.model}",
        "share": "disabled",
        "autoupdate": False,
    }
    name = "opencode.json"
    return Launch(
        argv=("opencode",),
        env={"OPENCODE_CONFIG": str(folder / name)},
        files={name: json.dumps(config, indent=2) + "\n"},
    )


INTEGRATION = Integration(
    name="opencode",
    title="OpenCode",
    kind="agent",
    install="npm install -g opencode-ai",
    edits=_edits,
    undo=undo_settings,
    launch=_launch,
)
