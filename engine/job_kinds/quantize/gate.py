"""Evaluates a file for a quality gate: runs a task's cases and caches the responses by the file's hash."""

import asyncio
import os
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack, suppress
from hashlib import sha256 as hash_of
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from devices.errors import Cancelled
from devices.msgspec_lock import learned
from engine.chat.chat_pipeline import Conversations, read
from engine.chat.structured import ConstraintChecker
from engine.chat.template import TemplateRenderer
from engine.chat.types import CallArguments, CallStarted, TextDelta
from engine.core.errors import EnvironmentFault, InputFault, NotEnoughMemory
from engine.core.types import Delta, GenerationRequest, SamplingParams
from engine.job_kinds.quantize.tasks import Task, TaskAnswer, TaskSet, TaskSets, task_set
from engine.placement.load_settings import default_context, usable_cores
from engine.placement.memory_admission import MemoryAdmission
from engine.placement.placer import Placer, read_shape
from engine.remotes.llama_cpp_build import kernel_name
from engine.runner.process import RunnerProcess
from engine.runner.protocol import LoadSettings
from quantize.job.gate_run import Answered
from quantize.measurements import CancelCheck, OnProgress, Progress

_LEAST_CONTEXT: Final = 1024
_CHARS_A_TOKEN: Final = 2.5  # characters per token of the densest text in a task
_TEMPLATE_TOKENS: Final = 256  # tokens that a template adds to a case
_OWNER: Final = "asking a task"
_MOST_FILES: Final = 100  # maximum number of files with cached responses; those of 500 cases take about 500 kB


class GateService(msgspec.Struct, frozen=True):
    """Runs the tasks of quality gates: `named` are the built-in tasks, `cache` is the folder for responses."""

    placer: Placer
    admission: MemoryAdmission
    cache: Path
    named: TaskSets

    def tasks(self, gate: str) -> TaskSet:
        """The cases of a gate. Raises: InputFault, EnvironmentFault."""
        return task_set(gate, self.named)

    def judge(self, tasks: TaskSet) -> "RunnerJudge":
        """A judge for the tasks; loads everything that the cases need. Raises: InputFault, EnvironmentFault."""
        return RunnerJudge(self, tasks)


class RunnerJudge:
    """Implements `quantize.job.gate_run.GateEvaluator`."""

    def __init__(self, gates: GateService, tasks: TaskSet) -> None:
        self._gates = gates
        self._tasks = tasks.load()
        self._checking = tasks.checking

    def fits(self, model: Path) -> bool:
        """Whether the file fits in the memory that is free now."""
        try:
            with ExitStack() as stack:
                self._admitted(self._settings(model), stack)
        except NotEnoughMemory:
            return False
        return True

    def ask(self, model: Path, sha256: str, on_progress: OnProgress, cancelled: CancelCheck) -> Answered:
        """Run the cases without a cached response.

        Raises: Cancelled. BadModelFile, RunnerDied, NotEnoughMemory. OSError.
        """
        saved = SavedAnswers(self._gates.cache / "gate" / f"{sha256}.jsonl")
        keys = [_key(task) for task in self._tasks]
        unanswered = [(key, task) for key, task in zip(keys, self._tasks, strict=True) if key not in saved.answers]
        total = float(len(keys))
        done = total - len(unanswered)

        def on_answer(key: str, task: Task, answer: TaskAnswer) -> None:
            nonlocal done
            saved.add(key, answer)
            done += 1
            on_progress(Progress(phase="gate", done=done, total=total, detail=task.name))

        if unanswered:
            with ExitStack() as stack:
                settings = self._settings(model)
                self._admitted(settings, stack)
                asyncio.run(ask_all(settings, unanswered, on_answer, cancelled))
        passed = []
        with self._checking():
            for key, task in zip(keys, self._tasks, strict=True):
                if cancelled():
                    raise Cancelled
                answer = saved.answers[key]
                passed.append(not answer.error and task.check(answer) is None)
        return Answered(tuple(passed), len(unanswered))

    def _settings(self, model: Path) -> LoadSettings:
        shape = read_shape(str(model))
        n_ctx = default_context(shape.context_train, max(map(_tokens, self._tasks), default=_LEAST_CONTEXT))
        cores = usable_cores()
        base = LoadSettings(
            path=str(model), n_ctx=n_ctx, kv_cells=n_ctx, n_parallel=1, n_threads=cores, n_threads_batch=cores
        )
        return self._gates.placer.judge_shape(_OWNER, shape, base).settings

    def _admitted(self, settings: LoadSettings, stack: ExitStack) -> None:
        self._gates.admission.reserve_now(_OWNER, settings)
        stack.callback(self._gates.admission.release, _OWNER)


