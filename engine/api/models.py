"""/tessera/v1/loaded, /models/{id}/load and /aliases: what is loaded, and by which names."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from engine.placement.types import LoadOptions
from engine.runner.engine_args import NO_ARGS, EngineArgs

__all__ = [
    "Alias",
    "AliasRequest",
    "Aliases",
    "Applies",
    "Decided",
    "EngineArgsRequest",
    "EngineRequest",
    "LoadOptions",
    "LoadRequest",
    "LoadedModel",
    "LoadedModels",
    "ModelEngine",
    "ModelEngineArgs",
    "ModelLoadSettings",
    "ModelSampling",
    "Name",
    "SamplingRequest",
    "Unloaded",
]

Applies = Literal["now", "when_idle", "at_load"]
Name = Annotated[str, Meta(min_length=1, max_length=200)]


class LoadRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """POST /tessera/v1/models/{id}/load. `ttl_s` 0 keeps the model until it is unloaded.

    `draft` names a smaller model of the same vocabulary that guesses ahead, from now on; empty: none does.
    `engine_args` is kept too; `{}` goes back to none. `n_ctx`: at least so many tokens of context; a loaded
    model's grows while it serves, as far as it was trained for it, and is refused where memory has no room.
    `ctx`, `num_ctx` and `context_length` are other names for it.
    `n_parallel`, `kv_type`, `n_gpu_layers` and `n_threads` hold from now on, as in load-settings. `keep_alive` is
    Ollama's word for `ttl_s`, where -1 stands for good.
    """

    pinned: bool | None = None
    draft: Annotated[str, Meta(max_length=200)] | None = None
    ttl_s: Annotated[float, Meta(ge=0, le=1e9)] | None = None
    engine_args: EngineArgs | None = None
    n_ctx: Annotated[int, Meta(ge=1, le=1 << 24)] | None = None
    ctx: Annotated[int, Meta(ge=1, le=1 << 24)] | None = None
    num_ctx: Annotated[int, Meta(ge=1, le=1 << 24)] | None = None
    context_length: Annotated[int, Meta(ge=1, le=1 << 24)] | None = None
    n_parallel: Annotated[int, Meta(ge=1, le=128)] | None = None
    kv_type: Annotated[str, Meta(max_length=20)] | None = None
    n_gpu_layers: Annotated[int, Meta(ge=-1, le=10_000)] | None = None
    n_threads: Annotated[int, Meta(ge=1, le=1024)] | None = None
    keep_alive: Annotated[float, Meta(ge=-1, le=1e9)] | None = None

    @property
    def tokens(self) -> int | None:
        """The context, by whichever name it was given."""
        names = (self.n_ctx, self.ctx, self.num_ctx, self.context_length)
        return next((given for given in names if given is not None), None)

    @property
    def idle_s(self) -> float | None:
        """Seconds it stays when idle, 0 for good; None: nothing is said of it."""
        if self.ttl_s is not None or self.keep_alive is None:
            return self.ttl_s
        return max(self.keep_alive, 0)

    @property
    def lasting(self) -> dict[str, int | str]:
        """What of it holds for later loads too, by the names of `LoadOptions`."""
        given = {
            "n_parallel": self.n_parallel,
            "type_k": self.kv_type,
            "n_gpu_layers": self.n_gpu_layers,
            "n_threads": self.n_threads,
        }
        return {name: value for name, value in given.items() if value is not None}


class LoadedModel(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one model of the pool; `progress` of its load is 0 to 1, `died` why its runner ended.

    `n_ctx` is the context it has, `max_ctx` how far that may grow while it serves (0: not at all). `pending` are
    settings that come into force when the last answer has ended.
    """

    id: str
    state: Literal["loaded", "loading", "failed", "not-loaded"]
    progress: float = 0.0
    phase: str | None = None
    waiting: int = 0
    active: int = 0
    pinned: bool = False
    ttl_s: float | None = None
    expires_in_s: float | None = None
    idle_s: float = 0.0
    pid: int | None = None
    n_ctx: int = 0
    max_ctx: int = 0
    backend: str | None = None
    notes: tuple[str, ...] = ()
    draft: str | None = None
    mtp: bool = False
    engine_args: EngineArgs = NO_ARGS
    died: str | None = None
    pending: tuple[str, ...] = ()


class LoadedModels(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tessera/v1/loaded: models that are loaded, loading, or whose runner died."""

    models: tuple[LoadedModel, ...]


class Unloaded(msgspec.Struct, frozen=True, kw_only=True):
    """POST /tessera/v1/models/{id}/unload; `unloaded` is false where nothing was loaded."""

    id: str
    unloaded: bool


class ModelLoadSettings(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tessera/v1/models/{id}/load-settings; `unloaded`: it was idle, and its next request loads it again.

    `applies` says when a change comes into force: `now`, `when_idle` (after the last answer that has begun; later
    requests wait for it) or `at_load` (it is not loaded).
    """

    id: str
    user: LoadOptions = LoadOptions()
    context_train: int = 0
    unloaded: bool = False
    applies: Applies = "at_load"


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """PUT /tessera/v1/models/{id}/engine: an added program (`tessera engine add`); null: Tessera's own."""

    engine: Annotated[str, Meta(min_length=1, max_length=40)] | None


class ModelEngine(msgspec.Struct, frozen=True, kw_only=True):
    """Its answer; `unloaded`: the model was idle, and its next request loads it there."""

    id: str
    engine: str | None
    unloaded: bool = False
    applies: Applies = "at_load"


class EngineArgsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """PUT /tessera/v1/models/{id}/engine_args: llama.cpp's own arguments; `{}` for none."""

    engine_args: EngineArgs


class ModelEngineArgs(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """GET /tessera/v1/models/{id}/engine_args. `needed_bytes` is what a load takes with those that were set now.

    `unloaded`: the model was idle, and its next request loads it with them.
    """

    id: str
    engine_args: EngineArgs = NO_ARGS
    needed_bytes: int | None = None
    unloaded: bool = False
    applies: Applies = "at_load"


class SamplingRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """PUT /tessera/v1/models/{id}/sampling: the user's own values; a field left out follows the recommendation."""

    values: dict[str, float | int]


class Decided(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One field of sampling: its value, who decided it, and the address where that is written, if there is one."""

    value: float | int
    source: Literal["request", "user", "file", "generation_config", "model_card", "llama.cpp", "ollama"]
    link: str = ""


class ModelSampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """GET /tessera/v1/models/{id}/sampling: what answers are sampled with where a request leaves it open.

    `user` are the user's own values, `recommended` what would be in force without them. The two with
    `without_reasoning` hold for answers without a reasoning block.
    """

    id: str
    user: dict[str, float | int] = {}
    in_force: dict[str, Decided] = {}
    recommended: dict[str, Decided] = {}
    in_force_without_reasoning: dict[str, Decided] = {}
    recommended_without_reasoning: dict[str, Decided] = {}


class AliasRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """PUT /tessera/v1/aliases/{alias}."""

    model: Name


class Alias(msgspec.Struct, frozen=True, kw_only=True):
    """Another name of a model."""

    alias: str
    model: str


class Aliases(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tessera/v1/aliases: alias to model."""

    aliases: dict[str, str]
