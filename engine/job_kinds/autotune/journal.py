"""The record of a search on disk: every trial that ended, and the one that had begun.

A search that was killed measures nothing twice. A point that was begun twice and never ended took the whole
process, or the machine, down: it is bad.
"""

import os
from pathlib import Path

import msgspec

from devices.msgspec_lock import learned
from engine.placement.measurements import Budget, Knobs, Outcome, Trial

TRIES = 2


class _Head(msgspec.Struct, frozen=True, kw_only=True, tag="head"):
    model: str


class _Begun(msgspec.Struct, frozen=True, kw_only=True, tag="begun"):
    knobs: Knobs
    budget: Budget


class _Ended(msgspec.Struct, frozen=True, kw_only=True, tag="ended"):
    trial: Trial


class Journal:
    """JSON lines; damaged ones are passed over. Every line is on disk before the next trial begins.

    `model` is what was searched for, by the name it was given; empty in records from before that was noted.
    """

    def __init__(self, path: Path, model: str = "") -> None:
        self._path = path
        self.model = model
        self._ended: dict[tuple[Knobs, Budget], Outcome] = {}
        self._begun: dict[tuple[Knobs, Budget], int] = {}
        for line in self._lines():
            try:
                found = msgspec.json.decode(line, type=learned(_Head | _Begun | _Ended))
            except (ValueError, RecursionError):
                continue
            if isinstance(found, _Head):
                self.model = found.model
            elif isinstance(found, _Ended):
                self._ended[found.trial.knobs, found.trial.budget] = found.trial.outcome
            else:
                key = found.knobs, found.budget
                self._begun[key] = self._begun.get(key, 0) + 1

    def _lines(self) -> list[bytes]:
        try:
            return self._path.read_bytes().splitlines()
        except OSError:
            return []

    def recorded(self, knobs: Knobs, budget: Budget) -> Outcome | None:
        """What the trial found earlier; a failure when it never came back."""
        found = self._ended.get((knobs, budget))
        if found is None and self._begun.get((knobs, budget), 0) >= TRIES:
            return Outcome(failure="it ended the whole search twice")
        return found

    def begin(self, knobs: Knobs, budget: Budget) -> None:
        """A trial is about to run."""
        self._write(_Begun(knobs=knobs, budget=budget))

    def end(self, trial: Trial) -> None:
        """A trial is over."""
        self._ended[trial.knobs, trial.budget] = trial.outcome
        self._write(_Ended(trial=trial))

    @property
    def trials(self) -> tuple[Trial, ...]:
        """Every trial that ended, in order."""
        return tuple(Trial(knobs=k, budget=b, outcome=o) for (k, b), o in self._ended.items())

    def clear(self) -> None:
        """The search is over."""
        self._path.unlink(missing_ok=True)

    def _write(self, line: _Begun | _Ended) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            if not file.tell():
                file.write(msgspec.json.encode(_Head(model=self.model)))
            # A line cut off by a kill must not swallow the next one.
            file.write(b"\n" + msgspec.json.encode(line) + b"\n")
            file.flush()
            os.fsync(file.fileno())
