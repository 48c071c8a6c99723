"""One model on one node: an actor of Ray Serve beside a private server of Tessera, which has the runner."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from app.client import Client
from app.cluster.types import Asked, Deployed
from app.server_process import ServerProcess
from engine.upstreams.http import HttpClient


class ModelNotHere(RuntimeError):
    """The node's library has not the model that was deployed."""


class Replica:
    """Ray makes one where its memory is free; the server ends with this process, however that ends."""

    def __init__(self, deployment: Deployed) -> None:
        self._deployment = deployment
        arguments = ["--parallel", str(deployment.parallel), "--ttl", "0"]
        arguments += ["--ctx", str(deployment.n_ctx)] if deployment.n_ctx else []
        self._server = ServerProcess(*arguments)
        self._client = self._server.connect(Client)
        self._check_file()
        self._client.load(deployment.model)
        self._http = HttpClient(deployment.model, self._client.url)
        self._key = {"authorization": f"Bearer {self._client.token}"}

    def _check_file(self) -> None:
        here = {m.id: m.size_bytes for m in self._client.library()}
        if here.get(self._deployment.model) != self._deployment.num_bytes:
            found = "another file" if self._deployment.model in here else "no model"
            raise ModelNotHere(f"{socket.gethostname()} has {found} under the name {self._deployment.model}")

    async def check_health(self) -> None:
        """Ray asks this every few seconds, and replaces a replica that raises."""
        async with self._http.request("GET", "/health", headers=self._key) as answer:
            await answer.read()

    async def about(self) -> dict[str, Any]:
        """The model's row in its server's list."""
        async with self._http.request("GET", "/v1/models", headers=self._key) as answer:
            rows = msgspec.json.decode(await answer.read())["data"]
        found: dict[str, Any] = next(row for row in rows if row["id"] == self._deployment.model)
        return found

    async def answer(self, asked: Asked) -> AsyncGenerator[tuple[int, str] | bytes, None]:
        """Status and type, then the body as it comes; leaving early hangs up."""
        async with self._http.request("POST", asked.path, asked.body, self._key) as answer:
            yield answer.status, answer.headers.get("content-type", "application/json")
            async for chunk in answer.chunks():
                yield chunk

    async def __del__(self) -> None:
        """Ray calls this when the replica is taken down."""
        await asyncio.to_thread(self._server.stop)
