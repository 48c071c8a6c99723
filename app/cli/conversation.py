"""Chats in the terminal: reads input, sends requests and runs slash commands."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from app.cli.answer_text import AnswerText, print_end
from app.cli.echo import InputRefused, NotPossibleHere, echo
from app.cli.line_editor import command_of, line_reader, unknown_command, whole_text
from app.cli.progress import PhaseLine
from app.cli.settings_defaults import Number, TokenCount
from app.tools.loop import MAX_ROUNDS
from app.tools.types import shown_text

if TYPE_CHECKING:
    from app.answer_facts import AnswerFacts, ToolCall
    from app.attachments import Document
    from app.cli.chat_tools import ChatTools
    from app.client import ChatClient
    from engine.api.collections import Citations

HELP = """Type a message. Ctrl-C stops an answer; Ctrl-D, /bye or /quit leave. Alt-Enter starts a new line.
Put several lines between \"\"\" and \"\"\"; pasted text stays one message. Tab completes commands and paths.
/new            start over                   /continue     go on with the last answer
/file PATH      attach a file or a picture   /system TEXT  set the system prompt (no TEXT: show it)
/set NAME VALUE set an option ("default" resets it; /set alone lists them)
/show           model, options and length    /help         this text
/save FILE      save the conversation        /load FILE    go on with a saved one"""
MORE = "/continue continues it; --no-loop-guard turns this check off."
_DEFAULT: Final = frozenset({"default", "none", "null"})
# Options of /set: request field and allowed values.
OPTIONS: Final[Mapping[str, "click.ParamType[Any]"]] = {
    "temperature": Number(0, 5),
    "top_p": Number(0, 1),
    "top_k": click.IntRange(0, 1 << 20),
    "min_p": Number(0, 1),
    "repeat_penalty": Number(0.01, 10),
    "seed": click.INT,
    "max_tokens": click.IntRange(1),
    "ctx": TokenCount(16, 1 << 24),
}
_OLLAMAS_NAMES: Final = {"num_ctx": "ctx", "num_predict": "max_tokens"}


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """File format of /save."""

    tessera_chat: int
    model: str
    system: str | None
    options: dict[str, Any]
    messages: list[dict[str, Any]]


class Conversation:
    """A chat in the terminal. Prints responses to stdout and everything else to stderr."""

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
        self._attached: list[Document] = []
        self._ctx: int | None = None
        self._stopped = False
        self._commands: dict[str, Callable[[str], None]] = {
            "new": lambda _: self._start_over(),
            "continue": lambda _: self.go_on(),
            "file": self._attach_named,
            "image": self._attach_named,
            "system": self._set_system,
            "set": self._set,
            "show": lambda _: self._show(),
            "save": self._save,
            "load": self._load,
            "help": lambda _: echo(HELP, err=True),
            "?": lambda _: echo(HELP, err=True),
        }

    def _fresh(self) -> list[dict[str, Any]]:
        return [{"role": "system", "content": self._system}] if self._system else []

    # ------------------------------------------------------------------ input

    def talk(self) -> None:
        """Read messages and answer them until the user leaves."""
        echo(f"{self._model}. /help shows the commands, Ctrl-D leaves.", err=True)
        read = line_reader(
            "chat_history",
            {
                **{f"/{name}": None for name in self._commands if name != "?"},
                **dict.fromkeys(("/file", "/image", "/save", "/load"), "path"),
                "/set": dict.fromkeys(OPTIONS),
                "/bye": None,
            },
        )
        going_on = True
        while going_on:
            try:
                going_on = self._turn(read)
            except KeyboardInterrupt:  # at the prompt, or just after a response: continue the conversation
                echo(err=True)

    def _turn(self, read: Callable[[], str]) -> bool:
        """Read a message or command and handle it; False ends the conversation."""
        from app.client import ApiError

        try:
            line = read()
        except EOFError:
            echo(err=True)
            return False
        if not line.strip():
            return True
        command = command_of(line.strip())
        if command is not None and command[0] in {"exit", "quit", "bye"}:
            return False
        before = list(self._messages)
        try:
            if command is None:
                self.ask(whole_text(line), as_json=False)
            elif command[0] in self._commands:
                self._commands[command[0]](command[1])
            else:
                echo(unknown_command(command[0], (*self._commands, "bye", "quit")), fg="yellow", err=True)
        except (ApiError, click.ClickException) as error:  # continue the conversation without this message
            self._messages = before
            echo(str(error) if isinstance(error, ApiError) else error.format_message(), fg="yellow", err=True)
            if command is None and self._attached:  # otherwise a file that is too long would fail every request
                names = ", ".join(document.name for document in self._attached)
                self._attached.clear()
                echo(f"{names}: no longer attached.", fg="yellow", err=True)
        return True

    # ------------------------------------------------------------------ commands

    def _start_over(self) -> None:
        self._messages = self._fresh()
        self._attached.clear()

    def attach(self, path: Path, *, as_image: bool = False) -> None:
        """Send a file or an image with the next message.

        Raises: InputRefused: it cannot be read, or is not an image although `as_image`.
        """
        from app.attachments import DocumentError, read

        try:
            document = read(path)
        except DocumentError as error:
            raise InputRefused(str(error)) from error
        if as_image and document.data is None:
            raise InputRefused(f"{path.name} is not an image; --file sends it as text.")
        self._attached.append(document)

    def _attach_named(self, argument: str) -> None:
        if not argument:
            raise InputRefused("Which file? /file PATH")
        path = _path(argument)
        self.attach(path)
        echo(f"{path.name} goes with your next message.", dim=True, err=True)

    def _set_system(self, argument: str) -> None:
        if not argument:
            echo(self._system or "There is no system prompt.", err=True)
            return
        text = whole_text(argument)
        self._system = "" if text == '""' else text
        if self._messages and self._messages[0]["role"] == "system":
            self._messages.pop(0)
        self._messages = [*self._fresh(), *self._messages]

    def _set(self, argument: str) -> None:
        """`temperature 0.3`; also `parameter temperature 0.3` and `system TEXT`, as in Ollama."""
        words = argument.removeprefix("parameter ").split(maxsplit=1)
        if not words:
            self._show_options()
            return
        if words[0] == "system":
            self._set_system(words[1] if len(words) > 1 else "")
            return
        name = _OLLAMAS_NAMES.get(words[0], words[0])
        if name not in OPTIONS:
            raise InputRefused(f"There is no option {words[0]!r}. Options: {', '.join(OPTIONS)}.")
        if len(words) == 1:
            value = self._ctx if name == "ctx" else self._options.get(name)
            echo(f"{name} {'default' if value is None else value}", err=True)
            return
        if words[1].lower() in _DEFAULT:
            self._options.pop(name, None)
            self._ctx = None if name == "ctx" else self._ctx
            return
        value = OPTIONS[name].convert(words[1], None, None)
        if name == "ctx":
            self.load_with(value)
        else:
            self._options[name] = value

    def load_with(self, ctx: int) -> None:
        """Load the model with this context length; print the actual length if it is smaller."""
        from app.client.transport import OURS, path_part
        from engine.api.models import LoadedModel, LoadRequest

        self._ctx = ctx
        where = f"{OURS}/models/{path_part(self._model)}/load"
        loaded = self._client.post(where, LoadedModel, LoadRequest(n_ctx=ctx))
        if loaded.n_ctx < ctx:
            echo(
                f"{self._model} has a context of {loaded.n_ctx} tokens, not {ctx}: it was trained for no more, or "
                "others use it now.",
                fg="yellow",
                err=True,
            )

    def _show_options(self) -> None:
        for name in OPTIONS:
            value = self._ctx if name == "ctx" else self._options.get(name)
            echo(f"{name:<15} {'default' if value is None else value}", err=True)

    def _show(self) -> None:
        questions = sum(message["role"] == "user" for message in self._messages)
        echo(f"{'model':<15} {self._model}", err=True)
        echo(f"{'system':<15} {self._system or 'none'}", err=True)
        echo(f"{'questions':<15} {questions}", err=True)
        for document in self._attached:
            echo(f"{'attached':<15} {document.name}", err=True)
        self._show_options()

    def _save(self, argument: str) -> None:
        from devices.atomic_file import write_atomically

        if not argument:
            raise InputRefused("Where? /save FILE")
        path = _path(argument)
        if path.exists() and _saved(path) is None:
            raise InputRefused(f"{path} is not a saved conversation; it is not overwritten.")
        if not path.parent.is_dir():
            raise InputRefused(f"There is no folder {path.parent}. Create it first, or save somewhere else.")
        saved = Saved(
            tessera_chat=1,
            model=self._model,
            system=self._system,
            options={name: self._options[name] for name in OPTIONS if name in self._options},
            messages=self._messages,
        )
        try:
            write_atomically(path, msgspec.json.format(msgspec.json.encode(saved), indent=1), mode=0o600)
        except OSError as error:
            raise NotPossibleHere(f"{path}: {error.strerror or error}") from error
        echo(f"Saved to {path}. /load {argument} continues it.", dim=True, err=True)

    def _load(self, argument: str) -> None:
        path = _path(argument)
        if not argument or not path.is_file():
            raise InputRefused(f"There is no file {path}." if argument else "Which one? /load FILE")
        saved = _saved(path)
        if saved is None:
            raise InputRefused(f"{path} is not a conversation that /save wrote.")
        self._system, self._messages = saved.system, saved.messages
        for name, value in saved.options.items():
            if name in OPTIONS:
                self._options[name] = OPTIONS[name].convert(value, None, None)
        questions = sum(message["role"] == "user" for message in self._messages)
        words = f"{questions} question{'' if questions == 1 else 's'} loaded."
        if saved.model != self._model:
            words += f" {saved.model} answered them; {self._model} continues."
        echo(words, dim=True, err=True)

    # ------------------------------------------------------------------ answers

    def ask_once(self, prompt: str, *, as_json: bool) -> None:
        """Answer a prompt. Raises: KeyboardInterrupt: the answer was stopped, and its text so far is printed."""
        self.ask(prompt, as_json=as_json)
        if self._stopped:
            raise KeyboardInterrupt

    def ask(self, text: str, *, as_json: bool) -> None:
        """Send one message with the attached files."""
        self._messages.append({"role": "user", "content": self._content(text)})
        self._answer("", as_json=as_json)
        self._attached.clear()

    def _content(self, text: str) -> str | list[dict[str, Any]]:
        if not self._attached:
            return text
        from app.attachments import document_text, image_part

        texts = [document_text(item.name, item.text) for item in self._attached if item.data is None]
        pictures = [image_part(item.mime, item.data) for item in self._attached if item.data is not None]
        whole = "\n\n".join([*texts, text])
        return [*pictures, {"type": "text", "text": whole}] if pictures else whole

    def go_on(self) -> None:
        """Continue a response that was cut or stopped."""
        if not self._messages or self._messages[-1]["role"] != "assistant" or not self._messages[-1]["content"]:
            echo("There is no answer to continue.", err=True)
            return
        self._answer(self._messages[-1]["content"], as_json=False)

    def _answer(self, answer: str, *, as_json: bool) -> None:
        """Answer the last message, or continue after the text `answer`."""
        for _ in range(MAX_ROUNDS):
            calls = self._answer_once(answer, as_json=as_json)
            if not calls or self._tools is None:
                return
            self._messages[-1:] = self._tools.carry_out(str(self._messages[-1]["content"]), calls)
            answer = ""

    def _answer_once(self, answer: str, *, as_json: bool) -> "list[ToolCall]":
        """Stream one response; return its tool calls if tools are enabled."""
        options = {**self._options, "continue_final_message": True} if answer else dict(self._options)
        if self._tools is not None:
            options["tools"] = self._tools.as_openai()
        from app.answer_facts import NO_FACTS
        from app.client import ToolCalls

        calls = ToolCalls()
        facts = NO_FACTS
        self._stopped = False
        line, written = PhaseLine(), AnswerText()
        stream = self._client.chat(self._model, self._messages, **options)
        try:
            for chunk in stream:
                answer += chunk.text
                calls.take(chunk.tool_calls)
                facts = facts.updated(chunk.facts)
                if not as_json:
                    line.show(chunk.phase)
                    written.write(chunk.text)
        except KeyboardInterrupt:
            self._stopped = True
        finally:
            line.clear()
            stream.close()
        if self._messages[-1]["role"] == "assistant":
            self._messages.pop()
        self._messages.append({"role": "assistant", "content": answer})
        if calls.calls and self._tools is not None and not self._stopped:
            return calls.calls
        self._print_end(answer, facts, as_json=as_json)
        if facts.grounds is not None and not as_json:
            print_grounds(facts.grounds)
        return []

    def _print_end(self, answer: str, facts: "AnswerFacts", *, as_json: bool) -> None:
        """Print the statistics at the end of a response."""
        if self._receipt_path is not None and facts.receipt is not None:
            self._receipt_path.write_bytes(msgspec.json.format(msgspec.json.encode(facts.receipt), indent=1))
        if not as_json:
            echo()
            print_end(facts, stopped=self._stopped, more=MORE)
            return
        fields = {
            "model": self._model,
            "answer": answer,
            "finish_reason": "cancelled" if self._stopped else facts.finish_reason or None,
            "usage": msgspec.to_builtins(facts.usage),
            "timings": msgspec.to_builtins(facts.timings),
            **({"runaway": msgspec.to_builtins(facts.runaway)} if facts.runaway else {}),
        }
        click.echo(json.dumps(fields, ensure_ascii=False))


def print_grounds(grounds: "Citations") -> None:
    """Print to stderr the source passages of a response."""
    echo(f"\n{shown_text(grounds.why)}", err=True)
    for number, passage in enumerate(grounds.passages, 1):
        echo(shown_text(f"[{number}] {passage.path}, {passage.label or f'part {passage.page}'}"), err=True)
    unsure = [c for c in grounds.checked if not c.carried]
    if unsure:
        line = f"The words of {len(unsure)} of {len(grounds.checked)} sentences were not found in these passages"
        doubtful = sum(bool(c.doubt) for c in unsure)
        echo(f"{line}{f', or say something else there ({doubtful})' if doubtful else ''}.", err=True)


def _path(argument: str) -> Path:
    """The path in a command's argument, with or without quotes."""
    if len(argument) > 1 and argument[0] == argument[-1] and argument[0] in "'\"":
        argument = argument[1:-1]
    return Path(argument).expanduser()


def _saved(path: Path) -> Saved | None:
    """Read a conversation from a file; None if it is not one."""
    try:
        saved = msgspec.json.decode(path.read_bytes(), type=Saved)
    except (OSError, ValueError, RecursionError):
        return None
    return saved if all({"role", "content"} <= message.keys() for message in saved.messages) else None
