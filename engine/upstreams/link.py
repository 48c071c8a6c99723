"""The connection to one upstream: its HTTP client, its key, and its health."""

import asyncio
import time
from typing import Any, Final

import msgspec

from devices.msgspec_lock import learned
from engine.core.errors import fact_of
from engine.message_catalog.reasons import because
from engine.upstreams.error_mapping import refusal
from engine.upstreams.errors import UpstreamBrokeOff, UpstreamFault, UpstreamRefusesKey, UpstreamUnreachable
from engine.upstreams.http import HttpClient
from engine.upstreams.keys import StoredKey
from engine.upstreams.registry import UpstreamRegistry
from engine.upstreams.types import Health, Kind, Upstream, UpstreamModel

# A list of models arrives at once or not at all.
LOOK_S: Final = 5.0
OK: Final = 200
encode = msgspec.json.encode


class UpstreamLink:
    """One upstream: its connections and its key."""

    def __init__(self, upstream: Upstream, registry: UpstreamRegistry) -> None:
        self.upstream = upstream
        self.client = HttpClient(upstream.name, upstream.url)
        self._registry = registry
        self._key: tuple[StoredKey | None, dict[str, str]] = (None, {})

    async def headers(self) -> dict[str, str]:
        """The key as a header; read again after the user changed it."""
        stored = self._registry.keys.entry(self.upstream.name)
        if stored != self._key[0]:
            key = await asyncio.to_thread(self._registry.keys.get, self.upstream.name)
            self._key = (stored, {"authorization": f"Bearer {key}"} if key else {})
        return self._key[1]

    async def look(self) -> Health:
        """Request the list of models and record the result as health."""
        health = await self._look()
        await asyncio.to_thread(self._registry.saw, self.upstream.name, health)
        return self._registry.health(self.upstream.name)

    async def _look(self) -> Health:
        name, started_at, now = self.upstream.name, time.monotonic(), time.time()
        try:
            async with (
                asyncio.timeout(LOOK_S),
                self.client.request("GET", "/v1/models", b"", await self.headers()) as a,
            ):
                status, body = a.status, await a.read()
        except TimeoutError:
            return Health(state="unreachable", at=now, reason=because("no_answer_within", seconds=LOOK_S))
        except UpstreamUnreachable as error:
            return Health(state="unreachable", at=now, reason=error.why)
        except UpstreamFault as error:
            return Health(state="failed", at=now, reason=fact_of(error) or str(error))
        latency = time.monotonic() - started_at
        if status != OK:
            refused = refusal(name, status, body)
            return Health(
                state="refused" if isinstance(refused, UpstreamRefusesKey) else "failed",
                at=now,
                latency_s=latency,
                reason=refused.said
                if isinstance(refused, UpstreamRefusesKey)
                else fact_of(refused) or str(refused),
            )
        try:
            kind, models = read_list(body)
        except NoList as error:
            return Health(state="failed", at=now, latency_s=latency, reason=because("no_list", why=error.why))
        return Health(state="ok", at=now, latency_s=latency, kind=self.upstream.kind or kind, models=models)

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        """A JSON response. Raises: what `refusal` returns for another status; UpstreamBrokeOff: not JSON."""
        name = self.upstream.name
        async with self.client.request("POST", path, encode(body), await self.headers()) as answer:
            raw = await answer.read()
            if answer.status != OK:
                raise refusal(name, answer.status, raw, str(body.get("model", "")))
        try:
            return msgspec.json.decode(raw)
        except (ValueError, RecursionError) as error:
            raise UpstreamBrokeOff(name, because("upstream_no_json", upstream=name, path=path)) from error

    def close(self) -> None:
        self.client.close()


# Contents of an upstream's list of models: names, contexts, and the kind of server.

MOST_MODELS: Final = 2000
_MOST_NAME: Final = 200
# The `owned_by` values of local servers.
_OWNERS: Final[dict[str, Kind]] = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llama-server"}


class NoList(ValueError):
    """The body is not a list of models; `why` is the decoder's message."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class _Meta(msgspec.Struct):
    n_ctx: Any = None
    n_ctx_train: Any = None


class _Row(msgspec.Struct):
    id: str
    owned_by: Any = None
    max_model_len: Any = None
    context_length: Any = None
    meta: _Meta | None = None
    capabilities: Any = None
    origin: Any = None


class _List(msgspec.Struct):
    data: list[_Row]


def read_list(body: bytes) -> tuple[Kind, tuple[UpstreamModel, ...]]:
    """Kind and models. Raises: NoList."""
    try:
        rows = msgspec.json.decode(body, type=learned(_List)).data
    except (ValueError, RecursionError) as error:
        raise NoList(str(error)) from error
    kind: Kind = "openai"
    models = []
    for row in rows[:MOST_MODELS]:
        if row.origin == "remote" or not _plain(row.id):
            continue  # models that another Tessera gets from its own upstreams are not used
        if isinstance(row.capabilities, list) and row.origin is not None:
            kind = "tessera"
        elif isinstance(row.owned_by, str):
            kind = _OWNERS.get(row.owned_by, kind)
        models.append(_listed_model(row))
    return kind, tuple(models)


def _plain(name: str) -> bool:
    return 0 < len(name) <= _MOST_NAME and name.isprintable()


def _listed_model(row: _Row) -> UpstreamModel:
    meta = row.meta
    sizes = (
        row.max_model_len,
        row.context_length,
        meta.n_ctx if meta else None,
        meta.n_ctx_train if meta else None,
    )
    n_ctx = next((s for s in sizes if isinstance(s, int) and 0 < s < 1 << 31), 0)
    if isinstance(row.capabilities, list):  # llama-server uses "completion" and "multimodal", Tessera other words
        stated = tuple(str(c)[:32] for c in row.capabilities[:16] if isinstance(c, str))
        if {"embedding", "rerank"} & set(stated):
            return UpstreamModel(name=row.id, n_ctx=n_ctx, capabilities=stated)
        vision = ("vision",) if "multimodal" in stated else ()
        chats = tuple(dict.fromkeys(("completion", "chat", "tools", *stated, *vision)))
        return UpstreamModel(name=row.id, n_ctx=n_ctx, capabilities=tuple(c for c in chats if c != "multimodal"))
    return UpstreamModel(name=row.id, n_ctx=n_ctx)
