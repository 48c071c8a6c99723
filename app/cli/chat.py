"""`tessera chat`: one answer, or a conversation."""

import json
import sys
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from app.client import Answer, Client

HELP = "Type a message. Ctrl-C stops an answer, Ctrl-D leaves. /new starts over, /help shows this."


@click.command(
    help="Chat with MODEL (default: a loaded model, else the first that can chat, else the bundled demo)."
)
@click.argument("model", required=False)
@click.option("--prompt", "-p", help="Ask this once and leave; '-' reads standard input.")
@click.option("--system", "-s", help="System prompt.")
@click.option("--max-tokens", type=click.IntRange(1), help="Longest answer, in tokens.")
@click.option("--temperature", "-t", type=click.FloatRange(0, 5), help="0 is deterministic.")
@click.option("--seed", type=int, help="Makes sampling repeatable.")
@click.option(
    "--lora", multiple=True, metavar="NAME[=SCALE]", help="LoRA adapter the server loaded with the model."
)
@click.option("--draft", help="Smaller model of the same vocabulary that guesses ahead for MODEL; 'none': no more.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: answer, usage, timings.")
def command(
    model: str | None,
    prompt: str | None,
    system: str | None,
    max_tokens: int | None,
    temperature: float | None,
    seed: int | None,
    lora: tuple[str, ...],
    draft: str | None,
    as_json: bool,
) -> None:
    """Answer --prompt, or hold a conversation."""
    from app.client import running_server  # noqa: PLC0415 - the command's own imports wait until it runs
    from app.server_process import ServerProcess  # noqa: PLC0415

    if prompt == "-":
        prompt = sys.stdin.read()
    if as_json and prompt is None:
        raise click.UsageError("--json needs --prompt.")
    given: dict[str, Any] = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    given["lora"] = [_adapter(choice) for choice in lora] or None
    options = {k: v for k, v in given.items() if v is not None}
    client = running_server()
    own = None
    if client is None:
        own = ServerProcess()
        client = own.connect()
    try:
        chosen = model or default_model(client)
        if draft is not None:
            client.post(f"/tessera/v1/models/{chosen}/load", {"draft": "" if draft == "none" else draft})
        chat = Conversation(client, chosen, system, options)
        if prompt is not None:
            chat.ask(prompt, as_json=as_json)
        else:
            chat.talk()
    finally:
        client.close()
        if own is not None:
            own.stop()


def default_model(client: "Client") -> str:
    """A loaded model, else the first one of the user's that chats, else the bundled demo."""
    models = client.models()
    if not models:
        raise click.ClickException("There is no model yet. Get one with: tessera models pull NAME")

    def rank(entry: dict[str, Any]) -> tuple[bool, bool, bool]:
        return entry["state"] != "loaded", "chat" not in entry["capabilities"], entry["id"] == "spark"

    return str(min(models, key=rank)["id"])


def _adapter(choice: str) -> dict[str, Any]:
    """One `--lora` as the request has it."""
    name, _, scale = choice.partition("=")
    try:
        return {"name": name, "scale": float(scale or 1)}
    except ValueError:
        raise click.BadParameter(f"{choice!r} is not NAME or NAME=SCALE.", param_hint="--lora") from None


class Conversation:
    """A chat in the terminal. Answers go to stdout, everything about them to stderr."""

    def __init__(self, client: "Client", model: str, system: str | None, options: dict[str, Any]) -> None:
        self._client = client
        self._model = model
        self._system = system
        self._options = options
        self._messages = self._fresh()

    def _fresh(self) -> list[dict[str, Any]]:
        return [{"role": "system", "content": self._system}] if self._system else []

    def talk(self) -> None:
        """Read, answer, repeat."""
        click.echo(f"{self._model}. {HELP}", err=True)
        while True:
            try:
                line = input("> ") if sys.stdin.isatty() else sys.stdin.readline()
            except EOFError:
                click.echo(err=True)
                return
            except KeyboardInterrupt:
                click.echo(err=True)
                continue
            if not line and not sys.stdin.isatty():
                return
            line = line.strip()
            if line in ("/exit", "/quit", "/bye"):
                return
            if line == "/new":
                self._messages = self._fresh()
            elif line.startswith("/"):
                click.echo(HELP, err=True)
            elif line:
                self.ask(line, as_json=False)

    def ask(self, text: str, *, as_json: bool) -> None:
        """One turn."""
        self._messages.append({"role": "user", "content": text})
        answer = ""
        last: Answer | None = None
        stopped = False
        stream = self._client.chat(self._model, self._messages, **self._options)
        try:
            for piece in stream:
                answer += piece.text
                last = piece
                if not as_json:
                    click.echo(piece.text, nl=False)
                    sys.stdout.flush()
        except KeyboardInterrupt:
            stopped = True
        finally:
            stream.close()  # type: ignore[attr-defined]  # a generator: closing it cancels the request
        self._messages.append({"role": "assistant", "content": answer})
        usage = last.usage if last else None
        timings = last.timings if last else None
        finish = "cancelled" if stopped else last.finish_reason if last else None
        if as_json:
            told = {
                "model": self._model,
                "answer": answer,
                "finish_reason": finish,
                "usage": usage,
                "timings": timings,
            }
            click.echo(json.dumps(told, ensure_ascii=False))
            return
        click.echo()
        if stopped:
            click.secho("stopped", dim=True, err=True)
        elif usage and timings:
            speed = f"{timings['tok_s']:.1f} tok/s, first token after {timings['ttft_s'] * 1000:.0f} ms"
            cut = ", cut at the limit" if finish == "length" else ""
            click.secho(f"{usage['completion_tokens']} tokens, {speed}{cut}", dim=True, err=True)