def _tokens(task: Task) -> int:
    """Upper estimate of the tokens of a task's prompt and its longest response."""
    query = task.query
    chars = sum(len(m.text()) for m in query.messages) + sum(len(str(t.parameters)) for t in query.tools)
    needed = max(chars, len(task.completion)) / _CHARS_A_TOKEN + (query.max_tokens or 0) + _TEMPLATE_TOKENS
    return max(_LEAST_CONTEXT, -(-int(needed) // 256) * 256)


def _key(task: Task) -> str:
    """Cache key of a response: everything it depends on except the file."""
    parts = (msgspec.json.encode(task.query), task.completion.encode(), repr(task.stops).encode())
    return hash_of(b"\0".join((kernel_name().encode(), *parts))).hexdigest()[:32]


class SavedAnswers:
    """The responses of one file, one per line; they survive a kill.

    At most `most` files' responses are stored, the most recently used ones.
    """

    def __init__(self, path: Path, most: int = _MOST_FILES) -> None:
        self._most = most
        self._path = path
        self.answers: dict[str, TaskAnswer] = {}
        try:
            lines = path.read_bytes().split(b"\n")
            os.utime(path)
        except OSError:
            lines = []
        for line in lines:
            try:
                key, answer = msgspec.json.decode(line, type=learned(tuple[str, TaskAnswer]))
            except (ValueError, RecursionError):
                continue  # truncated
            self.answers[key] = answer

    def add(self, key: str, answer: TaskAnswer) -> None:
        """Store one more response, readable only by the owner. Raises: OSError."""
        self.answers[key] = answer
        if not self._path.exists():
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._forget()
        with self._path.open("ab") as file:
            file.write(b"\n" + msgspec.json.encode((key, answer)) + b"\n")

    def _forget(self) -> None:
        """Delete the oldest files to make space for one more."""
        old = []
        for path in self._path.parent.glob("*.jsonl"):
            with suppress(OSError):  # another job deleted it first
                old.append((path.stat().st_mtime_ns, path))
        for _, path in sorted(old, reverse=True)[self._most - 1 :]:
            path.unlink(missing_ok=True)


T = TypeVar("T")
# Interval in seconds for checking whether the job was cancelled.
_LOOK_S: Final = 0.2


async def ask_all(
    settings: LoadSettings,
    tasks: Sequence[tuple[str, Task]],
    on_answer: Callable[[str, Task, TaskAnswer], None],
    cancelled: CancelCheck,
) -> None:
    """Load the file and run the tasks; `on_answer` gets each response.

    Raises: Cancelled. BadModelFile, RunnerDied: it does not run.
    """
    renderer, checker = TemplateRenderer(), ConstraintChecker()
    runner: RunnerProcess | None = None
    try:
        runner = await _until_cancelled(RunnerProcess.start("llama", settings.path), cancelled)
        await _until_cancelled(runner.load(settings), cancelled)
        conversations = Conversations(renderer, checker)
        for key, task in tasks:
            on_answer(key, task, await _until_cancelled(_generate(runner, conversations, task), cancelled))
    finally:
        if runner is not None:
            await runner.stop()
        renderer.close()
        checker.close()


async def _until_cancelled(work: Coroutine[Any, Any, T], cancelled: CancelCheck) -> T:
    """The result of `work`. Raises: Cancelled: the job was cancelled, and the work with it."""
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            if cancelled():
                raise Cancelled
            await asyncio.wait({task}, timeout=_LOOK_S)
    finally:
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    return task.result()


async def _generate(runner: RunnerProcess, conversations: Conversations, task: Task) -> TaskAnswer:
    """One response; a request that is rejected counts as a wrong response."""
    assert runner.facts is not None
    try:
        if task.completion and not runner.facts.chat_template:
            return await _completed(runner, task)
        chat = await conversations.prepare(runner.facts, task.query)
        text: list[str] = []
        calls: list[list[str]] = []
        async for event in read(chat.answer(), runner.generate(_alone(chat.request))):
            if isinstance(event, TextDelta):
                text.append(event.text)
            elif isinstance(event, CallStarted):
                calls.append([event.name, ""])
            elif isinstance(event, CallArguments):
                calls[event.index][1] += event.delta
    except EnvironmentFault:
        raise
    except InputFault as error:
        return TaskAnswer(error=str(error))
    return TaskAnswer("".join(text), tuple((name, arguments) for name, arguments in calls))


async def _completed(runner: RunnerProcess, task: Task) -> TaskAnswer:
    request = GenerationRequest(
        prompt=task.completion,
        max_tokens=task.query.max_tokens,
        stop=task.stops,
        sampling=SamplingParams(temperature=0),
        loop_guard=True,
    )
    pieces = [event.text async for event in runner.generate(_alone(request)) if isinstance(event, Delta)]
    return TaskAnswer("".join(pieces), completed=True)


def _alone(request: GenerationRequest) -> GenerationRequest:
    """Request options that make a response independent of earlier requests."""
    return msgspec.structs.replace(
        request, cache_prompt=False, speculate=False, stream=False, priority="background"
    )
