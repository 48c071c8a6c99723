"""Asking a file in a runner of its own: every case alone, at temperature 0, nothing kept from one to the next."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

import msgspec

from devices.errors import Cancelled
from engine.chat.chat_pipeline import Conversations, read
from engine.chat.events import CallArguments, CallStarted, TextDelta
from engine.chat.structured import ConstraintChecker
from engine.chat.template import TemplateRenderer
from engine.core.errors import EnvironmentFault, InputFault
from engine.core.types import Delta, GenerationRequest, SamplingParams
from engine.job_kinds.quantize.tasks import Task, TaskAnswer
from engine.runner.process import RunnerProcess
from engine.runner.protocol import LoadSettings
from quantize.measurements import CancelCheck

T = TypeVar("T")
# How often a running answer is left to see whether the job shall end.
_LOOK_S: Final = 0.2


async def ask_all(
    settings: LoadSettings,
    tasks: Sequence[tuple[str, Task]],
    on_answer: Callable[[str, Task, TaskAnswer], None],
    cancelled: CancelCheck,
) -> None:
    """Load the file; `on_answer` gets each answer. Raises: Cancelled. BadModelFile, RunnerDied: it does not run."""
    renderer, checker = TemplateRenderer(), ConstraintChecker()
    runner: RunnerProcess | None = None
    try:
        runner = await _while_wanted(RunnerProcess.start("llama", settings.path), cancelled)
        await _while_wanted(runner.load(settings), cancelled)
        conversations = Conversations(renderer, checker)
        for key, task in tasks:
            on_answer(key, task, await _while_wanted(_asked(runner, conversations, task), cancelled))
    finally:
        if runner is not None:
            await runner.stop()
        renderer.close()
        checker.close()


async def _while_wanted(work: Coroutine[Any, Any, T], cancelled: CancelCheck) -> T:
    """The result. Raises: Cancelled: the job ended meanwhile, and the work with it."""
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


async def _asked(runner: RunnerProcess, conversations: Conversations, task: Task) -> TaskAnswer:
    """One answer; a request that cannot be answered is a wrong one."""
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
    """So that an answer depends on nothing that was asked before."""
    return msgspec.structs.replace(
        request, cache_prompt=False, speculate=False, stream=False, priority="background"
    )
