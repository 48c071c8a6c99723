"""Counters, gauges and histograms, and their text for Prometheus (exposition format 0.0.4)."""

import math
import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal

import msgspec

Kind = Literal["counter", "gauge", "histogram"]
# What the format escapes in the value of a label; in a help text also, except for quotes.
_ESCAPED: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_HELP_ESCAPED: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})


class Sample(msgspec.Struct, frozen=True):
    """One line: the end of its name, its labels, and the value."""

    suffix: str
    labels: dict[str, str]
    value: float


class Family(msgspec.Struct, frozen=True):
    """A metric with its samples."""

    name: str
    help: str
    kind: Kind
    samples: Sequence[Sample]


class Totals:
    """A counter, or a gauge, by the values of its labels. Thread-safe."""

    def __init__(self, name: str, help_text: str, labels: Sequence[str] = (), kind: Kind = "counter") -> None:
        self._name, self._help, self._labels, self._kind = name, help_text, tuple(labels), kind
        self._values: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}
        self._lock = threading.Lock()

    def add(self, amount: float, *labels: str) -> None:
        """Add to the value with these labels."""
        with self._lock:
            self._values[labels] = self._values.get(labels, 0.0) + amount

    def set(self, value: float, *labels: str) -> None:
        """Replace the value with these labels."""
        with self._lock:
            self._values[labels] = value

    def family(self) -> Family:
        """The present values."""
        with self._lock:
            rows = list(self._values.items())
        suffix = "_total" if self._kind == "counter" else ""
        samples = [Sample(suffix, dict(zip(self._labels, row, strict=True)), value) for row, value in rows]
        return Family(self._name, self._help, self._kind, samples)


class Histogram:
    """Counts of values up to each of the `bounds`, by one label. Thread-safe."""

    def __init__(self, name: str, help_text: str, label: str, bounds: Sequence[float]) -> None:
        self._name, self._help, self._label, self._bounds = name, help_text, label, tuple(bounds)
        self._rows: dict[str, tuple[list[int], float]] = {}
        self._lock = threading.Lock()

    def observe(self, value: float, label: str) -> None:
        """Count a value."""
        with self._lock:
            counts, total = self._rows.get(label) or ([0] * (len(self._bounds) + 1), 0.0)
            counts[bisect_left(self._bounds, value)] += 1
            self._rows[label] = counts, total + value

    def counts(self) -> dict[str, int]:
        """Number of values by label."""
        with self._lock:
            return {label: sum(counts) for label, (counts, _) in self._rows.items()}

    def family(self) -> Family:
        """The present counts."""
        samples = []
        with self._lock:
            rows = [(label, list(counts), total) for label, (counts, total) in self._rows.items()]
        for label, counts, total in rows:
            seen, own = 0, {self._label: label}
            for bound, count in zip(map(_number, (*self._bounds, math.inf)), counts, strict=True):
                seen += count
                samples.append(Sample("_bucket", {**own, "le": bound}, seen))
            samples += [Sample("_count", own, seen), Sample("_sum", own, total)]
        return Family(self._name, self._help, "histogram", samples)


def text(families: Iterable[Family]) -> str:
    """All lines of these metrics."""
    return "".join(f"{line}\n" for family in families for line in _lines(family))


def _lines(family: Family) -> Iterator[str]:
    name = f"{family.name}_total" if family.kind == "counter" else family.name
    yield f"# HELP {name} {family.help.translate(_HELP_ESCAPED)}"
    yield f"# TYPE {name} {family.kind}"
    for sample in family.samples:
        labels = ",".join(f'{key}="{value.translate(_ESCAPED)}"' for key, value in sample.labels.items())
        shown = f"{{{labels}}}" if labels else ""
        yield f"{family.name}{sample.suffix}{shown} {_number(sample.value)}"


def _number(value: float) -> str:
    return "+Inf" if value == math.inf else "-Inf" if value == -math.inf else repr(float(value))
