"""Run the cases of the tool-call evaluation on a model and store the result for its model card."""

import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from app.answer_facts import ToolCall
from app.client import ApiError, Routes, ServerUnreachable
from app.code.agent.models import ServerModel
from app.evals.tool_calls.cases import Case
from app.evals.tool_calls.suite import suite
from app.tools.types import ToolRefused, decode_arguments
from devices.atomic_file import write_atomically
from devices.msgspec_lock import learned

# Increase it when cases change, so that only results of the same cases are compared.
SUITE_VERSION = 1
OWN = "own"
# Enough for any correct response; a verbose model has failed already.
MAX_TOKENS = 400


class CaseResult(msgspec.Struct, frozen=True):
    """Result of one case; `reason` is the cause of a failure."""

    name: str
    category: str
    passed: bool
    elapsed_s: float
    reason: str | None = None


class Certificate(msgspec.Struct, frozen=True):
    """Results of all cases for one model; `native_tools` is True if the model's template supports tools."""

    model: str
    suite_version: int
    made_at: float
    context: int
    results: list[CaseResult]
    suite: str = OWN
    native_tools: bool = True

    @property
    def num_passed(self) -> int:
        """Number of cases passed."""
        return sum(result.passed for result in self.results)

    @property
    def pass_frac(self) -> float:
        """Fraction of cases passed."""
        return self.num_passed / len(self.results) if self.results else 0.0

    def by_category(self) -> dict[str, tuple[int, int]]:
        """Map each category to (passed, total), in the order of the suite."""
        categories: dict[str, tuple[int, int]] = {}
        for result in self.results:
            passed, total = categories.get(result.category, (0, 0))
            categories[result.category] = (passed + result.passed, total + 1)
        return categories


def certify(
    client: Routes,
    model: str,
    context: int,
    *,
    cases: Iterable[Case] | None = None,
    suite_name: str = OWN,
    native_tools: bool = True,
    on_result: Callable[[CaseResult], None] | None = None,
) -> Certificate:
    """Run all cases one after another with greedy sampling.

    Raises: ServerUnreachable.
    """
    results = []
    for case in suite() if cases is None else cases:
        result = run_case(client, model, case)
        results.append(result)
        if on_result is not None:
            on_result(result)
    return Certificate(model, SUITE_VERSION, time.time(), context, results, suite_name, native_tools)


class _Notes(msgspec.Struct, frozen=True):
    notes: tuple[str, ...] = ()


class _Answer(msgspec.Struct, frozen=True):
    tessera: _Notes = _Notes()


def template_has_tools(client: Routes, model: str) -> bool:
    """Return True if the model's template supports tools; otherwise Tessera uses the generic dialect.

    Raises: ApiError, ServerUnreachable.
    """
    tool = {"type": "function", "function": {"name": "noop", "parameters": {"type": "object", "properties": {}}}}
    body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "tools": [tool], "max_tokens": 1}
    answer = client.post("/v1/chat/completions", _Answer, body)
    return not any("has no tools" in note for note in answer.tessera.notes)


def run_case(client: Routes, model: str, case: Case) -> CaseResult:
    """Send one request and check the response."""
    started_at = time.monotonic()
    defaults = {"temperature": 0, "max_tokens": MAX_TOKENS, "loop_guard": True, "deterministic": True}
    options: dict[str, Any] = {**defaults, **case.options}
    try:
        turn = ServerModel(client, model, options).turn(list(case.messages), list(case.tools))
        reason = checked(case, turn.text, turn.calls)
    except ServerUnreachable:  # no fault of the model
        raise
    except ApiError as error:
        reason = f"{error.code}: {error.message}"
    return CaseResult(case.name, case.category, reason is None, time.monotonic() - started_at, reason)


def checked(case: Case, text: str, tool_calls: Iterable[ToolCall]) -> str | None:
    """Reason why a response with these calls is wrong, or None."""
    calls = []
    for call in tool_calls:
        try:
            calls.append((call.name, decode_arguments(call.name, call.arguments)))
        except ToolRefused as error:
            return f"{error} {call.arguments[:120]!r}"
    return case.check(text, calls)


class CertificateStore:
    """Evaluation results per model, in the state folder."""

    def __init__(self, state: Path) -> None:
        self._folder = state / "certificates"

    def save(self, certificate: Certificate) -> Path:
        """Store a result; replaces an older one of the model."""
        path = self._path(certificate.model, certificate.suite)
        write_atomically(path, msgspec.json.encode(certificate))
        return path

    def load(self, model: str, suite_name: str = OWN) -> Certificate | None:
        """The model's result, if it belongs to the current suite version."""
        try:
            certificate = msgspec.json.decode(self._path(model, suite_name).read_bytes(), type=learned(Certificate))
        except (OSError, ValueError, RecursionError):
            return None
        return certificate if (certificate.model, certificate.suite_version) == (model, SUITE_VERSION) else None

    def _path(self, model: str, suite_name: str) -> Path:
        ending = ".json" if suite_name == OWN else f".{suite_name}.json"
        return self._folder / (re.sub(r"[^A-Za-z0-9._-]", "_", model).lstrip(".") + ending)
