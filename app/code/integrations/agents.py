"""Coding agents: their start commands and their configuration for this server."""

import json
import re
from pathlib import Path
from typing import Any

from app.code.integrations.json_settings import (
    Settings,
    set_aside,
    undo_block,
    undo_settings,
    with_block,
    with_settings,
    without_block,
)
from app.code.integrations.types import Endpoint, FileEdit, Integration, Launch, NeedsHand, read_config

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


# Codex CLI: https://developers.openai.com/codex/config-advanced (model providers, profiles).

_CODEX_KEY_NAME = "TESSERA_API_KEY"
_CODEX_OWN_TABLE = re.compile(r"^\s*\[(?:model_providers|profiles)\.\"?tessera\"?\]", re.MULTILINE)
_CODEX_OWN = "it has a provider or profile named tessera already"


def _codex_edits(home: Path, endpoint: Endpoint) -> list[FileEdit]:
    """The provider, and a profile in its own file: Codex refuses a profile in config.toml since 0.134."""
    path, profile_path = home / ".codex" / "config.toml", home / ".codex" / "tessera.config.toml"
    before, profile_before = read_config(path), read_config(profile_path)
    # Tables are valid at the end of any TOML file, and JSON strings are valid TOML strings.
    provider = [
        "[model_providers.tessera]",
        'name = "Tessera"',
        f"base_url = {json.dumps(endpoint.openai_url)}",
        'wire_api = "responses"',
        f"experimental_bearer_token = {json.dumps(endpoint.key)}",
    ]
    profile = [
        'model_provider = "tessera"',
        f"model = {json.dumps(endpoint.model)}",
        f"model_context_window = {endpoint.context}",
    ]
    text = without_block(before or "")
    if _CODEX_OWN_TABLE.search(text):
        snippet = "\n".join([*provider, "", f"# In {profile_path.name}:", *profile])
        raise NeedsHand(path, _CODEX_OWN, snippet)
    if without_block(profile_before or "").strip():
        raise NeedsHand(profile_path, _CODEX_OWN, "\n".join(profile))
    return [
        FileEdit(path=path, before=before, after=with_block(text, provider)),
        FileEdit(path=profile_path, before=profile_before, after=with_block(None, profile)),
    ]


