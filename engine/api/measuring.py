"""/tessera/v1/bench and /tessera/v1/autotune: measurement requests and results."""

from typing import Annotated

import msgspec
from msgspec import Meta

from engine.placement.measurements import Concurrency, Goal, Point, Report, SpeedAtLength, SpeedCurve, Spread

Length = Annotated[int, Meta(ge=1, le=1 << 20)]
Parallel = Annotated[int, Meta(ge=1, le=64)]


class SubjectRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The model to measure: a library model, or a dummy-weight model.

    A dummy-weight model is described by a named shape, by a local model or model file (`like`), or by a file on the
    hub (`hub`, as owner/name:label).
    """

    model: Annotated[str, Meta(max_length=4096)] | None = None
    shape: Annotated[str, Meta(max_length=100)] | None = None
    like: Annotated[str, Meta(max_length=4096)] | None = None
    hub: Annotated[str, Meta(max_length=500)] | None = None
    type: Annotated[str, Meta(max_length=40)] = "Q4_K_M"


class BenchRequest(SubjectRequest, frozen=True, kw_only=True, omit_defaults=True):
    """POST /tessera/v1/bench: what to measure, and how. `lengths` and `tokens` are in tokens."""

    lengths: Annotated[tuple[Length, ...], Meta(min_length=1, max_length=16)] = (128, 512, 2048)
    parallel: Annotated[tuple[Parallel, ...], Meta(max_length=8)] = (1, 4)
    repeats: Annotated[int, Meta(ge=1, le=50)] = 3
    tokens: Annotated[int, Meta(ge=1, le=4096)] = 32
    threads: Annotated[int, Meta(ge=1, le=1024)] | None = None


class TuneRequest(SubjectRequest, frozen=True, kw_only=True, omit_defaults=True):
    """POST /tessera/v1/autotune: the model, the prompt lengths, the time limit and the goal."""

    lengths: Annotated[tuple[Length, ...], Meta(min_length=1, max_length=8)] = (512,)
    limit_s: Annotated[float, Meta(ge=1, le=86_400)] = 600.0
    goal: Goal = "speed"


class CompareRequest(msgspec.Struct, frozen=True, kw_only=True):
    """POST /tessera/v1/bench/places: the model to measure on every place that could run it."""

    model: Annotated[str, Meta(max_length=4096)]


class QuickTestRequest(msgspec.Struct, frozen=True, kw_only=True):
    """POST /tessera/v1/quantize/quick-test: a model of the library, or the path of a GGUF file."""

    model: Annotated[str, Meta(min_length=1, max_length=4096)]


class BenchResult(Report, frozen=True, kw_only=True):
    """A measurement with its id in the list of results."""

    id: int


class BenchResults(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tessera/v1/bench, newest first."""

    results: tuple[BenchResult, ...]


class Shapes(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tessera/v1/bench/shapes: model shapes that can be measured without a file."""

    shapes: tuple[str, ...]
