"""/tessera/v1/quantize: what making a model fit would give, and the job that does it."""

import asyncio
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Request
from pydantic import Field

from engine.library.lookup import require
from engine.quantizing import KIND, Wish, as_json, predict
from engine.server.body import Body, openapi_body, parse
from engine.server.state import server_state

router = APIRouter(prefix="/tessera/v1/quantize", tags=["quantize"])


class LockBody(Body):
    """A type for the tensors whose name `pattern` finds; a minimum if `at_least`."""

    pattern: str = Field(min_length=1, max_length=200)
    type: str = Field(min_length=1, max_length=20)
    at_least: bool = False


class QuantizeBody(Body):
    """A model of the library and one wish for its size. `tier` as in `tessera quantize`.

    `fit`: so that `n_seq` contexts of `n_ctx` fit beside the weights, their cache in `kv_type` (null: the best).
    """

    model: str = Field(min_length=1, max_length=500)
    tier: Literal["instant", "balanced", "max"] = "balanced"
    budget_bytes: Annotated[int, Field(ge=1, le=1 << 50)] | None = None
    bpw: Annotated[float, Field(ge=0.5, le=32)] | None = None
    mix: Annotated[str, Field(min_length=1, max_length=20)] | None = None
    force: bool = False
    fit: bool = False
    memory_bytes: Annotated[int, Field(ge=1, le=1 << 50)] | None = None
    n_ctx: int = Field(default=8192, ge=256, le=1 << 24)
    n_seq: int = Field(default=1, ge=1, le=256)
    kv_type: Literal["f16", "q8_0", "q5_1", "q4_0"] | None = None
    locks: list[LockBody] = Field(default_factory=list, max_length=100)
    rounding: Literal["stock", "rows", "craft", "sequential"] | None = None

    def wish(self) -> Wish:
        """The same as the engine's own record."""
        return Wish(
            model=self.model,
            tier=self.tier,
            budget_bytes=self.budget_bytes,
            bpw=self.bpw,
            mix=self.mix,
            force=self.force,
            fit=self.fit,
            memory_bytes=self.memory_bytes,
            n_ctx=self.n_ctx,
            n_seq=self.n_seq,
            kv_type=self.kv_type,
            locks=tuple((lock.pattern, lock.type, lock.at_least) for lock in self.locks),
            rounding=self.rounding,
        )


@router.post("/plan", openapi_extra=openapi_body(QuantizeBody))
async def plan(request: Request) -> dict[str, Any]:
    """The likely plan and what the job would take; nothing is measured or written."""
    body = await parse(request, QuantizeBody)
    state = server_state(request)
    catalogue = await state.models.catalogue()
    report = await asyncio.to_thread(predict, catalogue, body.wish())
    told = as_json(report)
    entry = await asyncio.to_thread(require, catalogue, body.model)
    if state.placer is not None and entry.format == "gguf":
        settings = state.models.settings(entry)
        weights = report.plan.file_bytes
        told["forecast"]["largest_context"] = await asyncio.to_thread(
            state.placer.context_beside, settings, weights
        )
    return told


@router.post("", status_code=202, openapi_extra=openapi_body(QuantizeBody))
async def start(request: Request) -> dict[str, Any]:
    """Start the job (see /tessera/v1/jobs); its result names the new model and carries the report."""
    body = await parse(request, QuantizeBody)
    state = server_state(request)
    wish = body.wish()
    wish.goal()
    entry = await asyncio.to_thread(require, await state.models.catalogue(), body.model)
    params: dict[str, Any] = msgspec.to_builtins(wish)
    job: dict[str, Any] = msgspec.to_builtins(state.jobs.start(KIND, entry.name, params))
    return job
