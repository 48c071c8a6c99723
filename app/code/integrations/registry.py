"""All editors and agents that can be connected, and the definitions of the editors."""

import json
import re
import sys
from pathlib import Path
from typing import Any

from app.code.integrations.agents import AIDER, CLAUDE_CODE, CODEX, GOOSE, HERMES, OPENCLAW, OPENCODE, PI
from app.code.integrations.json_settings import (
    Settings,
    has_extras,
    parse,
    undo_block,
    undo_settings,
    with_block,
    with_settings,
    without_block,
)
from app.code.integrations.types import Endpoint, FileEdit, Integration, NeedsHand, read_config

# Zed: https://zed.dev/docs/ai/llm-providers (OpenAI API compatible), .../edit-prediction (self-hosted servers).

_ZED_SERVER = "open_ai_compatible_api"
_ZED_PREDICTIONS = ("edit_predictions", _ZED_SERVER)
# Environment variable of the key for edit predictions. Source: Zed, edit_prediction crate.
_ZED_KEY = "ZED_OPEN_AI_COMPATIBLE_EDIT_PREDICTION_API_KEY"


# Parts of model names, and Zed's name for the prompt format of the family; the first match counts. Zed's own
# "infer" knows a few exact names only. Source: Zed, edit_prediction/src/fim.rs, infer_prompt_format.
_ZED_FORMATS = (
    ("sweep-next-edit", "infer"),  # Zed selects this one by its name; there is no other setting for it
    ("zeta-2.1", "zeta2_1"), ("zeta2.1", "zeta2_1"), ("zeta-2", "zeta2"), ("zeta2", "zeta2"),
    ("codellama", "code_llama"), ("code-llama", "code_llama"), ("codestral", "codestral"),
    ("codegemma", "code_gemma"), ("deepseek", "deepseek_coder"), ("starcoder", "star_coder"),
    ("granite", "star_coder"), ("refact", "star_coder"), ("stable-code", "star_coder"), ("glm", "glm"),
)  # fmt: skip
# These models rewrite several lines around the cursor, so an answer is as long as those lines.
_NEXT_EDIT = ("sweep-next-edit", "zeta2", "zeta-2")


def _zed_format(model: str) -> str:
    """Zed's prompt format for a model; most others mark gaps as Qwen does."""
    return next((name for part, name in _ZED_FORMATS if part in model.lower()), "qwen")


def _zed_edits(home: Path, endpoint: Endpoint) -> list[FileEdit]:
    model = {
        "name": endpoint.model,
        "display_name": f"{endpoint.model} (Tessera)",
        "max_tokens": endpoint.context,
        "max_output_tokens": endpoint.output_limit,
        "capabilities": {
            "tools": endpoint.tools,
            "images": endpoint.vision,
            "parallel_tool_calls": endpoint.tools,
            "prompt_cache_key": False,
        },
    }
    path = home / ".config" / "zed" / "settings.json"
    before = read_config(path)
    base = ("language_models", "openai_compatible", "Tessera")
    settings: dict[tuple[str, ...], Any] = {
        (*base, "api_url"): endpoint.openai_url,
        (*base, "available_models"): [model],
    }
    if endpoint.fim:
        settings |= _zed_predictions(endpoint)
    elif _zed_predicts(before):  # another model made predictions, with the server's previous URL
        settings[(*_ZED_PREDICTIONS, "api_url")] = f"{endpoint.openai_url}/completions"
    chosen: Settings = settings
    return [FileEdit(path=path, before=before, after=with_settings(path, before, chosen))]


def _zed_predictions(endpoint: Endpoint) -> dict[tuple[str, ...], Any]:
    """Settings for edit predictions by a fill-in-the-middle model; Zed formats the prompt for the model."""
    edits = any(part in endpoint.model.lower() for part in _NEXT_EDIT)
    return {
        ("edit_predictions", "provider"): _ZED_SERVER,
        (*_ZED_PREDICTIONS, "api_url"): f"{endpoint.openai_url}/completions",
        (*_ZED_PREDICTIONS, "model"): endpoint.model,
        (*_ZED_PREDICTIONS, "prompt_format"): _zed_format(endpoint.model),
        (*_ZED_PREDICTIONS, "max_output_tokens"): 512 if edits else 64,
    }


def _zed_predicts(text: str | None) -> bool:
    """Return True if edit predictions already use this server."""
    try:
        settings = parse(text or "{}")
    except ValueError:
        return False
    ours = settings.get("language_models", {}).get("openai_compatible", {}) if isinstance(settings, dict) else {}
    return "Tessera" in ours and isinstance(settings.get("edit_predictions", {}).get(_ZED_SERVER), dict)


