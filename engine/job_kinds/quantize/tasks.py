"""Tasks of quality gates: cases with a prompt and a check of the response; the user's own come from a file."""

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from devices.child import BoundedChild, ChildFailed
from devices.msgspec_lock import learned
from engine.chat.query import ChatQuery
from engine.chat.types import Message
from engine.core.errors import InputFault
from engine.core.paths import whole_path
from engine.job_kinds.quantize.options import NAMED
from engine.job_kinds.quantize.regex_child import Search
from engine.message_catalog.reasons import because
from quantize.job.gate import GateTask

LEAST_CASES, MOST_CASES = 5, 500
_MOST_BYTES: Final = 4 << 20
_MOST_CHARS: Final = 32_000
_MOST_REGEX_CHARS: Final = 500
_USUAL_TOKENS: Final = 256
_CHARS_A_TOKEN: Final = 4  # characters per token, for a forecast
# Limits for a regex search: endless backtracking is the file's fault, not the response's.
_SEARCH_S: Final = 2.0
_SEARCH_BYTES: Final = 256 << 20


class TaskAnswer(msgspec.Struct, frozen=True):
    """One response: its text, and (name, arguments as JSON) of calls. `error`: why the request was rejected.

    `completed`: it continues the case's `completion`, because the model has no chat template.
    """

    text: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    error: str = ""
    completed: bool = False


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One case. `check` returns the reason why a response is wrong, or None.

    A model without a chat template continues `completion` instead, up to one of `stops`; if it is empty, every
    model gets the chat request.
    """

    name: str
    query: ChatQuery
    check: Callable[[TaskAnswer], str | None]
    completion: str = ""
    stops: tuple[str, ...] = ()


class TaskSet(msgspec.Struct, frozen=True, kw_only=True):
    """A task: its name, its size, and its cases, which are loaded only when needed.

    Responses are checked within the context `checking`, which holds the resources for it.
    """

    task: GateTask
    load: Callable[[], tuple[Task, ...]]
    checking: Callable[[], AbstractContextManager[object]] = nullcontext


TaskSets = Mapping[str, Callable[[], TaskSet]]


def task_set(gate: str, task_sets: TaskSets) -> TaskSet:
    """The task with that name, or from the file at that absolute path.

    Raises: InputFault, and errors of opening it.
    """
    if gate in task_sets:
        return task_sets[gate]()
    if gate in NAMED:
        raise InputFault(because("no_task", name=gate), "gate")
    return own_tasks(whole_path(gate, "gate"))


class _Line(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of a file: a `prompt`, and the `answer` in a right response or a `regex` that matches it."""

    prompt: Annotated[str, Meta(min_length=1, max_length=_MOST_CHARS)]
    answer: Annotated[str, Meta(min_length=1, max_length=_MOST_CHARS)] | None = None
    regex: Annotated[str, Meta(min_length=1, max_length=_MOST_REGEX_CHARS)] | None = None
    system: Annotated[str, Meta(max_length=_MOST_CHARS)] | None = None
    name: Annotated[str, Meta(max_length=100)] | None = None
    max_tokens: Annotated[int, Meta(ge=1, le=2048)] = _USUAL_TOKENS


def own_tasks(path: Path) -> TaskSet:
    """A user's own file: JSON Lines of `prompt` and `answer` or `regex`. Raises: InputFault: with the line."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InputFault(because("tasks_too_large", path=str(path), mib=_MOST_BYTES >> 20), "gate")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise InputFault(f"{path} cannot be read: {reason}.", "gate") from error
    lines = [_line(path, number, raw) for number, raw in enumerate(text.split("\n"), 1) if raw.strip()]
    if not LEAST_CASES <= len(lines) <= MOST_CASES:
        raise InputFault(
            because("number_of_tasks", path=str(path), n=len(lines), least=LEAST_CASES, most=MOST_CASES), "gate"
        )
    task = GateTask(
        name=path.name,
        cases=len(lines),
        prompt_tokens=sum(len(line.prompt) + len(line.system or "") for line in lines) // _CHARS_A_TOKEN,
        answer_tokens=sum(line.max_tokens for line in lines) // 2,
    )
    search = _Search()

    def load() -> tuple[Task, ...]:
        return tuple(_task(f"task {n}", line, search) for n, line in enumerate(lines, 1))

    return TaskSet(task=task, load=load, checking=lambda: closing(search))


def _line(path: Path, number: int, raw: str) -> _Line:
    try:
        line = msgspec.json.decode(raw, type=learned(_Line))
    except (ValueError, RecursionError) as error:
        raise InputFault(f"{path.name}, line {number}: {error}", "gate") from error
    if (line.answer is None) == (line.regex is None):
        raise InputFault(because("task_without_check", file=path.name, line=number), "gate")
    if line.answer is not None and not line.answer.strip():
        raise InputFault(because("task_answer_empty", file=path.name, line=number), "gate")
    if line.regex is not None:
        try:
            re.compile(line.regex)
        except (re.error, OverflowError, RecursionError) as error:
            raise InputFault(because("task_regex", file=path.name, line=number, why=str(error)), "gate") from error
    return line


def _task(name: str, line: _Line, search: "_Search") -> Task:
    system = (Message(role="system", content=line.system),) if line.system else ()
    query = ChatQuery(
        messages=(*system, Message(role="user", content=line.prompt)),
        max_tokens=line.max_tokens,
        sampling={"temperature": 0},
        loop_guard=True,
    )
    before = f"{line.system}\n\n" if line.system else ""

    def check(answer: TaskAnswer) -> str | None:
        if line.regex is not None:
            return None if search.finds(line.regex, answer.text) else "the pattern is not in the answer"
        return None if holds(answer.text, line.answer or "") else "the expected answer is not in it"

    return Task(name=line.name or name, query=query, check=check, completion=before + line.prompt)


def holds(text: str, answer: str) -> bool:
    """Whether a text contains the expected answer as whole words; case and whitespace do not matter."""
    words = r"\s+".join(re.escape(word) for word in answer.casefold().split())
    return re.search(rf"(?<!\w){words}(?!\w)", text.casefold()) is not None


class _Search:
    """Searches for patterns in a child process that can be ended."""

    def __init__(self) -> None:
        self._child = BoundedChild(
            "engine.job_kinds.quantize.regex_child", timeout_s=_SEARCH_S, memory_bytes=_SEARCH_BYTES
        )

    def finds(self, pattern: str, text: str) -> bool:
        """Whether the pattern matches a text. Raises: InputFault: the search times out."""
        try:
            reply = self._child.ask_blocking(msgspec.msgpack.encode(Search(pattern=pattern, text=text)))
        except ChildFailed as failure:
            problem = f"The regex {pattern!r} takes longer than {_SEARCH_S:g} s on an answer."
            raise InputFault(problem, "gate") from failure
        return msgspec.msgpack.decode(reply, type=bool)

    def close(self) -> None:
        """End the process; another search starts a new one."""
        self._child.close()
