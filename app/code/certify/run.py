"""Run the certificate's cases against a model, and keep the result where its card finds it."""

import json
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from app.client import ApiError, Client
from app.code.agent.models import ServerModel
from app.code.certify.cases import Case
from app.code.certify.suite import suite

# Raised when cases change, so that only like is compared with like.
SUITE_VERSION = 1
# Enough for any right answer; a model that talks on has failed already.
_MAX_TOKENS = 400


class CaseResult(msgspec.Struct, frozen=True):
    """One case; `reason` says why it failed."""

    name: str
    category: str
    passed: bool
    elapsed_s: float
    reason: str | None = None


class Certificate(msgspec.Struct, frozen=True):
    """All cases of one model. `skipped` did not fit its context or are not supported, and count as failed."""

    model: str
    suite_version: int
    made_at: float
    context: int
    results: list[CaseResult]

    @property
    def num_passed(self) -> int:
        """Cases that passed."""
        return sum(result.passed for result in self.results)

    @property
    def pass_frac(self) -> float:
        """Share of the cases that passed."""
        return self.num_passed / len(self.results) if self.results else 0.0

    def by_category(self) -> dict[str, tuple[int, int]]:
        """Category: (passed, all), in the order of the suite."""
        found: dict[str, tuple[int, int]] = {}
        for result in self.results:
            passed, total = found.get(result.category, (0, 0))
            found[result.category] = (passed + result.passed, total + 1)
        return found


def certify(
    client: Client,
    model: str,
    context: int,
    *,
    cases: Iterable[Case] | None = None,
    on_result: Callable[[CaseResult], None] | None = None,
) -> Certificate:
    """Run every case, greedily, one after another.

    Raises: ServerUnreachable.
    """
    results = []
    for case in suite() if cases is None else cases:
        result = run_case(client, model, case)
        results.append(result)
        if on_result is not None:
            on_result(result)
    return Certificate(model, SUITE_VERSION, time.time(), context, results)


def run_case(client: Client, model: str, case: Case) -> CaseResult:
    """Ask once and check the answer."""
    begun = time.monotonic()
    options: dict[str, Any] = {"temperature": 0, "max_tokens": _MAX_TOKENS, **case.options}
    try:
        turn = ServerModel(client, model, options).turn(list(case.messages), list(case.tools))
        reason = _checked(case, turn.text, turn.calls)
    except ApiError as error:
        reason = f"{error.code}: {error.message}"
    return CaseResult(case.name, case.category, reason is None, time.monotonic() - begun, reason)


def _checked(case: Case, text: str, made: Iterable[tuple[str, str, str]]) -> str | None:
    calls = []
    for _, name, arguments in made:
        try:
            value = json.loads(arguments or "{}")
        except ValueError:
            return f"the arguments of {name} are no JSON: {arguments[:120]!r}"
        if not isinstance(value, dict):
            return f"the arguments of {name} are no object"
        calls.append((name, value))
    return case.check(text, calls)


class CertificateStore:
    """Certificates by model, below the state folder."""

    def __init__(self, state: Path) -> None:
        self._folder = state / "certificates"

    def save(self, certificate: Certificate) -> Path:
        """Keep a certificate, replacing an older one of the model."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._path(certificate.model)
        path.write_bytes(msgspec.json.encode(certificate))
        return path

    def load(self, model: str) -> Certificate | None:
        """The model's certificate, if it was made with the present suite."""
        try:
            found = msgspec.json.decode(self._path(model).read_bytes(), type=Certificate)
        except (OSError, msgspec.DecodeError):
            return None
        return found if (found.model, found.suite_version) == (model, SUITE_VERSION) else None

    def _path(self, model: str) -> Path:
        return self._folder / (re.sub(r"[^A-Za-z0-9._-]", "_", model).lstrip(".") + ".json")
