"""`tessera chat` and `tessera run`: one response, or a conversation."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from app.cli.echo import NotPossibleHere, echo, failed
from app.cli.settings_defaults import Number, OutputFile, TokenCount
from app.cli.stdin_prompt import read_prompt

if TYPE_CHECKING:
    from app.cli.chat_tools import ChatTools
    from app.client import ChatClient, Client
    from engine.api.chat import ModelRow

# Measured: log-archive.md, "the 135 M model does not read a document reliably".
_LEAST_PARAMETERS = 400_000_000
_LONG_PROMPT = 500  # characters; a longer prompt is a text to work on, not a question
_FILES = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command(
    help="Chat with MODEL (default: the setting chat.model, else a loaded one, else a downloaded one, else the "
    "included one). With a PROMPT: answer it once, together with piped text, and exit."
)
@click.argument("model", required=False)
@click.argument("words", nargs=-1, metavar="[PROMPT]")
@click.option(
    "--prompt", "-p", help="The same as PROMPT, also for the default model; '-' reads only the piped text."
)
@click.option("--system", "-s", help="System prompt.  [default: the setting chat.system_prompt]")
@click.option("--file", "files", multiple=True, type=_FILES, help="Send this file with the first message.")
@click.option("--image", "images", multiple=True, type=_FILES, help="Send this image with the first message.")
@click.option("--collection", metavar="NAME", help="Answer from this collection; see `tessera collections list`.")
@click.option("--ctx", type=TokenCount(16, 1 << 24), help="Context in tokens.  [default: as the model is loaded]")
@click.option(
    "--max-tokens",
    type=click.IntRange(1),
    help="Maximum tokens of an answer.  [default: the setting chat.max_tokens]",
)
@click.option("--temperature", "-t", type=Number(0, 5), help="0: always the most likely token.")
@click.option(
    "--seed",
    type=int,
    help="The same seed gives the same answer if no other request runs (exceptions: docs/api.md).",
)
@click.option(
    "--lora", multiple=True, metavar="NAME[=SCALE]", help="LoRA adapter that the server loaded with the model."
)
@click.option(
    "--device",
    metavar="DEVICE",
    help="Run MODEL on this device from now on, such as cpu or openvino:NPU; 'auto': Tessera chooses again.",
)
@click.option(
    "--draft", help="Smaller model with the same vocabulary that drafts tokens for MODEL; 'none' stops it."
)
@click.option(
    "--loop-guard/--no-loop-guard",
    default=True,
    help="End an answer that repeats the same passage, or turns into noise.",
)
@click.option(
    "--tools", multiple=True, metavar="NAME", help="Let the model use these tools, or 'all'; `tessera tools list`."
)
@click.option(
    "--deterministic", is_flag=True, help="Give the same tokens whatever else the server computes; slower."
)
@click.option(
    "--receipt",
    type=OutputFile(),
    help="Write the receipt of the (last) answer to this file, for `tessera replay`; implies --deterministic.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: answer, usage, timings.")
def command(
    model: str | None,
    words: tuple[str, ...],
    prompt: str | None,
    system: str | None,
    files: tuple[Path, ...],
    images: tuple[Path, ...],
    collection: str | None,
    ctx: int | None,
    max_tokens: int | None,
    temperature: float | None,
    seed: int | None,
    lora: tuple[str, ...],
    device: str | None,
    draft: str | None,
    loop_guard: bool,
    tools: tuple[str, ...],
    deterministic: bool,
    receipt: Path | None,
    as_json: bool,
) -> None:
    """Answer a prompt, or hold a conversation."""
    from app.cli.connection import answering, connected
    from app.cli.settings_defaults import checked_settings

    prompt = _prompt(words, prompt, needs_text=not (files or images))
    if as_json and prompt is None:
        raise click.UsageError("--json needs a prompt: PROMPT or --prompt.")
    settings = checked_settings()
    model = model or settings.text("chat.model") or None
    system = settings.text("chat.system_prompt") if system is None else system
    max_tokens = max_tokens or settings.integer("chat.max_tokens") or None
    values: dict[str, Any] = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    values["lora"] = [_adapter(choice) for choice in lora] or None
    values |= {
        "deterministic": deterministic or receipt is not None or None,
        "receipt": receipt is not None or None,
    }
    values["collection"] = collection
    options = {k: v for k, v in values.items() if v is not None} | {"loop_guard": loop_guard}

    def converse(client: "ChatClient", chosen: str) -> None:
        opened = _opened(tools) if tools else None
        try:
            from app.cli.conversation import Conversation

            chat = Conversation(client, chosen, system, options, opened, receipt)
            for path in (*files, *images):
                chat.attach(path, as_image=path in images)
            if ctx is not None:
                chat.load_with(ctx)
            _warn_of_small(client, chosen, files, prompt)
            if prompt is not None:
                chat.ask_once(prompt, as_json=as_json)
            else:
                _check(client, chosen)
                chat.talk()
        finally:
            if opened is not None:
                opened.close()

    if device is None and draft is None and ctx is None:
        with answering(model or "default") as client:
            converse(client, model or default_model(client))
        return
    # With a different device, draft model or context, do not first load the model with its previous options.
    with connected() as client:
        chosen = model or default_model(client)
        if device is not None:
            _pin_to_device(client, chosen, None if device == "auto" else device)
        if draft is not None:
            from engine.api.models import LoadRequest

            client.load(chosen, LoadRequest(draft="" if draft == "none" else draft))
        converse(client, chosen)


def _prompt(words: tuple[str, ...], prompt: str | None, *, needs_text: bool) -> str | None:
    """The prompt for a single response; None starts a conversation."""
    if words and prompt is not None:
        raise click.UsageError("The prompt appears twice: as PROMPT and with --prompt.")
    # As in Ollama, `run` takes all of stdin as one prompt; `chat` reads one message per line.
    takes_stdin = click.get_current_context().info_name == "run" and not sys.stdin.isatty()
    if not words and prompt is None and not takes_stdin:
        return None
    text = read_prompt(" ".join(words) if words else "-" if prompt is None else prompt)
    if needs_text and not (text or "").strip():
        raise click.UsageError("The prompt is empty.")
    return text


def _check(client: "ChatClient", model: str) -> None:
    """Check that the model exists; if its name looks like a prompt, print the right command. Raises: ApiError."""
    from app.client import ApiError

    try:
        _row(client, model)
    except ApiError:
        if len(model.split()) > 1:
            echo(f"To ask the default model: tessera chat -p {shlex.quote(model)}", err=True)
        raise


def _warn_of_small(client: "ChatClient", model: str, files: tuple[Path, ...], prompt: str | None) -> None:
    """Warn if a model is too small for a long text."""
    from app.format import parameters

    if not files and len(prompt or "") < _LONG_PROMPT:
        return
    count = _row(client, model).meta.n_params
    if 0 < count < _LEAST_PARAMETERS:
        echo(
            f"{model} has {parameters(count)} parameters, too few to be right about a text: it makes things up. "
            "Larger models: tessera models starters",
            fg="yellow",
            err=True,
        )


def _row(client: "ChatClient", model: str) -> "ModelRow":
    from app.client.transport import path_part
    from engine.api.chat import ModelRow

    return client.get(f"/v1/models/{path_part(model)}", ModelRow)


def _opened(names: tuple[str, ...]) -> "ChatTools":
    from app.cli.chat_tools import ChatTools
    from app.tools.mcp_config import BadMcpConfig

    try:
        return ChatTools(names)
    except BadMcpConfig as error:
        raise failed(error) from error


def _pin_to_device(client: "Client", model: str, device: str | None) -> None:
    """Pin the model and load it; print what placement or the check after loading changed."""
    client.pin(model, device)
    placed = client.placement(model).placement
    for reason in placed.reasons if device is not None else ():
        echo(str(reason), dim=True, err=True)
    for note in client.load(model).notes:
        echo(note, fg="yellow", err=True)


def default_model(client: "ChatClient") -> str:
    """The server's default model; prints a note if it is the demonstration model."""
    from engine.services import EngineFacade

    chosen = next((entry for entry in client.chat_models() if entry.default), None)
    if chosen is None:
        raise NotPossibleHere("There is no model yet. Get one with: tessera models pull NAME")
    if chosen.demo:
        reason = EngineFacade().why_no_default_model() or "There is no other chat model here."
        echo(
            f"{chosen.name} answers: a toy for demonstrations, often wrong. {reason}\n"
            "Get SmolLM2 135M with `python3 start.py model`, or any other with `tessera models pull NAME`.",
            dim=True,
            err=True,
        )
    return chosen.id


def _adapter(choice: str) -> dict[str, Any]:
    """Parse one `--lora` option into its request form."""
    name, _, scale = choice.partition("=")
    try:
        return {"name": name, "scale": float(scale or 1)}
    except ValueError:
        raise click.BadParameter(f"{choice!r} is not NAME or NAME=SCALE.", param_hint="--lora") from None
