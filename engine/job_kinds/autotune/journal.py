"""The record of a search on disk: every finished trial, and the started one.

An interrupted search does not repeat measurements. A point that was started twice and never finished crashed the
process or the machine, and counts as failed.
"""

import os
from pathlib import Path

import msgspec

from devices.msgspec_lock import learned
from engine.placement.measurements import TrialOutcome, TrialSize, TunableSettings, TuneTrial

TRIES = 2


class _Head(msgspec.Struct, frozen=True, kw_only=True, tag="head"):
    model: str


class _Begun(msgspec.Struct, frozen=True, kw_only=True, tag="begun"):
    knobs: TunableSettings
    budget: TrialSize


class _Ended(msgspec.Struct, frozen=True, kw_only=True, tag="ended"):
    trial: TuneTrial


class Journal:
    """A file of JSON lines; invalid lines are skipped. Every line is on disk before the next trial starts.

    `model` is the name of the model as the user gave it; it is empty in older records.
    """

    def __init__(self, path: Path, model: str = "") -> None:
        self._path = path
        self.model = model
        self._ended: dict[tuple[TunableSettings, TrialSize], TrialOutcome] = {}
        self._num_starts: dict[tuple[TunableSettings, TrialSize], int] = {}
        for line in self._lines():
            try:
                record = msgspec.json.decode(line, type=learned(_Head | _Begun | _Ended))
            except (ValueError, RecursionError):
                continue
            if isinstance(record, _Head):
                self.model = record.model
            elif isinstance(record, _Ended):
                self._ended[record.trial.knobs, record.trial.budget] = record.trial.outcome
            else:
                key = record.knobs, record.budget
                self._num_starts[key] = self._num_starts.get(key, 0) + 1

    def _lines(self) -> list[bytes]:
        try:
            return self._path.read_bytes().splitlines()
        except OSError:
            return []

    def recorded(self, knobs: TunableSettings, budget: TrialSize) -> TrialOutcome | None:
        """The recorded result of a trial; a failure if it was started repeatedly and never finished."""
        outcome = self._ended.get((knobs, budget))
        if outcome is None and self._num_starts.get((knobs, budget), 0) >= TRIES:
            return TrialOutcome(failure="it ended the whole search twice")
        return outcome

    def begin(self, knobs: TunableSettings, budget: TrialSize) -> None:
        """Record the start of a trial."""
        self._write(_Begun(knobs=knobs, budget=budget))

    def end(self, trial: TuneTrial) -> None:
        self._ended[trial.knobs, trial.budget] = trial.outcome
        self._write(_Ended(trial=trial))

    @property
    def trials(self) -> tuple[TuneTrial, ...]:
        """All finished trials, in order."""
        return tuple(TuneTrial(knobs=k, budget=b, outcome=o) for (k, b), o in self._ended.items())

    def clear(self) -> None:
        """Delete the record at the end of the search."""
        self._path.unlink(missing_ok=True)

    def _write(self, line: _Begun | _Ended) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            if not file.tell():
                file.write(msgspec.json.encode(_Head(model=self.model)))
            # A line that was truncated by a kill must not merge with the next one.
            file.write(b"\n" + msgspec.json.encode(line) + b"\n")
            file.flush()
            os.fsync(file.fileno())
