"""Every editor and agent that can be connected."""

from app.code.integrations.clients import (
    aider,
    claude_code,
    cline,
    codex,
    continue_dev,
    llama_vim,
    llama_vscode,
    opencode,
    zed,
)
from app.code.integrations.types import Integration

INTEGRATIONS: dict[str, Integration] = {
    module.INTEGRATION.name: module.INTEGRATION
    for module in (aider, claude_code, codex, opencode, cline, continue_dev, llama_vim, llama_vscode, zed)
}
