"""aider: https://aider.chat/docs/config/aider_conf.html and .../llms/openai-compat.html."""

import json
from pathlib import Path

from app.code.integrations.text_block import set_aside, undo_block, with_block, without_block
from app.code.integrations.types import Endpoint, FileEdit, Integration, Launch, read_config

_KEYS = ("model", "weak-model", "openai-api-base", "openai-api-key", "model-metadata-file")


def _metadata(endpoint: Endpoint) -> str:
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


def _edits(home: Path, endpoint: Endpoint) -> list[FileEdit]:
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
    after = with_block(set_aside(without_block(before or ""), _KEYS), lines)
    return [
        FileEdit(path=metadata, before=read_config(metadata), after=_metadata(endpoint)),
        FileEdit(path=config, before=before, after=after),
    ]


def _launch(endpoint: Endpoint, folder: Path) -> Launch:
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
        files={name: _metadata(endpoint)},
    )


INTEGRATION = Integration(
    name="aider",
    title="aider",
    kind="agent",
    install="pip install aider-chat",
    edits=_edits,
    undo=undo_block,
    launch=_launch,
)
