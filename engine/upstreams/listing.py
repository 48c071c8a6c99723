"""What an upstream's list of models says: names, contexts, and what kind of server it is."""

from typing import Any, Final

import msgspec

from devices.msgspec_lock import learned
from engine.upstreams.types import Kind, UpstreamModel

MOST_MODELS: Final = 2000
_MOST_NAME: Final = 200
# Who says to own the models of a local server.
_OWNERS: Final[dict[str, Kind]] = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llama-server"}


class NoList(ValueError):
    """The body is no list of models; `why` is what its reader says."""

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
            continue  # what another Tessera would pass on itself is its user's affair
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
    if isinstance(row.capabilities, list):  # llama-server says "completion" and "multimodal", Tessera its own words
        stated = tuple(str(c)[:32] for c in row.capabilities[:16] if isinstance(c, str))
        if {"embedding", "rerank"} & set(stated):
            return UpstreamModel(name=row.id, n_ctx=n_ctx, capabilities=stated)
        vision = ("vision",) if "multimodal" in stated else ()
        chats = tuple(dict.fromkeys(("completion", "chat", "tools", *stated, *vision)))
        return UpstreamModel(name=row.id, n_ctx=n_ctx, capabilities=tuple(c for c in chats if c != "multimodal"))
    return UpstreamModel(name=row.id, n_ctx=n_ctx)
