"""HTTP gateway of the cluster: OpenAI routes over Serve's handles, on loopback for a Tessera server.

If a replica is lost before the first token, its request is retried. Later, the response ends with an error.
"""

import asyncio
import contextlib
import hmac
import logging
import time
from collections.abc import AsyncGenerator
from typing import Any, Final

import msgspec
from ray import serve
from ray.exceptions import RayError, TaskCancelledError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from app.cluster.types import ClusterRequest
from engine.upstreams.stream import ChatReader

log = logging.getLogger(__name__)
# Time limit for retries before the first token: a new replica may have to load the model.
PATIENCE_S: Final = 120.0
# Serve notices a lost node within this time; until then it may offer the same replica again.
AGAIN_S: Final = 0.25
LIST_S: Final = 1.0
OK: Final = 200


class Door:
    """The gateway's routes. Every request must have `key`."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._handles: dict[str, Any] = {}
        self._making = asyncio.Lock()
        self._retiring: set[asyncio.Task[None]] = set()
        self._rows: dict[str, dict[str, Any]] = {}
        self._since: dict[str, float] = {}
        self._deploying: set[str] = set()
        self._listed = asyncio.Event()
        self.app = Starlette(
            lifespan=self._life,
            routes=[
                Route("/v1/models", self.models),
                Route("/v1/{path:path}", self.answer, methods=["POST"]),
                Route("/tokenize", self.answer, methods=["POST"]),
            ],
        )

    def _refused(self, request: Request) -> Response | None:
        key = request.headers.get("authorization", "").removeprefix("Bearer ")
        if hmac.compare_digest(key.encode(), self._key.encode()):
            return None
        return _fault(401, "invalid_api_key", "The cluster's key is missing or wrong.")

    async def models(self, request: Request) -> Response:
        """Deployed models, each with the row that one of its replicas reports."""
        if (refused := self._refused(request)) is not None:
            return refused
        await self._listed.wait()
        return JSONResponse({"object": "list", "data": list(self._rows.values())})

    @contextlib.asynccontextmanager
    async def _life(self, _app: Starlette) -> AsyncGenerator[None, None]:
        listing = asyncio.create_task(self._list())
        try:
            yield
        finally:
            listing.cancel()
            for name in tuple(self._handles):
                self._retire(name)
            await asyncio.gather(*self._retiring, return_exceptions=True)

    async def _list(self) -> None:
        """Update the model list in the background, so that a health check gets an immediate response."""
        while True:
            try:
                await self._refresh()
                self._listed.set()
            except (RayError, RayServeException) as error:
                log.warning("the list of models is that of before: %r", error)
            await asyncio.sleep(LIST_S)

    async def _refresh(self) -> None:
        applications = (await asyncio.to_thread(serve.status)).applications
        since = {name: float(status.last_deployed_time_s) for name, status in applications.items()}
        for name in [n for n, at in self._since.items() if since.get(n) != at]:
            self._rows.pop(name, None)
            self._retire(name)
        self._since = since
        # A redeployed model keeps its start time. Redeployment takes seconds, so one refresh sees this state.
        self._deploying |= {name for name, status in applications.items() if status.status == "DEPLOYING"}
        for name, application in applications.items():
            if application.status == "RUNNING" and (name not in self._rows or name in self._deploying):
                self._retire(name)
                handle = await self._handle(name)
                self._rows[name] = await handle.options(stream=False).about.remote()
                self._deploying.discard(name)

    async def _handle(self, model: str) -> Any:
        """A handle created since the model's last deployment. Raises: RayServeException: it is not deployed."""
        async with self._making:
            if model not in self._handles:
                self._handles[model] = await asyncio.to_thread(_new_handle, model)
            return self._handles[model]

    def _retire(self, model: str) -> None:
        """Drop a handle; its running responses continue, and it stops sending metrics."""
        if (handle := self._handles.pop(model, None)) is not None:
            ending = asyncio.create_task(handle.shutdown_async())
            self._retiring.add(ending)
            ending.add_done_callback(self._retiring.discard)

    async def answer(self, request: Request) -> Response:
        """Forward a request to a replica of the model that it names."""
        if (refused := self._refused(request)) is not None:
            return refused
        raw = await request.body()
        try:
            body = msgspec.json.decode(raw, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            return _fault(400, "invalid_request_error", f"The body is no JSON object: {error}")
        model = str(body.get("model", ""))
        try:
            handle = await self._handle(model)
        except (RayError, RayServeException) as error:
            return _fault(404, "model_not_found", f"The cluster has no model named {model!r}: {error}")
        prompt = body.get("messages") or body.get("prompt") or body.get("input")
        forwarded = ClusterRequest(
            request.url.path, raw, prompt if isinstance(prompt, str | list) and prompt else " "
        )
        chunks = _Answer(handle, forwarded, model).chunks(streams=body.get("stream") is True)
        try:
            first = await anext(chunks)
        except RayError as error:
            return _fault(503, "replica_lost", f"No replica of {model} answers: {error}")
        assert isinstance(first, tuple)
        return StreamingResponse(chunks, status_code=first[0], media_type=first[1])  # type: ignore[arg-type]  # bytes follow


def _new_handle(model: str) -> Any:
    """A handle with a separate router.

    A router keeps its initial class and settings, and Serve returns the same handle for the life of the process.
    That handle would route a redeployed model with the old settings.
    """
    app_handle = serve.get_app_handle(model)
    return DeploymentHandle(app_handle.deployment_name, app_handle.app_name).options(stream=True)


class _Answer:
    """One response; retried on other replicas if a replica is lost before the first token."""

    def __init__(self, handle: Any, request: ClusterRequest, model: str) -> None:
        self._handle, self._request, self._model = handle, request, model
        self._sent = False

    async def chunks(self, *, streams: bool) -> AsyncGenerator[tuple[int, str] | bytes, None]:
        """Yield status and type, then bytes; nothing before the first token, so that a retry is possible."""
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                async with contextlib.aclosing(self._once(streams=streams)) as chunks:
                    async for chunk in chunks:
                        yield chunk
            except TaskCancelledError:
                raise
            except RayError as error:
                log.warning("model=%s lost a replica, first token sent: %s: %r", self._model, self._sent, error)
                if self._sent:
                    yield _event(f"The node that answered with {self._model} was lost in the middle; ask again.")
                    return
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(AGAIN_S)
            else:
                return

    async def _once(self, *, streams: bool) -> AsyncGenerator[tuple[int, str] | bytes, None]:
        """One replica's response, buffered until its first token; buffered completely if it is not streamed."""
        chunks: list[tuple[int, str] | bytes] = []
        reader = ChatReader(self._model)
        response = self._handle.answer.remote(self._request)
        try:
            async for chunk in response:
                chunks.append(chunk)
                self._sent = self._sent or (streams and _begins(reader, chunk))
                if self._sent:
                    for each in chunks:
                        yield each
                    chunks.clear()
            self._sent = True
            for each in chunks:
                yield each
        finally:
            response.cancel()


def _begins(reader: ChatReader, chunk: tuple[int, str] | bytes) -> bool:
    """Return True if this chunk contains response text or an error."""
    if isinstance(chunk, tuple):
        return chunk[0] != OK
    return bool(reader.feed(chunk)) or reader.fault is not None


def _fault(status: int, code: str, message: str) -> Response:
    return JSONResponse({"error": {"message": message, "type": code, "code": code}}, status_code=status)


def _event(message: str) -> bytes:
    return b"data: " + msgspec.json.encode({"error": {"message": message, "code": "replica_lost"}}) + b"\n\n"