def _zed_steps(endpoint: Endpoint) -> str:
    first = f"Zed asks once for the key of the provider Tessera: enter {endpoint.key!r} (or set TESSERA_API_KEY)."
    if not endpoint.fim:
        return f"{first} This model does not fill in the middle of code, so edit predictions stay as they were."
    return f"{first} For edit predictions enter the same key under Configure Providers, or set {_ZED_KEY}."


ZED = Integration(
    name="zed",
    title="Zed",
    kind="editor",
    install="https://zed.dev/download",
    edits=_zed_edits,
    undo=undo_settings,
    steps=_zed_steps,
)


# llama.vscode: https://github.com/ggml-org/llama.vscode (its settings in VS Code's settings.json).


def vscode_settings(home: Path) -> Path:
    """Path of VS Code's user settings."""
    if sys.platform == "win32":
        return home / "AppData" / "Roaming" / "Code" / "User" / "settings.json"
    if sys.platform == "darwin":
        return home / "Library" / "Application Support" / "Code" / "User" / "settings.json"
    return home / ".config" / "Code" / "User" / "settings.json"


def _llama_vscode_edits(home: Path, endpoint: Endpoint) -> list[FileEdit]:
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


LLAMA_VSCODE = Integration(
    name="llama.vscode",
    title="llama.vscode",
    kind="editor",
    install="code --install-extension ggml-org.llama-vscode",
    edits=_llama_vscode_edits,
    undo=undo_settings,
)


# llama.vim: https://github.com/ggml-org/llama.vim (doc/llama.txt).


def _llama_vim_script(endpoint: Endpoint) -> str:
    """Content of a separate plugin file. n_suffix is small because the suffix is evaluated at every keystroke."""
    return f"""\" Written by `tessera launch llama.vim --connect`; `--remove` deletes it.
let g:llama_config = extend({{
  \\ 'endpoint': '{endpoint.url}/infill',
  \\ 'endpoint_fim': '{endpoint.url}/infill',
  \\ 'endpoint_inst': '{endpoint.openai_url}/chat/completions',
  \\ 'api_key': '{endpoint.key}',
  \\ 'n_prefix': 256,
  \\ 'n_suffix': 8,
  \\ 'n_predict': 128,
  \\ }}, get(g:, 'llama_config', {{}}), 'force')
"""


def _llama_vim_edits(home: Path, endpoint: Endpoint) -> list[FileEdit]:
    folders = (home / ".vim" / "plugin", home / ".config" / "nvim" / "plugin")
    # Vim reads ~/.vim even if only Neovim's folder exists; each editor has its own plugin folder.
    chosen = [folder for folder in folders if folder.parent.is_dir()] or [folders[0]]
    return [
        FileEdit(path=path, before=read_config(path), after=_llama_vim_script(endpoint))
        for path in (folder / "tessera_llama.vim" for folder in chosen)
    ]


LLAMA_VIM = Integration(
    name="llama.vim",
    title="llama.vim (Vim, Neovim)",
    kind="editor",
    install="add the plugin ggml-org/llama.vim",
    edits=_llama_vim_edits,
)


# Continue: https://docs.continue.dev/reference (config.yaml).

_CONTINUE_DEV_MODELS = re.compile(r"^models:[ \t]*(\[\s*\])?[ \t]*(?:#.*)?$", re.MULTILINE)
_CONTINUE_DEV_NEW = "name: Local\nversion: 1.0.0\nschema: v1\n"


def _continue_dev_entry(endpoint: Endpoint, indent: str) -> list[str]:
    roles = ["chat", "edit", "apply", *(["autocomplete"] if endpoint.fim else [])]
    rows = [
        f"- name: {json.dumps('Tessera ' + endpoint.model)}",
        "  provider: openai",
        f"  model: {json.dumps(endpoint.model)}",
        f"  apiBase: {json.dumps(endpoint.openai_url)}",
        f"  apiKey: {json.dumps(endpoint.key)}",
        f"  roles: {json.dumps(roles)}",
        "  defaultCompletionOptions:",
        f"    contextLength: {endpoint.context}",
        f"    maxTokens: {endpoint.output_limit}",
    ]
    return [indent + row for row in rows]


