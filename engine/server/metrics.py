"""The server's counters in Prometheus format."""

import math
import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal

import msgspec

from engine.api.stats import ModelUse
from engine.core.request_timing import current_clock
from engine.core.types import Timings, Usage
from engine.pool.loaded_model import LoadedModel
from engine.server.recent import note_usage

# Counters, gauges and histograms, and their text for Prometheus (exposition format 0.0.4).

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


_TTFT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_ITL_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)


class Metrics:
    """The metrics of one application, so that tests can run several."""

    def __init__(self) -> None:
        self.requests = Totals("tessera_requests", "Requests by route and outcome", ("route", "outcome"))
        self.prompt_tokens = Totals("tessera_prompt_tokens", "Tokens read", ("model",))
        self.cached_tokens = Totals(
            "tessera_cached_tokens", "Prompt tokens taken from the prefix cache", ("model",)
        )
        self.generated_tokens = Totals("tessera_generated_tokens", "Tokens generated", ("model",))
        self.joules = Totals(
            "tessera_energy_joules", "Energy of requests above the idle power of the computer", ("model",)
        )
        self.queue = Totals("tessera_requests_active", "Requests running or waiting", kind="gauge")
        self.ttft = Histogram(
            "tessera_time_to_first_token_seconds", "From submission to the first token", "model", _TTFT_BUCKETS
        )
        self.inter_token = Histogram(
            "tessera_inter_token_seconds", "Mean gap between the tokens of a request", "model", _ITL_BUCKETS
        )

    def families(self) -> list[Family]:
        """All of them, with their present values."""
        counters = (self.requests, self.prompt_tokens, self.cached_tokens, self.generated_tokens, self.joules)
        return [metric.family() for metric in (*counters, self.queue, self.ttft, self.inter_token)]

    def use(self) -> tuple[ModelUse, ...]:
        """Use of each model so far, sorted by name."""
        counted = {
            "requests": self.ttft.counts(),
            "prompt_tokens": _by_model(self.prompt_tokens),
            "cached_tokens": _by_model(self.cached_tokens),
            "generated_tokens": _by_model(self.generated_tokens),
        }
        names = sorted(set().union(*counted.values()))
        return tuple(
            ModelUse(model=name, **{field: counts.get(name, 0) for field, counts in counted.items()})
            for name in names
        )

    def embedded(self, model: str, tokens: int) -> None:
        """Count the tokens of one embedding or rerank request."""
        self.prompt_tokens.add(tokens, model)

    def finished(self, model: LoadedModel, usage: Usage, timings: Timings) -> None:
        """Count a finished generation and add its times to the request's clock."""
        name = model.id
        clock = current_clock()
        if clock is not None:
            clock.generated(name, timings)
        note_usage(name, usage, timings)
        self.prompt_tokens.add(usage.prompt_tokens, name)
        self.cached_tokens.add(usage.cached_tokens, name)
        self.generated_tokens.add(usage.completion_tokens, name)
        if timings.joules:
            self.joules.add(timings.joules, name)
        if timings.ttft_s > 0:
            self.ttft.observe(timings.ttft_s, name)
        gaps = usage.completion_tokens - 1
        if gaps > 0:
            self.inter_token.observe(timings.decode_s / gaps, name)


def _by_model(metric: Totals) -> dict[str, int]:
    return {sample.labels["model"]: round(sample.value) for sample in metric.family().samples}
