"""llama.vscode: https://github.com/ggml-org/llama.vscode (its settings in VS Code's settings.json)."""

import sys
from pathlib import Path

from app.code.integrations.json_settings import Settings, undo_settings, with_settings
from app.code.integrations.types import Endpoint, FileEdit, Integration, read_config


def vscode_settings(home: Path) -> Path:
    """Where VS Code keeps a user's settings."""
    if sys.platform == "win32":
        return home / "AppData" / "Roaming" / "Code" / "User" / "settings.json"
    if sys.platform == "darwin":
        return home / "Library" / "Application Support" / "Code" / "User" / "settings.json"
    return home / ".config" / "Code" / "User" / "settings.json"


def _edits(home: Path, endpoint: Endpoint) -> list[FileEdit]:
    settings: Settings = {
        ("llama-vscode.endpoint",): endpoint.url,
        ("llama-vscode.endpoint_chat",): endpoint.url,
        ("llama-vscode.api_key",): endpoint.key,
        ("llama-vscode.api_key_chat",): endpoint.key,
        ("llama-vscode.n_prefix",): 256,
        ("llama-vscode.n_suffix",): 8,
    }
    path = vscode_settings(home)
    before = read_config(path)
    return [FileEdit(path=path, before=before, after=with_settings(path, before, settings))]


INTEGRATION = Integration(
    name="llama.vscode",
    title="llama.vscode",
    kind="editor",
    install="code --install-extension ggml-org.llama-vscode",
    edits=_edits,
    undo=undo_settings,
)
