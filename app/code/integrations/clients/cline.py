"""Cline: keeps its settings in the editor's own database, which no other program may write."""

from app.code.integrations.types import Endpoint, Integration


def _steps(endpoint: Endpoint) -> str:
    return (
        "In Cline's settings choose the API provider 'OpenAI Compatible' and enter:\n"
        f"  Base URL        {endpoint.openai_url}\n"
        f"  API key         {endpoint.key}\n"
        f"  Model ID        {endpoint.model}\n"
        f"  Context window  {endpoint.context}\n"
        f"  Max output      {endpoint.output_limit}"
    )


INTEGRATION = Integration(
    name="cline",
    title="Cline (VS Code)",
    kind="editor",
    install="install the extension Cline in the editor",
    steps=_steps,
)
