"""POST /tessera/v1/replay: repeats a receipt's request, or finds out which change causes a different response."""

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final, TypeVar

import msgspec
from fastapi import APIRouter, Request
from pydantic import ValidationError

from devices.errors import TesseraError
from devices.msgspec_lock import learned
from engine.api.receipts import VERSION, Exchange, Parts, Receipt, Replayed, ReplayRequest
from engine.chat.structured import ConstraintImpossible
from engine.core.errors import InputFault
from engine.core.sampling import choose
from engine.core.types import Constraint, Delta, GenerationRequest, ReasoningBudget
from engine.pool.loaded_model import LoadedModel
from engine.runner.protocol import LoadSettings
from engine.server.body import fault
from engine.server.msgspec_routes import TypedRoute
from engine.server.openai import completions, receipts
from engine.server.openai import routes as chat
from engine.server.openai.schemas import ChatRequest, CompletionRequest
from engine.server.sse import while_connected
from engine.server.state import ServerState, server_state

router = APIRouter(prefix="/tessera/v1", tags=["measuring"], route_class=TypedRoute)
# Maximum length of the reasoning marks and the closing text, which are a few words.
_LONGEST_MARK: Final = 10_000
# Parts that cannot be restored: the program, the CPU kernels, the computer.
_FIXED: Final = {
    "adapters": "the adapters of then are not here",
    "engine": "the program of then is not here",
    "kernels": "the kernels of then are not here",
    "driver": "the driver of then is not here",
    "device": "this is another CPU or device",
}
B = TypeVar("B", ChatRequest, CompletionRequest)