def _codex_launch(endpoint: Endpoint, folder: Path) -> Launch:
    del folder
    # Other users can see a command line, but not the environment.
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
    """Map all model tiers to the one model; disable the changing header that invalidates prompt caches."""
    return {
        "ANTHROPIC_BASE_URL": endpoint.url,
        "ANTHROPIC_AUTH_TOKEN": endpoint.key,
        "ANTHROPIC_API_KEY": "",  # else the user's key for Anthropic would be sent here as well
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
    """Metadata that LiteLLM lacks for local models; without it aider guesses the context length."""
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
    # JSON strings are valid YAML strings.
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
        # Other users can see a command line, but not the environment.
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


# pi: https://github.com/earendil-works/pi (packages/coding-agent/docs: models.md, custom-provider.md).


def _pi_provider(endpoint: Endpoint) -> dict[str, Any]:
    """The provider in the form that pi and OpenClaw share."""
    model = {
        "id": endpoint.model,
        "name": f"{endpoint.model} (Tessera)",
        "reasoning": False,
        "input": ["text", "image"] if endpoint.vision else ["text"],
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
        "contextWindow": endpoint.context,
        "maxTokens": endpoint.output_limit,
    }
    return {
        "baseUrl": endpoint.openai_url,
        "api": "openai-completions",
        "apiKey": endpoint.key,
        "models": [model],
    }


def _pi_edits(home: Path, endpoint: Endpoint) -> list[FileEdit]:
    path = home / ".pi" / "agent" / "models.json"
    before = read_config(path)
    settings: Settings = {("providers", "tessera"): _pi_provider(endpoint)}
    return [FileEdit(path=path, before=before, after=with_settings(path, before, settings))]


def _pi_launch(endpoint: Endpoint, folder: Path) -> Launch:
    """Add the provider with an extension for this start only; the user's own settings stay effective."""
    name = "tessera.js"
    script = (
        f"export default (pi) => pi.registerProvider('tessera', {json.dumps(_pi_provider(endpoint), indent=2)});\n"
    )
    argv = ("pi", "--extension", str(folder / name), "--provider", "tessera", "--model", endpoint.model)
    return Launch(argv=argv, env={"PI_SKIP_VERSION_CHECK": "1"}, files={name: script})


def _pi_steps(endpoint: Endpoint) -> str:
    return f"Start it with: pi --provider tessera --model {endpoint.model}"


PI = Integration(
    name="pi",
    title="pi",
    kind="agent",
    install="npm install -g @earendil-works/pi-coding-agent",
    edits=_pi_edits,
    undo=undo_settings,
    launch=_pi_launch,
    steps=_pi_steps,
)


# goose: https://block.github.io/goose (guides: environment-variables).


def _goose_environment(endpoint: Endpoint) -> dict[str, str]:
    """Variables override its configuration; its key is in the system's keyring, which Tessera does not write."""
    return {
        "GOOSE_PROVIDER": "openai",
        "GOOSE_MODEL": endpoint.model,
        "GOOSE_CONTEXT_LIMIT": str(endpoint.context),
        "GOOSE_MAX_TOKENS": str(endpoint.output_limit),
        "OPENAI_HOST": endpoint.url,
        "OPENAI_BASE_PATH": "v1/chat/completions",
        "OPENAI_API_KEY": endpoint.key,
    }


def _goose_launch(endpoint: Endpoint, folder: Path) -> Launch:
    del folder
    return Launch(argv=("goose", "session"), env=_goose_environment(endpoint))


def _goose_steps(endpoint: Endpoint) -> str:
    lines = (f"  {name}={value}" for name, value in _goose_environment(endpoint).items())
    return "Start it by `tessera launch goose`, or set these variables for goose:\n" + "\n".join(lines)


GOOSE = Integration(
    name="goose",
    title="goose",
    kind="agent",
    install="https://block.github.io/goose/docs/getting-started/installation",
    launch=_goose_launch,
    steps=_goose_steps,
)


# Hermes Agent: https://hermes-agent.nousresearch.com/docs (user-guide/configuration).


def _hermes_steps(endpoint: Endpoint) -> str:
    """Let Hermes write its own file: a program cannot reliably change YAML with comments."""
    values = {
        "model.provider": "custom",
        "model.base_url": endpoint.openai_url,
        "model.api_key": endpoint.key,
        "model.default": endpoint.model,
        "model.context_length": str(endpoint.context),
    }
    lines = (f"  hermes config set {name} {value}" for name, value in values.items())
    return "Type these once; from then on start it by: tessera launch hermes\n" + "\n".join(lines)


def _hermes_launch(endpoint: Endpoint, folder: Path) -> Launch:
    """Hermes rejects a model with too little context, so the model is loaded before it starts."""
    del folder
    return Launch(argv=("hermes", "--model", endpoint.model))


HERMES = Integration(
    name="hermes",
    title="Hermes Agent",
    kind="agent",
    install="pip install hermes-agent",
    launch=_hermes_launch,
    steps=_hermes_steps,
)


# OpenClaw: https://docs.openclaw.ai (gateway/local-models, concepts/model-providers).


def _openclaw_edits(home: Path, endpoint: Endpoint) -> list[FileEdit]:
    path = home / ".openclaw" / "openclaw.json"
    before = read_config(path)
    settings: Settings = {
        ("models", "providers", "tessera"): _pi_provider(endpoint),
        ("agents", "defaults", "model", "primary"): f"tessera/{endpoint.model}",
    }
    return [FileEdit(path=path, before=before, after=with_settings(path, before, settings))]


def _openclaw_steps(endpoint: Endpoint) -> str:
    del endpoint
    return "Restart its gateway: openclaw gateway restart"


OPENCLAW = Integration(
    name="openclaw",
    title="OpenClaw",
    kind="agent",
    install="npm install -g openclaw",
    edits=_openclaw_edits,
    undo=undo_settings,
    steps=_openclaw_steps,
)
