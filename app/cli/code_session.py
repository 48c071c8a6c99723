"""The conversation of `tessera code` in a terminal."""

import contextlib
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from app.answer_facts import NO_FACTS
from app.cli.answer_text import AnswerText, print_end
from app.cli.echo import InputRefused, echo
from app.cli.line_editor import command_of, line_reader, unknown_command, whole_text
from app.cli.progress import PhaseLine
from app.client import ApiError, ChatDelta
from app.code.agent.checkpoints import Checkpoints
from app.code.agent.loop import Agent, ChatModel
from app.code.agent.mcp_tools import McpTools
from app.code.agent.models import ReplayedModel, ServerModel
from app.code.agent.tools import Toolbox
from app.code.agent.transcript import Transcript, read_transcript
from app.code.agent.types import (
    AgentEvent,
    AssistantTextEvent,
    Edited,
    Ended,
    PlanItem,
    Planned,
    Printed,
    Stepped,
    UserAsked,
)
from app.code.assistant import Assistant, repair_request
from app.code.context.items import Context
from app.code.diff_rows import file_change, file_diff
from app.code.edits.session import Proposal
from app.code.edits.types import Applied
from app.code.errors import GitFailed, UncommittedChanges
from app.format import counted
from app.tools.consent import Consent, ConsentRequest, Decision
from app.tools.loop import ToolCallEvent, ToolResultEvent
from app.tools.mcp_config import BadMcpConfig, read_mcp_config
from app.tools.types import ToolRefused, shown_text
from devices.errors import TesseraError

HELP = """Ask anything; point at parts with @file, @folder, @symbol:name, @diff (@src/a.py#10-40 for lines).
/context  what went in        /drop N   skip that part, ask again
/diff     the proposed edits  /apply [N ...]  apply all, or these    /undo  take the last back
/retry    send back the edits that have no place       /commit  suggest a commit message
/agent TASK  let the model work with tools             /new  start over    /quit
/steps    what the agent did      /back N   files and conversation as before step N, then /agent goes on
/changes  its plan and the diff of its whole session"""

_RUNAWAY = "A larger model, or a smaller question, helps."
_MARKS = {"open": "[ ]", "doing": "[>]", "done": "[x]"}