def _continue_dev_edits(home: Path, endpoint: Endpoint) -> list[FileEdit]:
    path = home / ".continue" / "config.yaml"
    before = read_config(path)
    text = without_block(before or _CONTINUE_DEV_NEW)
    models = _CONTINUE_DEV_MODELS.search(text)
    if models is None and re.search(r"^models:", text, re.MULTILINE):
        snippet = "\n".join(_continue_dev_entry(endpoint, "  "))
        raise NeedsHand(path, "its list of models is written on one line", snippet)
    if models is None or models.group(1):
        text = _CONTINUE_DEV_MODELS.sub("", text)
        after = with_block(text, ["models:", *_continue_dev_entry(endpoint, "  ")])
    else:
        item = re.match(r"\s*?\n([ \t]*)-", text[models.end() :])
        indent = item.group(1) if item else "  "
        after = with_block(text, _continue_dev_entry(endpoint, indent), after=text[: models.end()].count("\n") + 1)
    return [FileEdit(path=path, before=before, after=after)]


CONTINUE_DEV = Integration(
    name="continue",
    title="Continue (VS Code, JetBrains)",
    kind="editor",
    install="install the extension Continue in the editor",
    edits=_continue_dev_edits,
    undo=undo_block,
)


# Cline: stores its settings in the editor's own database, which no other program may write.


def _cline_steps(endpoint: Endpoint) -> str:
    return (
        "In Cline's settings choose the API provider 'OpenAI Compatible' and enter:\n"
        f"  Base URL        {endpoint.openai_url}\n"
        f"  API key         {endpoint.key}\n"
        f"  Model ID        {endpoint.model}\n"
        f"  Context window  {endpoint.context}\n"
        f"  Max output      {endpoint.output_limit}"
    )


CLINE = Integration(
    name="cline",
    title="Cline (VS Code)",
    kind="editor",
    install="install the extension Cline in the editor",
    steps=_cline_steps,
)


# VS Code's own chat: https://code.visualstudio.com/docs/copilot/customization/language-models. Not tested.

_VSCODE_NAME = "Tessera"


def _vscode_group(endpoint: Endpoint) -> dict[str, Any]:
    """A group of models for VS Code. Source: microsoft/vscode#316916, VS Code 1.122."""
    model = {
        "id": endpoint.model,
        "name": f"{endpoint.model} (Tessera)",
        "url": f"{endpoint.openai_url}/chat/completions",
        "toolCalling": endpoint.tools,
        "vision": endpoint.vision,
        "maxInputTokens": max(1, endpoint.context - endpoint.output_limit),
        "maxOutputTokens": endpoint.output_limit,
    }
    return {
        "name": _VSCODE_NAME,
        "vendor": "customendpoint",
        "apiKey": endpoint.key,
        "apiType": "chat-completions",
        "models": [model],
    }


def _vscode_groups(path: Path, text: str | None, ours: dict[str, Any] | None) -> str:
    """The file's list of groups with or without Tessera's. Raises: NeedsHand: comments, or not a list."""
    snippet = json.dumps([ours] if ours is not None else [], indent=2)
    try:
        groups = parse(text) if text is not None and text.strip() else []
    except ValueError as error:
        raise NeedsHand(path, f"it cannot be read as JSON ({error})", snippet) from error
    if not isinstance(groups, list) or (text is not None and has_extras(text)):
        raise NeedsHand(path, "it contains comments or has no list", snippet)
    others = [group for group in groups if not (isinstance(group, dict) and group.get("name") == _VSCODE_NAME)]
    return json.dumps([*others, *([ours] if ours is not None else [])], indent="\t", ensure_ascii=False) + "\n"


def _vscode_edits(home: Path, endpoint: Endpoint) -> list[FileEdit]:
    path = vscode_settings(home).with_name("chatLanguageModels.json")
    before = read_config(path)
    return [FileEdit(path=path, before=before, after=_vscode_groups(path, before, _vscode_group(endpoint)))]


def _vscode_undo(now: str, before: str | None, after: str) -> str:
    del before, after
    return _vscode_groups(Path("chatLanguageModels.json"), now, None)


def _vscode_steps(endpoint: Endpoint) -> str:
    del endpoint
    return (
        "Restart VS Code, then choose the model in its chat. It needs VS Code 1.122 or newer; completions of lines "
        "stay with Copilot: tessera launch llama.vscode --connect has local ones."
    )


VSCODE = Integration(
    name="vscode",
    title="VS Code chat (custom endpoint)",
    kind="editor",
    install="https://code.visualstudio.com",
    edits=_vscode_edits,
    undo=_vscode_undo,
    steps=_vscode_steps,
)


_AGENTS = (AIDER, CLAUDE_CODE, CODEX, OPENCODE, PI, GOOSE, HERMES, OPENCLAW)
_EDITORS = (CLINE, CONTINUE_DEV, LLAMA_VIM, LLAMA_VSCODE, VSCODE, ZED)
INTEGRATIONS: dict[str, Integration] = {integration.name: integration for integration in (*_AGENTS, *_EDITORS)}
