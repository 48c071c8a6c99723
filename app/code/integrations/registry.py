"""Every editor and agent that can be connected."""

import json
import re
import sys
from pathlib import Path
from typing import Any

from app.code.integrations.json_settings import Settings, undo_settings, with_settings
from app.code.integrations.text_block import set_aside, undo_block, with_block, without_block
from app.code.integrations.types import Endpoint, FileEdit, Integration, Launch, NeedsHand, read_config

# Zed: https://zed.dev/docs/ai/llm-providers (OpenAI API compatible).


def _zed_edits(home: Path, endpoint: Endpoint) -> list[FileEdit]:
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


def _zed_steps(endpoint: Endpoint) -> str:
    return f"Zed asks once for the key of the provider Tessera: enter {endpoint.key!r} (or set TESSERA_API_KEY)."


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
    """Where VS Code keeps a user's settings."""
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
    """A plugin file of our own. n_suffix is small because what follows the cursor is evaluated at every key."""
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
    # Vim reads ~/.vim even where only Neovim's folder exists; each editor gets the file in its own place.
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
    found = _CONTINUE_DEV_MODELS.search(text)
    if found is None and re.search(r"^models:", text, re.MULTILINE):
        snippet = "\n".join(_continue_dev_entry(endpoint, "  "))
        raise NeedsHand(path, "its list of models is written on one line", snippet)
    if found is None or found.group(1):
        text = _CONTINUE_DEV_MODELS.sub("", text)
        after = with_block(text, ["models:", *_continue_dev_entry(endpoint, "  ")])
    else:
        item = re.match(r"\s*?\n([ \t]*)-", text[found.end() :])
        indent = item.group(1) if item else "  "
        after = with_block(text, _continue_dev_entry(endpoint, indent), after=text[: found.end()].count("\n") + 1)
    return [FileEdit(path=path, before=before, after=after)]


CONTINUE_DEV = Integration(
    name="continue",
    title="Continue (VS Code, JetBrains)",
    kind="editor",
    install="install the extension Continue in the editor",
    edits=_continue_dev_edits,
    undo=undo_block,
)


# Cline: keeps its settings in the editor's own database, which no other program may write.


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


# OpenCode: https://opencode.ai/docs/providers (custom provider, OpenAI-compatible).


def _opencode_provider(endpoint: Endpoint) -> dict[str, Any]:
    limit = {"context": endpoint.context, "output": endpoint.output_limit}
    return {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Tessera",
        "options": {"baseURL": endpoint.openai_url, "apiKey": endpoint.key},
        "models": {endpoint.model: {"name": endpoint.model, "limit": limit}},
    }


def _opencode_edits(home: Path, endpoint: Endpoint) -> list[FileEdit]:
    path = home / ".config" / "opencode" / "opencode.json"
    before = read_config(path)
    settings: Settings = {
        **({("$schema",): "https://opencode.ai/config.json"} if before is None else {}),
        ("provider", "tessera"): _opencode_provider(endpoint),
        ("model",): f"tessera/{endpoint.model}",
    }
    return [FileEdit(path=path, before=before, after=with_settings(path, before, settings))]