class _Format(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    keep_special: bool = False
    constraint: Constraint | None = None
    reasoning: ReasoningBudget | None = None


@router.post("/replay")
async def replay(request: Request, body: ReplayRequest) -> Replayed:
    """Repeat the request of a receipt; with `explain`, send it with current parts and restore one part at a time.

    Explaining loads the model with the old settings if they differ, and unloads it again.
    """
    if body.receipt.version != VERSION:
        raise InputFault(
            f"The receipt has form {body.receipt.version}; {VERSION} is known here.", "receipt.version"
        )
    work = _Replay(server_state(request), body)
    return await while_connected(request, work.explained() if body.explain else work.repeated())


class _Replay:
    """One receipt and the model that replays it."""

    def __init__(self, state: ServerState, body: ReplayRequest) -> None:
        self._state = state
        self._receipt: Receipt = body.receipt
        self._model = body.model or self._receipt.model
        self._old_model = body.old_model

    async def repeated(self) -> Replayed:
        """Repeat the original request."""
        model = await self._state.pool.acquire(self._model)
        text = await self._text(model, await self._then())
        _, mark = await self._now()
        return Replayed(
            text=text,
            same=receipts.begins_with(text, self._receipt.answer),
            changed=tuple(name for name, _, _ in self._changes(await receipts.parts_now(self._state, model, mark))),
        )

    async def explained(self) -> Replayed:
        """Send the request with all current parts, then with each changed part restored."""
        model = await self._state.pool.acquire(self._model)
        request, mark = await self._now()
        text = await self._text(model, request)
        same = receipts.begins_with(text, self._receipt.answer)
        parts, plan = await receipts.parts_now(self._state, model, mark), receipts.plan_of(model.settings)
        changes = self._changes(parts)
        then = await self._then()
        repeated = await receipts.request_record(model, request)
        if repeated != self._receipt.asked and all(name != "template" for name, _, _ in changes):
            changes.append(("request", "as the receipt has it", "other defaults, or another date in the template"))
        exchanged = []
        for name, old, new in changes:
            way = self._way(name, model, plan, request, then)
            if same or way is None:
                reason = "the answer is the same anyway" if same else _FIXED.get(name, "")
                exchanged.append(Exchange(part=name, then=old, now=new, reason=reason))
                continue
            try:
                is_same = receipts.begins_with(await way(), self._receipt.answer)
            except TesseraError as error:
                exchanged.append(Exchange(part=name, then=old, now=new, reason=str(error)))
            else:
                exchanged.append(Exchange(part=name, then=old, now=new, same=is_same))
        return Replayed(text=text, same=same, changed=tuple(c[0] for c in changes), exchanged=tuple(exchanged))

    def _way(
        self,
        part: str,
        model: LoadedModel,
        plan: dict[str, Any],
        request: GenerationRequest,
        then: GenerationRequest,
    ) -> Callable[[], Awaitable[str]] | None:
        """A function that sends the request with one old part; None if that part is not available."""
        if part in {"template", "request"}:
            return lambda: self._text(model, then)
        if part == "plan" and self._receipt.plan != plan:
            return lambda: self._with_plan(model, request)
        if part == "file" and self._old_model:
            return lambda: self._with_file(request)
        return None

    async def _with_plan(self, model: LoadedModel, request: GenerationRequest) -> str:
        old = {name: value for name, value in self._receipt.plan.items() if name in (*receipts.PLAN, "n_threads")}
        try:
            plan = msgspec.convert(old, learned(_Plan))
        except msgspec.ValidationError as error:
            raise InputFault(f"receipt.plan: {error}.", "receipt.plan") from None
        pool = self._state.pool
        await pool.unload(model.id)
        try:
            changed = await pool.acquire_otherwise(model.id, plan.applied)
            return await self._text(changed, request)
        finally:
            await pool.unload(model.id)

    async def _with_file(self, request: GenerationRequest) -> str:
        model = await self._state.pool.acquire(self._old_model)
        parts = await receipts.parts_now(self._state, model, "")
        if parts.file != self._receipt.parts.file:
            raise InputFault(f"{self._old_model} is not the file of the receipt.", "old_model")
        return await self._text(model, request)

    async def _text(self, model: LoadedModel, request: GenerationRequest) -> str:
        async with aclosing(self._state.pool.generate(model, request)) as events:
            return "".join([event.text async for event in events if isinstance(event, Delta)])

    def _changes(self, now: Parts) -> list[tuple[str, str, str]]:
        then = self._receipt.parts
        return [
            (name, getattr(then, name), getattr(now, name))
            for name in Parts.__struct_fields__
            if getattr(then, name) != getattr(now, name)
        ]

    async def _now(self) -> tuple[GenerationRequest, str]:
        """The client's request as it would be sent now, and the digest of its current template."""
        body = {**self._receipt.body, "model": self._model, "stream": False, "receipt": None}
        if self._receipt.route == "completions":
            _, requests, _, _ = await completions.prepared(self._state, _checked(CompletionRequest, body))
            return requests[0], receipts.template_mark(None)
        body_now = _checked(ChatRequest, body)
        _, prepared, _ = await chat.prepared(self._state, body_now)
        seeded = msgspec.structs.replace(prepared.request.sampling, seed=body_now.sampling().get("seed"))
        request = msgspec.structs.replace(prepared.request, sampling=seeded)
        return request, receipts.template_mark(prepared.template)

    async def _then(self) -> GenerationRequest:
        """The original request. Receipts are untrusted, so it is validated like any request."""
        body = _checked(CompletionRequest, {**self._receipt.asked, "model": self._model, "deterministic": True})
        try:
            form = msgspec.convert(self._receipt.format, learned(_Format))
        except msgspec.ValidationError as error:
            raise InputFault(f"receipt.format: {error}.", "receipt.format") from None
        marks = [] if form.reasoning is None else [form.reasoning.start, form.reasoning.end, form.reasoning.close]
        if any(len(mark) > _LONGEST_MARK for mark in marks):
            raise InputFault("receipt.format.reasoning: a mark is too long.", "receipt.format.reasoning")
        (request,) = completions.requests_of(body, choose(body.sampling()))[:1]
        constraint = form.constraint
        if constraint is not None:
            try:
                constraint = await self._state.checker.check(constraint, "receipt.format.constraint")
            except ConstraintImpossible as error:
                raise InputFault(str(error), "receipt.format.constraint") from error
        return msgspec.structs.replace(
            request,
            add_special=False,
            constraint=constraint,
            keep_special=form.keep_special,
            reasoning=form.reasoning,
        )


class _Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Load settings from a receipt; a load validates them like all others."""

    n_ctx: int | None = None
    type_k: str | None = None
    type_v: str | None = None
    n_gpu_layers: int | None = None
    devices: tuple[str, ...] | None = None
    repack: bool | None = None
    tiles: tuple[str, ...] = ()
    n_threads: int | None = None

    def applied(self, settings: LoadSettings) -> LoadSettings:
        """Return `settings` with the receipt's values."""
        values = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        changed = msgspec.structs.replace(settings, **values)
        return msgspec.structs.replace(changed, kv_cells=max(changed.kv_cells, changed.n_ctx))


def _checked(kind: type[B], body: dict[str, Any]) -> B:
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        problem = fault(error)
        raise InputFault(f"receipt: {problem}", f"receipt.{problem.param or 'body'}") from None