class CodeSession:
    """Reads lines and prints responses. Shows every edit and command before it writes or runs it."""

    def __init__(
        self,
        assistant: Assistant,
        max_steps: int = 30,
        mcp_file: Path | None = None,
        *,
        allow_uncommitted: bool = False,
    ) -> None:
        self._allow_uncommitted = allow_uncommitted
        self._interactive = False
        self._assistant = assistant
        self._talk = assistant.conversation
        self._project = self._talk.project
        self._max_steps = max_steps
        self._mcp_file = mcp_file
        self._context: Context | None = None
        self._question = ""
        self._excluded: frozenset[str] = frozenset()
        self._proposal: Proposal | None = None
        self._stopped = False
        self._vector_problem = ""
        self._agent: Agent | None = None
        self._is_back = False
        self._plan: list[PlanItem] = []
        self._commands: dict[str, Callable[[str], object]] = {
            "help": lambda _: echo(HELP),
            "context": lambda _: self._show_context(),
            "drop": self._drop,
            "diff": lambda _: self.diff(),
            "apply": lambda text: self.apply(tuple(int(n) for n in shlex.split(text) if n.isdecimal())),
            "undo": lambda _: self._undo(),
            "retry": lambda _: self._retry(),
            "commit": lambda _: self._stream(self._assistant.commit_message()),
            "agent": self.agent,
            "steps": lambda _: self._steps(),
            "back": self._back,
            "changes": lambda _: self._changes(),
            "new": lambda _: self._new(),
        }

    def index(self) -> None:
        """Update the index; print a line if files were parsed."""
        started_at = time.monotonic()
        done = self._project.index.refresh()
        if done.num_parsed:
            seconds = time.monotonic() - started_at
            echo(f"{counted(done.num_files, 'file')}, {done.num_parsed} indexed in {seconds:.1f} s", err=True)

    def ask_once(self, question: str) -> None:
        """Answer a prompt. Raises: KeyboardInterrupt: half an answer, which may hold half an edit."""
        self.ask(question)
        if self._stopped:
            raise KeyboardInterrupt

    def ask(self, question: str, excluded: frozenset[str] = frozenset()) -> None:
        """Answer a prompt and show the edits it proposes."""
        self._question, self._excluded = question, excluded
        self._context = self._talk.context_for(question, excluded=excluded)
        for omitted in self._context.left_out:
            if omitted.what.startswith("@"):
                echo(f"left out: {shown_text(omitted.what)}: {omitted.reason}", err=True)
        problem = self._talk.vectors.problem if self._talk.vectors is not None else ""
        if problem and problem != self._vector_problem:
            echo(f"keyword search only, not by meaning: {shown_text(problem)}", err=True)
        self._vector_problem = problem
        used, limit = self._context.used_tokens, self._context.budget_tokens
        echo(f"context: {counted(len(self._context.items), 'part')}, about {used} of {limit} tokens", err=True)
        self._stream(self._assistant.ask(question, self._context))
        self._proposal = self._talk.proposal()
        self._show_proposal(self._proposal)

    def _stream(self, answers: Iterator[ChatDelta]) -> None:
        line, written = PhaseLine(), AnswerText()
        facts = NO_FACTS
        self._stopped = False
        try:
            for answer in answers:
                facts = facts.updated(answer.facts)
                line.show(answer.phase)
                written.write(answer.text)
        except KeyboardInterrupt:
            self._stopped = True
        finally:
            line.clear()
        echo()
        print_end(facts, stopped=self._stopped, more=_RUNAWAY)

    def _show_proposal(self, proposal: Proposal) -> None:
        if proposal.applicable:
            echo(f"{len(proposal.applicable)} edits have a place: /diff shows, /apply writes them.", err=True)
        for refused in proposal.refused:
            what = "not applied by itself" if refused.offer else "refused"
            echo(f"{what}: {shown_text(refused.hunk.path)}: {refused.reason}", err=True)
        unreadable = Counter((edit.path or "an edit", edit.reason) for edit in proposal.malformed)
        for (path, reason), count in unreadable.items():
            times = f" ({count} times)" if count > 1 else ""
            echo(f"not readable: {shown_text(path)}: {reason}{times}", err=True)
        for path in proposal.held_back:
            echo(f"{shown_text(path)} stays as it is, because not all of its edits can be applied.", err=True)

    def diff(self) -> None:
        """Show the proposed edits, numbered."""
        if self._proposal is None:
            return
        for file in self._proposal.files:
            for hunk_id, outcome in zip(file.hunk_ids, file.result.outcomes, strict=True):
                applied = outcome if isinstance(outcome, Applied) else outcome.offer
                if applied is not None:
                    note = "" if applied.match == "exact" else f"  (differs from the file in {applied.match})"
                    what = shown_text(f"{file.path}{file_change(applied.hunk)}")
                    echo(f"[{hunk_id + 1}] {what}{note}", bold=True)
                    for line in file_diff(file, (hunk_id,)).splitlines()[2:]:
                        colour = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1])
                        echo(shown_text(line), fg=colour)

    def apply(self, numbers: tuple[int, ...]) -> bool:
        """Apply all edits that were located, or the numbered ones; False if some could not be applied."""
        if self._proposal is None or not (numbers or self._proposal.applicable):
            echo("There is nothing to apply: the answer contains no edit that can be applied as a whole.", err=True)
            return False
        chosen = [number - 1 for number in numbers] or None
        try:
            paths = self._write(self._proposal, chosen)
        except TesseraError as error:
            echo(shown_text(str(error)), err=True)
            return False
        if not paths:
            echo("There is nothing to apply: no edit of the answer has this number.", err=True)
            return False
        self._project.index.update(paths)
        echo(f"written: {shown_text(', '.join(paths))}  (/undo reverts it)", err=True)
        return not (self._proposal.refused or self._proposal.malformed)

    def _write(self, proposal: Proposal, chosen: list[int] | None) -> tuple[str, ...]:
        label = self._question[:80]
        try:
            return self._project.edits.apply(
                proposal, chosen, label=label, allow_uncommitted=self._allow_uncommitted
            )
        except (UncommittedChanges, GitFailed) as error:
            if not self._interactive or not click.confirm(f"{error}\nWrite anyway?"):
                raise
        return self._project.edits.apply(proposal, chosen, label=label, allow_uncommitted=True)

    def replay(self, file: Path) -> bool:
        """Replay a recorded session, with consent again; True if all of it could be replayed."""
        try:
            events = list(read_transcript(file))
        except ValueError:
            events = []
        if not events:
            raise InputRefused(f"{file} is not a recorded session.")
        task = next((event.text for event in events if isinstance(event, UserAsked)), str(file))
        return self.agent(task, ReplayedModel(iter(events)))

    def agent(self, task: str, model: ChatModel | None = None) -> bool:
        """Let the model work on a task; True if it ended with an answer."""
        stamp = time.strftime("%Y%m%d-%H%M%S")
        transcript = Transcript(self._project.state / "transcripts" / f"{stamp}.jsonl")

        def on_event(event: AgentEvent) -> None:
            transcript.add(event)
            _show_event(event)
            if isinstance(event, Planned):
                self._plan = event.items

        consent = Consent(_prompt_for_consent)
        toolbox = Toolbox(self._project.index, self._project.edits, consent, on_event)
        model = model or ServerModel(self._assistant.client, self._talk.model, self._talk.options)
        servers = []
        try:
            for config in read_mcp_config(self._mcp_file) if self._mcp_file else ():
                server = McpTools(config, self._project.workspace.root, consent)
                with contextlib.suppress(ToolRefused):
                    server.start()
                servers.append(server)
            if self._agent is None or not self._is_back:
                saved = Checkpoints(self._project.workspace, self._project.state / "checkpoints", stamp)
                self._agent = Agent(model, (), on_event, max_steps=self._max_steps, checkpoints=saved)
            self._is_back = False
            self._agent.model, self._agent.on_event = model, on_event
            self._agent.tools = [toolbox, *servers]
            try:
                return self._agent.work(task).reason == "answered"
            except KeyboardInterrupt:
                on_event(Ended("cancelled"))
                return False
        finally:
            for server in servers:
                server.stop()
            transcript.close()

    def talk(self, *, as_agent: bool = False) -> None:
        """Read lines until the end of input."""
        self._interactive = True
        echo(f"{self._project.workspace.root} with {self._talk.model}. /help shows the commands.")
        read = line_reader("code_history", {f"/{name}": None for name in (*self._commands, "quit")})
        while True:
            try:
                line = read().strip()
            except (EOFError, KeyboardInterrupt):
                echo()
                return
            command = command_of(line)
            if command is not None and command[0] in {"quit", "exit", "bye"}:
                return
            try:
                if command is None:
                    text = whole_text(line)
                    if text:
                        self.agent(text) if as_agent else self.ask(text)
                elif command[0] in self._commands:
                    self._commands[command[0]](whole_text(command[1]))
                else:
                    echo(unknown_command(command[0], (*self._commands, "quit")), err=True)
            except (TesseraError, BadMcpConfig, ApiError) as error:
                echo(shown_text(str(error)), err=True)

    def _show_context(self) -> None:
        for number, item in enumerate(self._context.items if self._context else (), 1):
            part = ", part of it" if item.partial else ""
            echo(f"{number:3} {item.num_tokens:6} tokens  {shown_text(item.title)}  ({item.reason}{part})")
        for omitted in self._context.left_out if self._context else ():
            echo(f"  - {shown_text(omitted.what)}: {omitted.reason}")

    def _drop(self, text: str) -> None:
        items = self._context.items if self._context else ()
        if text.isdecimal() and 0 < int(text) <= len(items):
            del self._talk.messages[-2:]
            self.ask(self._question, self._excluded | {items[int(text) - 1].key})
        else:
            echo("Which one? /context numbers them.", err=True)

    def _steps(self) -> None:
        steps = self._agent.steps if self._agent else []
        for number, step in enumerate(steps, 1):
            echo(f"{number:3}  {shown_text(step.call.tool)[:40]} {shown_text(step.call.arguments)[:100]}")
        if not steps:
            echo("The agent has made no step yet.", err=True)

    def _back(self, text: str) -> None:
        if self._agent is None or not text.isdecimal():
            echo("Back to before which step? /steps numbers them.", err=True)
            return
        restored = self._agent.back(int(text))
        self._is_back = True
        paths = (*restored.written, *restored.deleted)
        self._project.index.update(paths)
        echo(
            f"restored: {counted(len(restored.written), 'file')} written, {len(restored.deleted)} deleted.",
            err=True,
        )
        for path in restored.left:
            echo(f"not restored, because it was never saved: {shown_text(path)}", err=True)
        echo("/agent continues from here; /agent TASK with something new to do.", err=True)

    def _changes(self) -> None:
        _show_event(Planned(self._plan))
        diff = self._agent.changes() if self._agent else ""
        echo(shown_text(diff) if diff else "The agent has changed no file.")

    def _retry(self) -> None:
        if self._proposal is not None and (self._proposal.refused or self._proposal.malformed):
            self.ask(repair_request(self._proposal))
        else:
            echo("Every edit has a place.", err=True)

    def _undo(self) -> None:
        paths = self._project.edits.undo()
        self._project.index.update(paths)
        echo(f"taken back: {shown_text(', '.join(paths))}", err=True)

    def _new(self) -> None:
        del self._talk.messages[1:]
        self._context = self._proposal = None