def _opencode_launch(endpoint: Endpoint, folder: Path) -> Launch:
    config = {
        "$schema": "https://opencode.ai/config.json",
        "provider": {"tessera": _opencode_provider(endpoint)},
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


OPENCODE = Integration(
    name="opencode",
    title="OpenCode",
    kind="agent",
    install="npm install -g opencode-ai",
    edits=_opencode_edits,
    undo=undo_settings,
    launch=_opencode_launch,
)


# Codex CLI: https://github.com/openai/codex/blob/main/docs/config.md (model providers, profiles).

_CODEX_KEY_NAME = "TESSERA_API_KEY"
_CODEX_OWN_TABLE = re.compile(r"^\s*\[(?:model_providers|profiles)\.\"?tessera\"?\]", re.MULTILINE)


def _codex_edits(home: Path, endpoint: Endpoint) -> list[FileEdit]:
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
    if _CODEX_OWN_TABLE.search(text):
        raise NeedsHand(path, "it has a provider or profile named tessera already", "\n".join(lines))
    return [FileEdit(path=path, before=before, after=with_block(text, lines))]


def _codex_launch(endpoint: Endpoint, folder: Path) -> Launch:
    del folder
    # Other users see what is on a command line, but not the environment.
    provider = {
        "name": "Tessera",
        "base_url": endpoint.openai_url,
        "wire_api": "responses",
        "env_key": _CODEX_KEY_NAME,
    }
    table = "{" + ", ".join(f"{key} = {json.dumps(value)}" for key, value in provider.items()) + "}"
    options = (
        f"model_providers.tessera={table}",
        'model_provider="tessera"',
        f"model_context_window={endpoint.context}",
    )
    argv = ("codex", "-m", endpoint.model, *(part for option in options for part in ("-c", option)))
    return Launch(argv=argv, env={_CODEX_KEY_NAME: endpoint.key})


def _codex_steps(endpoint: Endpoint) -> str:
    del endpoint
    return "Start it with: codex --profile tessera"


CODEX = Integration(
    name="codex",
    title="Codex CLI",
    kind="agent",
    install="npm install -g @openai/codex",
    edits=_codex_edits,
    undo=undo_block,
    launch=_codex_launch,
    steps=_codex_steps,
)


# Claude Code: https://docs.claude.com/en/docs/claude-code/settings (environment variables).


def _claude_code_environment(endpoint: Endpoint) -> dict[str, str]:
    """All of its model tiers are the one model; its changing header, which spoils prompt caches, is off."""
    return {
        "ANTHROPIC_BASE_URL": endpoint.url,
        "ANTHROPIC_AUTH_TOKEN": endpoint.key,
        "ANTHROPIC_MODEL": endpoint.model,
        "ANTHROPIC_DEFAULT_OPUS_MODEL": endpoint.model,
        "ANTHROPIC_DEFAULT_SONNET_MODEL": endpoint.model,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": endpoint.model,
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(endpoint.output_limit),
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }


def _claude_code_edits(home: Path, endpoint: Endpoint) -> list[FileEdit]:
    path = home / ".claude" / "settings.json"
    before = read_config(path)
    settings: Settings = {("env", key): value for key, value in _claude_code_environment(endpoint).items()}
    return [FileEdit(path=path, before=before, after=with_settings(path, before, settings))]


def _claude_code_launch(endpoint: Endpoint, folder: Path) -> Launch:
    del folder
    return Launch(argv=("claude",), env=_claude_code_environment(endpoint))


CLAUDE_CODE = Integration(
    name="claude",
    title="Claude Code",
    kind="agent",
    install="npm install -g @anthropic-ai/claude-code",
    edits=_claude_code_edits,
    undo=undo_settings,
    launch=_claude_code_launch,
)


# aider: https://aider.chat/docs/config/aider_conf.html and .../llms/openai-compat.html.

_AIDER_KEYS = ("model", "weak-model", "openai-api-base", "openai-api-key", "model-metadata-file")


def _aider_metadata(endpoint: Endpoint) -> str:
    """What LiteLLM does not know about a local model; without it aider guesses the context."""
    entry = {
        "max_input_tokens": endpoint.context,
        "max_output_tokens": endpoint.output_limit,
        "max_tokens": endpoint.output_limit,
        "input_cost_per_token": 0,
        "output_cost_per_token": 0,
        "litellm_provider": "openai",
        "mode": "chat",
    }
    return json.dumps({f"openai/{endpoint.model}": entry}, indent=2) + "\n"


def _aider_edits(home: Path, endpoint: Endpoint) -> list[FileEdit]:
    config, metadata = home / ".aider.conf.yml", home / ".aider.tessera.metadata.json"
    before = read_config(config)
    # JSON strings are YAML strings.
    lines = [
        f"model: {json.dumps('openai/' + endpoint.model)}",
        f"weak-model: {json.dumps('openai/' + endpoint.model)}",
        f"openai-api-base: {json.dumps(endpoint.openai_url)}",
        f"openai-api-key: {json.dumps(endpoint.key)}",
        f"model-metadata-file: {json.dumps(str(metadata))}",
    ]
    after = with_block(set_aside(without_block(before or ""), _AIDER_KEYS), lines)
    return [
        FileEdit(path=metadata, before=read_config(metadata), after=_aider_metadata(endpoint)),
        FileEdit(path=config, before=before, after=after),
    ]


def _aider_launch(endpoint: Endpoint, folder: Path) -> Launch:
    name = "aider-metadata.json"
    model = f"openai/{endpoint.model}"
    argv = ("aider", "--model", model, "--weak-model", model, "--openai-api-base", endpoint.openai_url)
    return Launch(
        argv=(*argv, "--model-metadata-file", str(folder / name)),
        # Other users see what is on a command line, but not the environment.
        env={
            "AIDER_OPENAI_API_KEY": endpoint.key,
            "AIDER_ANALYTICS_DISABLE": "true",
            "AIDER_CHECK_UPDATE": "false",
        },
        files={name: _aider_metadata(endpoint)},
    )


AIDER = Integration(
    name="aider",
    title="aider",
    kind="agent",
    install="pip install aider-chat",
    edits=_aider_edits,
    undo=undo_block,
    launch=_aider_launch,
)


INTEGRATIONS: dict[str, Integration] = {
    integration.name: integration
    for integration in (AIDER, CLAUDE_CODE, CODEX, OPENCODE, CLINE, CONTINUE_DEV, LLAMA_VIM, LLAMA_VSCODE, ZED)
}
