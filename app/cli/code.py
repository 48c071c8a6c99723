"""`tessera code`: ask about a project, see its edits, apply and undo them, or let an agent work."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from app.cli.echo import echo, failed
from app.cli.settings_defaults import Number

if TYPE_CHECKING:
    from app.client import Client

# Source: the smallest model published with scores for editing code, Qwen2.5-Coder-0.5B, has 494 million.
_LEAST_PARAMETERS: Final = 400_000_000


@click.command(help="Ask about and edit the project in FOLDER (default: here) with a local model.")
@click.argument("folder", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--model", "-m", help="Model to use (default: a loaded one, else the best for tools).")
@click.option("--prompt", "-p", help="Ask this once and exit; '-' reads standard input.")
@click.option("--agent", "as_agent", is_flag=True, help="Let the model work with tools; you approve every action.")
@click.option(
    "--replay", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Repeat a recorded session."
)
@click.option("--apply", "apply_edits", is_flag=True, help="With --prompt: apply the edits whose place was found.")
@click.option("--allow-uncommitted", is_flag=True, help="Also write files with uncommitted changes.")
@click.option("--steps", type=click.IntRange(1, 500), default=30, show_default=True, help="Step limit of an agent.")
@click.option("--max-tokens", type=click.IntRange(1), help="Maximum tokens of an answer.")
@click.option("--temperature", "-t", type=Number(0, 5), default=0.2, show_default=True)
@click.option("--embed", "embed_model", help="Also search by meaning with this model (default: a loaded one).")
@click.option(
    "--mcp",
    "mcp_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help='With --agent: a file {"mcpServers": ...} of further tools.',
)
def command(
    folder: Path | None,
    model: str | None,
    prompt: str | None,
    as_agent: bool,
    replay: Path | None,
    apply_edits: bool,
    allow_uncommitted: bool,
    steps: int,
    max_tokens: int | None,
    temperature: float,
    embed_model: str | None,
    mcp_file: Path | None,
) -> None:
    """Open the project, connect, and talk."""
    from app.cli.code_session import CodeSession
    from app.cli.connection import connected
    from app.cli.stdin_prompt import standard_input
    from app.client import ApiError, ServerUnreachable
    from app.code.assistant import Assistant, Conversation
    from app.code.index.vectors import VectorIndex
    from app.code.integrations.endpoint import embedder, endpoint_of
    from app.code.project import Project
    from app.tools.mcp_config import BadMcpConfig
    from devices.errors import TesseraError

    if prompt == "-":
        prompt = standard_input()
    if prompt is not None and not prompt.strip():
        raise click.UsageError("The prompt is empty.")
    options: dict[str, object] = {"temperature": temperature, "loop_guard": True}
    if max_tokens is not None:
        options["max_tokens"] = max_tokens
    try:
        with Project(folder or Path.cwd()) as project, connected() as client:
            endpoint = endpoint_of(client, model)
            _warn_of_small(client, endpoint.model)
            conversation = Conversation(project, endpoint.model, endpoint.context, options)
            embedding = embedder(client, embed_model)
            if embedding is not None:
                conversation.vectors = VectorIndex(project.index, *embedding)
            session = CodeSession(
                Assistant(conversation, client),
                max_steps=steps,
                mcp_file=mcp_file,
                allow_uncommitted=allow_uncommitted,
            )
            session.index()
            if replay is not None:
                sys.exit(0 if session.replay(replay) else 1)
            if as_agent and prompt is not None:
                sys.exit(0 if session.agent(prompt) else 1)
            if prompt is not None:
                session.ask_once(prompt)
                if apply_edits and not session.apply(()):
                    sys.exit(1)
                return
            session.talk(as_agent=as_agent)
    except (TesseraError, BadMcpConfig, ApiError, ServerUnreachable) as error:
        raise failed(error) from error


def _warn_of_small(client: "Client", model: str) -> None:
    """Warn if a model is too small for code; print nothing if this key may not query the model."""
    from app.client import ApiError
    from app.format import parameters

    try:
        count = client.model(model).details.n_params
    except ApiError:
        return
    if 0 < count < _LEAST_PARAMETERS:
        echo(
            f"{model} has {parameters(count)} parameters, too few for code: expect wrong answers and few usable "
            "edits. A model of 1.5 billion or more that was trained for code helps: tessera models search coder",
            fg="yellow",
            err=True,
        )