def _prompt_for_consent(request: ConsentRequest) -> Decision:
    echo(f"\n{shown_text(str(request.title))}", bold=True)
    echo(shown_text(request.detail))
    if request.warning:
        echo(shown_text(request.warning), fg="yellow")
    try:
        answer = click.prompt("Allow? [y]es, [s]ession, [N]o", default="n", show_default=False).strip().lower()
    except (click.Abort, EOFError):
        return "no"
    return "once" if answer in {"y", "yes"} else "session" if answer in {"s", "session"} else "no"


def _show_event(event: AgentEvent) -> None:
    if isinstance(event, AssistantTextEvent) and event.text:
        echo(shown_text(event.text))
    elif isinstance(event, Stepped):
        echo(f"{event.number:3} ", fg="cyan", nl=False)
    elif isinstance(event, Printed):
        echo(shown_text(event.text), nl=False)
    elif isinstance(event, ToolCallEvent):
        echo(f"· {shown_text(event.tool)[:80]} {shown_text(event.arguments)[:160]}", fg="cyan")
    elif isinstance(event, ToolResultEvent) and not event.ok:
        echo(f"  {shown_text(event.text)[:300]}", fg="red")
    elif isinstance(event, Edited):
        echo(f"  {shown_text(event.path)}", bold=True)
        echo(shown_text(event.diff))
    elif isinstance(event, Planned):
        for item in event.items:
            echo(f"  {_MARKS[item.state]} {shown_text(item.text)}")
    elif isinstance(event, Ended) and event.reason != "answered":
        echo(f"stopped: {event.reason}. {shown_text(event.detail)}", fg="yellow")
