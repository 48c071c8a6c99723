"""Codex CLI: https://github.com/openai/codex/blob/main/docs/config.md (model providers, profiles)."""

import json
import re
from pathlib import Path

from app.code.integrations.text_block import undo_block, with_block, without_block
from app.code.integrations.types import Endpoint, FileEdit, Integration, Launch, NeedsHand, read_config

_KEY_NAME = "TESSERA_API_KEY"
_OWN_TABLE = re.compile(r"^\s*\[(?:model_providers|profiles)\.\"?tessera\"?\]", re.MULTILINE)


def _edits(home: Path, endpoint: Endpoint) -> list[FileEdit]:
    path = home / ".codex" / "config.toml"
    before = read_config(path)
    # Tables may stand at the end of the file whatever it holds; JSON strings are TOML strings.
    lines = [
        "[model_providers.tessera]",
        'name = "Tessera"',
        f"base_url = {json.dumps(endpoint.openai_url)}",
        'wire_api = "responses"',
        f"experimental_bearer_token = {json.dumps(endpoint.key)}",
        "",
        "[profiles.tessera]",
        'model_provider = "tessera"',
        f"model = {json.dumps(endpoint.model)}",
        f"model_context_window = {endpoint.context}",
    ]
    text = without_block(before or "")
    if _OWN_TABLE.search(text):
        raise NeedsHand(path, "it has a provider or profile named tessera already", "\n".join(lines))
    return [FileEdit(path=path, before=before, after=with_block(text, lines))]


def _launch(endpoint: Endpoint, folder: Path) -> Launch:
    del folder
    # Other users see what is on a command line, but not the environment.
    provider = {"name": "Tessera", "base_url": endpoint.openai_url, "wire_api": "responses", "env_key": _KEY_NAME}
    table = "{" + ", ".join(f"{key} = {json.dumps(value)}" for key, value in provider.items()) + "}"
    options = (
        f"model_providers.tessera={table}",
        'model_provider="tessera"',
        f"model_context_window={endpoint.context}",
    )
    argv = ("codex", "-m", endpoint.model, *(part for option in options for part in ("-c", option)))
    return Launch(argv=argv, env={_KEY_NAME: endpoint.key})


def _steps(endpoint: Endpoint) -> str:
    del endpoint
    return "Start it with: codex --profile tessera"


INTEGRATION = Integration(
    name="codex",
    title="Codex CLI",
    kind="agent",
    install="npm install -g @openai/codex",
    edits=_edits,
    undo=undo_block,
    launch=_launch,
    steps=_steps,
)
