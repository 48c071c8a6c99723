"""/tessera/v1/upstreams: other servers, the user's routing rules, and their state."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from engine.message_catalog.reasons import Reason

Kind = Literal["openai", "vllm", "sglang", "llama-server", "tessera", "flm"]
Name = Annotated[str, Meta(min_length=1, max_length=40)]
ModelName = Annotated[str, Meta(min_length=1, max_length=200)]


class UpstreamRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """PUT /tessera/v1/upstreams/{name}. `kind` None: detect it from the model list; `key` None: no change."""

    url: Annotated[str, Meta(min_length=1, max_length=2000)]
    kind: Kind | None = None
    key: Annotated[str, Meta(min_length=1, max_length=4000)] | None = None


class UpstreamKeyRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """PUT /tessera/v1/upstreams/{name}/key; None removes it."""

    key: Annotated[str, Meta(min_length=1, max_length=4000)] | None = None


class UpstreamModel(msgspec.Struct, frozen=True, kw_only=True):
    """One model of an upstream; `allowed`: a rule sends requests for its full name there."""

    name: str
    n_ctx: int = 0
    capabilities: tuple[str, ...] = ()
    allowed: bool = False


class UpstreamRow(msgspec.Struct, frozen=True, kw_only=True):
    """One upstream. `state` is the last probe's result, `at` its time (0: never); `plain_text`: no encryption."""

    name: str
    url: str
    kind: Kind
    state: Literal["unknown", "ok", "refused", "unreachable", "failed"]
    reason: str = ""
    reason_detail: Reason | None = None
    at: float = 0.0
    latency_ms: float = 0.0
    key: Literal["keyring", "file"] | None = None
    plain_text: bool = False
    models: tuple[UpstreamModel, ...] = ()


class UpstreamRule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Requests for `model` may go to `upstream`, where the model is called `as_model`.

    With `queue`, only if more than `queue` requests wait here; with `unfit`, only if the model does not fit here;
    otherwise always.
    """

    model: ModelName
    upstream: Name
    as_model: ModelName | None = None
    queue: Annotated[int, Meta(ge=0, le=10_000)] | None = None
    unfit: bool = False


class Upstreams(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tessera/v1/upstreams. Earlier rules take precedence."""

    upstreams: tuple[UpstreamRow, ...] = ()
    rules: tuple[UpstreamRule, ...] = ()
