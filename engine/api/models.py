"""/tessera/v1/loaded, /models/{id}/load and /aliases: loaded models and their aliases."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from engine.placement.types import LoadOptions
from engine.runner.engine_args import NO_ARGS, BadEngineArg, EngineArgs, from_text, given

Applies = Literal["now", "when_idle", "at_load"]
Name = Annotated[str, Meta(min_length=1, max_length=200)]


class LoadRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """POST /tessera/v1/models/{id}/load. With `ttl_s` 0 the model stays loaded until it is unloaded.

    `draft` sets the draft model for speculative decoding, which must have the same vocabulary; an empty string
    disables it. `engine_args` is stored too; `{}` removes all arguments. `n_ctx` is the minimum context length. A
    loaded model's context grows while it serves requests, up to its training context; the request is refused if
    there is not enough memory. `ctx`, `num_ctx` and `context_length` are other names for it.
    `n_parallel`, `kv_type`, `n_gpu_layers` and `n_threads` are stored, as in load-settings. `keep_alive` is
    Ollama's name for `ttl_s`; -1 means permanently.
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
        """The requested context length, from whichever field has it."""
        names = (self.n_ctx, self.ctx, self.num_ctx, self.context_length)
        return next((value for value in names if value is not None), None)

    @property
    def idle_s(self) -> float | None:
        """Seconds that the idle model stays loaded; 0: permanently; None: not given."""
        if self.ttl_s is not None or self.keep_alive is None:
            return self.ttl_s
        return max(self.keep_alive, 0)

    @property
    def lasting(self) -> dict[str, int | str]:
        """The settings that also apply to later loads, by the field names of `LoadOptions`."""
        values = {
            "n_parallel": self.n_parallel,
            "type_k": self.kv_type,
            "n_gpu_layers": self.n_gpu_layers,
            "n_threads": self.n_threads,
        }
        return {name: value for name, value in values.items() if value is not None}


class LoadedModel(msgspec.Struct, frozen=True, kw_only=True):
    """State of one model of the pool. `progress` of its load is 0 to 1; `died` is the reason its runner exited.

    `n_ctx` is the current context length. `max_ctx` is the length that it can grow to while serving (0: it cannot
    grow). `pending` lists settings that take effect when the last running response ends.
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
    """POST /tessera/v1/models/{id}/unload; `unloaded` is False if the model was not loaded."""

    id: str
    unloaded: bool


class ModelLoadSettings(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tessera/v1/models/{id}/load-settings; `unloaded` if it was idle: its next request loads it again.

    `applies` says when a change takes effect: `now`, `when_idle` (after the running responses; later requests wait
    for it) or `at_load` (the model is not loaded).
    """

    id: str
    user: LoadOptions = LoadOptions()
    context_train: int = 0
    unloaded: bool = False
    applies: Applies = "at_load"


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """PUT /tessera/v1/models/{id}/engine: a program from `tessera engine add`; null: Tessera's own engine."""

    engine: Annotated[str, Meta(min_length=1, max_length=40)] | None


class ModelEngine(msgspec.Struct, frozen=True, kw_only=True):
    """Response of PUT .../engine; `unloaded` if the model was idle: its next request loads it there."""

    id: str
    engine: str | None
    unloaded: bool = False
    applies: Applies = "at_load"


class EngineArgsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """PUT /tessera/v1/models/{id}/engine_args: arguments for llama.cpp; `{}` removes all."""

    engine_args: EngineArgs


class ModelEngineArgs(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """GET /tessera/v1/models/{id}/engine_args. `needed_bytes` is the memory of a load with the arguments just set.

    `unloaded` is True if the model was idle; its next request loads it with them.
    """

    id: str
    engine_args: EngineArgs = NO_ARGS
    needed_bytes: int | None = None
    unloaded: bool = False
    applies: Applies = "at_load"


class SamplingRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """PUT /tessera/v1/models/{id}/sampling: the user's values; an omitted field uses the recommended value."""

    values: dict[str, float | int]


class EffectiveValue(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One sampling field: its value, its source, and the URL of that source if there is one."""

    value: float | int
    source: Literal["request", "user", "file", "generation_config", "model_card", "llama.cpp", "ollama"]
    link: str = ""


class ModelSampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """GET /tessera/v1/models/{id}/sampling: sampling values for fields that a request does not set.

    `user` has the user's values. `recommended` has the values that apply without them. The two fields ending in
    `without_reasoning` apply to responses without a reasoning block.
    """

    id: str
    user: dict[str, float | int] = {}
    in_force: dict[str, EffectiveValue] = {}
    recommended: dict[str, EffectiveValue] = {}
    in_force_without_reasoning: dict[str, EffectiveValue] = {}
    recommended_without_reasoning: dict[str, EffectiveValue] = {}


class AliasRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """PUT /tessera/v1/aliases/{alias}."""

    model: Name


class Alias(msgspec.Struct, frozen=True, kw_only=True):
    """An alias of a model."""

    alias: str
    model: str


class Aliases(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tessera/v1/aliases: alias to model."""

    aliases: dict[str, str]
