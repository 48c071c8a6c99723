"""/tessera/v1/bench and /tessera/v1/autotune: measure this machine as a job, and read what was measured."""

import asyncio
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request
from pydantic import Field

from engine.bench.shapes import SHAPES
from engine.bench.subject import Subject
from engine.bench.work import KIND, BenchWish, Task, TuneWish, Workshop
from engine.errors import InputFault
from engine.server.body import Body, openapi_body, parse
from engine.server.state import server_state

router = APIRouter(prefix="/tessera/v1", tags=["measuring"])
Length = Annotated[int, Field(ge=1, le=1 << 20)]


class SubjectBody(Body):
    """One of: a model of the library, a named shape, or a file on the hub as owner/name:label (a stand-in)."""

    model: str | None = Field(default=None, max_length=500)
    shape: str | None = Field(default=None, max_length=100)
    hub: str | None = Field(default=None, max_length=500)
    type: str = Field(default="Q4_K_M", max_length=40)

    def subject(self) -> Subject:
        """The same as the engine's own record. Raises: InputFault: none or several are given."""
        found = Subject(model=self.model, shape=self.shape, hub=self.hub, mix=self.type)
        found.check()
        if self.shape is not None and self.shape not in SHAPES:
            raise InputFault(f"There is no shape {self.shape!r}. Known: {', '.join(SHAPES)}.", "shape")
        return found


class BenchBody(SubjectBody):
    """What to measure, and how."""

    lengths: Annotated[list[Length], Field(min_length=1, max_length=16)] = [128, 512, 2048]  # noqa: RUF012
    parallel: Annotated[list[Annotated[int, Field(ge=1, le=64)]], Field(max_length=8)] = [1, 4]  # noqa: RUF012
    repeats: int = Field(default=3, ge=1, le=50)
    tokens: int = Field(default=32, ge=1, le=4096)
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None


class TuneBody(SubjectBody):
    """What to tune, for which prompt lengths, and the longest it may take."""

    lengths: Annotated[list[Length], Field(min_length=1, max_length=8)] = [512]  # noqa: RUF012
    limit_s: float = Field(default=600.0, ge=1, le=86_400)


@router.get("/bench")
async def results(
    request: Request, model: str | None = None, limit: Annotated[int, Query(ge=1, le=1000)] = 200
) -> dict[str, Any]:
    """What was measured on this machine, newest first; of one model if it is named."""
    found = await asyncio.to_thread(_workshop(request).results.all, model)
    return {"results": [{**msgspec.to_builtins(r), "id": i} for i, r in enumerate(found)][::-1][:limit]}


@router.get("/bench/shapes")
async def shapes() -> dict[str, Any]:
    """Shapes that can be measured without a file."""
    return {"shapes": list(SHAPES)}


@router.post("/bench", status_code=202, openapi_extra=openapi_body(BenchBody))
async def bench(request: Request) -> dict[str, Any]:
    """Start measuring (see /tessera/v1/jobs); the job's result carries the report."""
    body = await parse(request, BenchBody)
    wish = BenchWish(
        subject=body.subject(),
        lengths=tuple(body.lengths),
        parallel=tuple(body.parallel),
        repeats=body.repeats,
        tokens=body.tokens,
        threads=body.threads,
    )
    return _start(request, f"Measure {wish.subject.name}", Task(what="bench", bench=wish))


@router.post("/bench/types", status_code=202)
async def price_types(request: Request) -> dict[str, Any]:
    """Start measuring what each quantization type costs here; the planner uses it from then on."""
    return _start(request, "Measure quantization types", Task(what="prices"))


@router.post("/autotune", status_code=202, openapi_extra=openapi_body(TuneBody))
async def autotune(request: Request) -> dict[str, Any]:
    """Start looking for the fastest settings; loads use them from then on. Pausing keeps what was measured."""
    body = await parse(request, TuneBody)
    wish = TuneWish(subject=body.subject(), lengths=tuple(body.lengths), limit_s=body.limit_s)
    return _start(request, f"Tune {wish.subject.name}", Task(what="tune", tune=wish))


def _start(request: Request, title: str, task: Task) -> dict[str, Any]:
    _workshop(request)
    params = msgspec.to_builtins(task)
    told: dict[str, Any] = msgspec.to_builtins(server_state(request).jobs.start(KIND, title, params))
    return told


def _workshop(request: Request) -> Workshop:
    workshop = server_state(request).workshop
    if workshop is None:
        raise InputFault("This server does not measure.", "server")
    return workshop
