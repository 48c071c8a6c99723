"""Claude Code: https://docs.claude.com/en/docs/claude-code/settings (environment variables)."""

from pathlib import Path

from app.code.integrations.json_settings import Settings, undo_settings, with_settings
from app.code.integrations.types import Endpoint, FileEdit, Integration, Launch, read_config


def _environment(endpoint: Endpoint) -> dict[str, str]:
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


def _edits(home: Path, endpoint: Endpoint) -> list[FileEdit]:
    path = home / ".claude" / "settings.json"
    before = read_config(path)
    settings: Settings = {("env", key): value for key, value in _environment(endpoint).items()}
    return [FileEdit(path=path, before=before, after=with_settings(path, before, settings))]


def _launch(endpoint: Endpoint, folder: Path) -> Launch:
    del folder
    return Launch(argv=("claude",), env=_environment(endpoint))


INTEGRATION = Integration(
    name="claude",
    title="Claude Code",
    kind="agent",
    install="npm install -g @anthropic-ai/claude-code",
    edits=_edits,
    undo=undo_settings,
    launch=_launch,
)
