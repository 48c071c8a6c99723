"""`tessera chat`: one answer, or a conversation."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from app.cli.echo import echo
from app.cli.phase_line import PhaseLine
from app.cli.stdin_prompt import asked
from app.tools.escape import shown_text

if TYPE_CHECKING:
    from app.cli.chat_tools import ChatTools
    from app.client import Answer, ChatClient, Client, ToolCall
    from engine.api.chat import Runaway

HELP = (
    "Type a message. Ctrl-C stops an answer, /continue goes on with it, Ctrl-D leaves. /new starts over, "
    "/help shows this."
)
_SHOWN_PASSAGE = 60
# A model that wants more rounds of calls for one question is lost.
MAX_ROUNDS = 12


@click.command(
    help="Chat with MODEL (default: a loaded model, else one you got, else the one that comes with Tessera)."
)
@click.argument("model", required=False)
@click.option(
    "--prompt", "-p", help="Ask this once, with text piped in below it, and leave; '-' is what is piped in alone."
)
@click.option("--system", "-s", help="System prompt.")
@click.option("--max-tokens", type=click.IntRange(1), help="Tokens an answer may have.")
@click.option("--temperature", "-t", type=click.FloatRange(0, 5), help="0: always the likeliest token.")
@click.option(
    "--seed",
    type=int,
    help="The same seed gives the same answer while the model answers nobody else (docs/api.md says where not).",
)
@click.option(
    "--lora", multiple=True, metavar="NAME[=SCALE]", help="LoRA adapter the server loaded with the model."
)
@click.option(
    "--device",
    metavar="DEVICE",
    help="Keep MODEL on this device from now on, such as cpu or openvino:NPU; 'auto': Tessera chooses again.",
)
@click.option("--draft", help="Smaller model of the same vocabulary that drafts tokens for MODEL; 'none': no more.")
@click.option(
    "--loop-guard/--no-loop-guard",
    default=True,
    help="End an answer that repeats the same passage again and again, or turns into noise.  [default: on]",
)
@click.option(
    "--tools", multiple=True, metavar="NAME", help="Let the model use these tools, or 'all'; `tessera tools list`."
)
@click.option("--deterministic", is_flag=True, help="The same tokens whatever else the server does; slower.")
@click.option(
    "--receipt",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    help="Write the receipt of the (last) answer to this file, for `tessera replay`; implies --deterministic.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: answer, usage, timings.")
def command(
    model: str | None,
    prompt: str | None,
    system: str | None,
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
    """Answer --prompt, or hold a conversation."""
    from app.cli.connection import answering, connected  # noqa: PLC0415 - the command's own imports wait until it runs

    prompt = asked(prompt)
    if as_json and prompt is None:
        raise click.UsageError("--json needs --prompt.")
    given: dict[str, Any] = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    given["lora"] = [_adapter(choice) for choice in lora] or None
    given |= {"deterministic": deterministic or receipt is not None or None, "receipt": receipt is not None or None}
    options = {k: v for k, v in given.items() if v is not None} | {"loop_guard": loop_guard}

    def converse(client: "ChatClient", chosen: str) -> None:
        opened = _opened(tools) if tools else None
        try:
            chat = Conversation(client, chosen, system, options, opened, receipt)
            if prompt is not None:
                chat.ask(prompt, as_json=as_json)
            else:
                chat.talk()
        finally:
            if opened is not None:
                opened.close()

    if device is None and draft is None:
        with answering(model or "default") as client:
            converse(client, model or default_model(client))
        return
    # A model that is to be kept elsewhere, or with a draft, must not be loaded as it was before.
    with connected() as client:
        chosen = model or default_model(client)
        if device is not None:
            _keep_on(client, chosen, None if device == "auto" else device)
        if draft is not None:
            from engine.api.models import LoadRequest  # noqa: PLC0415 - see above

            client.load(chosen, LoadRequest(draft="" if draft == "none" else draft))
        converse(client, chosen)


def _opened(names: tuple[str, ...]) -> "ChatTools":
    from app.cli.chat_tools import ChatTools  # noqa: PLC0415 - see command
    from app.tools.mcp_config import BadMcpConfig  # noqa: PLC0415 - see command

    try:
        return ChatTools(names)
    except BadMcpConfig as error:
        raise click.ClickException(str(error)) from error


def _keep_on(client: "Client", model: str, device: str | None) -> None:
    """Pin the model and load it; what dispatch or the check after the load changed is told."""
    client.pin(model, device)
    placed = client.placement(model).placement
    for reason in placed.reasons if device is not None else ():
        echo(reason, dim=True, err=True)
    for note in client.load(model).notes:
        echo(note, fg="yellow", err=True)


def default_model(client: "ChatClient") -> str:
    """The model the server names as its default; a toy is named as one."""
    from engine.services import Services  # noqa: PLC0415 - see command

    chosen = next((entry for entry in client.chat_models() if entry.default), None)
    if chosen is None:
        raise click.ClickException("There is no model yet. Get one with: tessera models pull NAME")
    if chosen.demo:
        reason = Services().why_no_default_model() or "There is no other chat model here."
        echo(
            f"{chosen.name} answers: a toy for demonstrations, often wrong. {reason}\n"
            "Get SmolLM2 135M with `python3 start.py model`, or any other with `tessera models pull NAME`.",
            dim=True,
            err=True,
        )
    return chosen.id


def _adapter(choice: str) -> dict[str, Any]:
    """One `--lora` as the request has it."""
    name, _, scale = choice.partition("=")
    try:
        return {"name": name, "scale": float(scale or 1)}
    except ValueError:
        raise click.BadParameter(f"{choice!r} is not NAME or NAME=SCALE.", param_hint="--lora") from None


def runaway_text(found: "Runaway") -> str:
    """Why an answer was ended, and how to get more of it."""
    if found.kind == "noise":
        why = "The answer was ended: it had turned into noise. A lower --temperature helps."
    else:
        shown = found.passage
        shown = shown if len(shown) <= _SHOWN_PASSAGE else shown[:_SHOWN_PASSAGE] + "…"
        why = f"The answer was ended: it said the same {found.times} times (\u201c{shown}\u201d)."
    return f"{why} /continue goes on with it; --no-loop-guard never ends one."


class Conversation:
    """A chat in the terminal. Answers go to stdout, everything about them to stderr."""

    def __init__(
        self,
        client: "ChatClient",
        model: str,
        system: str | None,
        options: dict[str, Any],
        tools: "ChatTools | None" = None,
        receipt_path: Path | None = None,
    ) -> None:
        self._client = client
        self._model = model
        self._system = system
        self._options = options
        self._tools = tools
        self._receipt_path = receipt_path
        self._messages = self._fresh()

    def _fresh(self) -> list[dict[str, Any]]:
        return [{"role": "system", "content": self._system}] if self._system else []

    def talk(self) -> None:
        """Read, answer, repeat."""
        echo(f"{self._model}. {HELP}", err=True)
        going_on = True
        while going_on:
            try:
                going_on = self._turn()
            except KeyboardInterrupt:  # at the prompt, or when an answer has just ended: the conversation goes on
                echo(err=True)

    def _turn(self) -> bool:
        """Read a line and do what it says; False: it was the last."""
        try:
            line = input("> ") if sys.stdin.isatty() else sys.stdin.readline()
        except EOFError:
            echo(err=True)
            return False
        if not line and not sys.stdin.isatty():
            return False
        line = line.strip()
        if line in ("/exit", "/quit", "/bye"):
            return False
        if line == "/new":
            self._messages = self._fresh()
        elif line == "/continue":
            self.go_on()
        elif line.startswith("/"):
            echo(HELP, err=True)
        elif line:
            self.ask(line, as_json=False)
        return True

    def ask(self, text: str, *, as_json: bool) -> None:
        """One turn."""
        self._messages.append({"role": "user", "content": text})
        self._answer("", as_json=as_json)

    def go_on(self) -> None:
        """More of the answer that was cut or stopped."""
        if not self._messages or self._messages[-1]["role"] != "assistant" or not self._messages[-1]["content"]:
            echo("There is no answer to continue.", err=True)
            return
        self._answer(self._messages[-1]["content"], as_json=False)

    def _answer(self, answer: str, *, as_json: bool) -> None:
        """Answer the last message, or go on where `answer` ended."""
        for _ in range(MAX_ROUNDS):
            calls = self._answer_once(answer, as_json=as_json)
            if not calls or self._tools is None:
                return
            self._messages[-1:] = self._tools.carry_out(str(self._messages[-1]["content"]), calls)
            answer = ""

    def _answer_once(self, answer: str, *, as_json: bool) -> "list[ToolCall]":
        """One answer; the calls it asks for, where it may make some."""
        options = {**self._options, "continue_final_message": True} if answer else dict(self._options)
        if self._tools is not None:
            options["tools"] = self._tools.as_openai()
        from app.client import ToolCalls  # noqa: PLC0415 - see command

        calls = ToolCalls()
        last: Answer | None = None
        stopped = False
        line = PhaseLine()
        stream = self._client.chat(self._model, self._messages, **options)
        try:
            for chunk in stream:
                answer += chunk.text
                calls.take(chunk.tool_calls)
                last = chunk
                if not as_json:
                    line.show(chunk.phase)
                    echo(shown_text(chunk.text), nl=False)
                    sys.stdout.flush()
        except KeyboardInterrupt:
            stopped = True
        finally:
            line.clear()
            stream.close()
        if self._messages[-1]["role"] == "assistant":
            self._messages.pop()
        self._messages.append({"role": "assistant", "content": answer})
        if calls.calls and self._tools is not None and not stopped:
            return calls.calls
        self._print_end(answer, last, stopped=stopped, as_json=as_json)
        return []

    def _print_end(self, answer: str, last: "Answer | None", *, stopped: bool, as_json: bool) -> None:
        """What is known at the end."""
        if self._receipt_path is not None and last is not None and last.receipt is not None:
            self._receipt_path.write_bytes(msgspec.json.format(msgspec.json.encode(last.receipt), indent=1))
        usage = last.usage if last else None
        timings = last.timings if last else None
        finish = "cancelled" if stopped else last.finish_reason if last else None
        if as_json:
            fields = {
                "model": self._model,
                "answer": answer,
                "finish_reason": finish,
                "usage": msgspec.to_builtins(usage),
                "timings": msgspec.to_builtins(timings),
                **({"runaway": msgspec.to_builtins(last.runaway)} if last and last.runaway else {}),
            }
            click.echo(json.dumps(fields, ensure_ascii=False))
            return
        echo()
        if last is not None and last.ran_on:
            echo(shown_text(last.ran_on), dim=True, err=True)
        if last is not None and last.runaway and not stopped:
            echo(runaway_text(last.runaway), fg="yellow", err=True)
        if stopped:
            echo("stopped", dim=True, err=True)
        elif usage and timings:
            speed = f"{timings.tok_s:.1f} tok/s, first token after {timings.ttft_s * 1000:.0f} ms"
            if timings.joules:
                speed += f", {timings.joules:.1f} J ({timings.tokens_per_joule:.3g} tokens per joule)"
            cut = ", cut at the limit" if finish == "length" and not (last and last.runaway) else ""
            echo(f"{usage.completion_tokens} tokens, {speed}{cut}", dim=True, err=True)
