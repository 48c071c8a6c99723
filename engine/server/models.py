"""The models that this server offers, and their load settings."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from engine.core.errors import BadModelFile, InputFault, ModelNotFound
from engine.core.sampling import NOTHING_RECOMMENDED, Recommended
from engine.library.catalogue import Catalogue
from engine.library.default_model import default_model
from engine.library.types import ModelEntry
from engine.message_catalog.reasons import because
from engine.placement.external import ProgramStore, place_upstream, upstream_settings
from engine.placement.load_settings import load_settings, open_context, recommended_for, with_engine_args
from engine.placement.model_settings import NO_PRESET, ModelSettingsStore, Preset, unfit_draft
from engine.placement.types import NO_OVERRIDES, ModelSettings, Placement, PlacementLimits
from engine.pool.loaded_model import EXTERNAL, REMOTE
from engine.pool.model_resolution import ResolvedModel
from engine.runner.engine_args import NO_ARGS
from engine.runner.load_limits import resize_context
from engine.runner.protocol import LoadSettings
from engine.upstreams.errors import NoRule
from engine.upstreams.registry import UpstreamRegistry, external_entries
from engine.upstreams.types import ASSUMED_CONTEXT, PREFIX, UpstreamRoute

# Name of the default model, which answers requests without a model name, unless an alias redefines it.
DEFAULT_NAME: Final = "default"
log = logging.getLogger(__name__)

ENGINES: Final = {"gguf": "llama", "onnx": "onnx", "remote": REMOTE}
# Tag that Ollama's lists append to names without one.
LATEST: Final = ":latest"


class ServedModels:
    """The catalogue as used by the pool and the routes. Opened on first use, off the event loop.

    `choose` selects the placement of a model. `overrides` are the server's command-line options. `draft` is the
    default draft model for all models with its vocabulary for which the user set none.
    """

    def __init__(
        self,
        open_catalogue: Callable[[], Catalogue],
        context: int | None = None,
        user_settings: ModelSettingsStore | None = None,
        cache: Path | None = None,
        choose: Callable[[str, LoadSettings, PlacementLimits], Placement] | None = None,
        overrides: PlacementLimits = NO_OVERRIDES,
        lora: tuple[tuple[str, str], ...] = (),
        draft: str | None = None,
        upstreams: UpstreamRegistry | None = None,
        programs: ProgramStore | None = None,
    ) -> None:
        self.upstreams = upstreams or UpstreamRegistry()
        self.programs = programs or ProgramStore()
        self._lora = lora
        self._draft = draft
        self.user_settings = user_settings or ModelSettingsStore()
        self._entries: dict[str, ModelEntry] = {}
        self._cache = cache
        self._choose = choose
        self.overrides = overrides
        self._open = open_catalogue
        self._context = context
        self._catalogue: Catalogue | None = None
        self._lock = asyncio.Lock()

    async def catalogue(self) -> Catalogue:
        """The catalogue, scanned once."""
        async with self._lock:
            if self._catalogue is None:
                self._catalogue = await asyncio.to_thread(self._open)
            return self._catalogue

    async def entries(self) -> tuple[ModelEntry, ...]:
        """Models that can be served now; upstream models only if the user's rules permit requests to them."""
        catalogue = await self.catalogue()
        remote = (e for e in self.upstreams.entries() if self.upstreams.allows(e.id))
        return (*await asyncio.to_thread(catalogue.entries), *await self.external(), *remote)

    async def automatic(self) -> tuple[ModelEntry, ...]:
        """Local models that may be selected for requests without a model name."""
        entries = await self.entries()
        return tuple(e for e in entries if e.format != "remote" and not self.server_of(e.id))

    def server_of(self, model: str) -> str:
        """URL of the other server that answers all requests for this name, or "" for this computer."""
        try:
            away = self.always(model)
        except NoRule:
            return ""
        return away.server if away is not None else ""

    # ---- engine.pool.pool.UpstreamRouter

    def always(self, model: str) -> ResolvedModel | None:
        """The route for all requests with this name; None: answer locally. Raises: NoRule."""
        untagged = model.removesuffix(LATEST)
        return self._away(untagged, self.upstreams.way(self.user_settings.resolve(untagged)))

    def relief(self, model_id: str, queued: int | None) -> ResolvedModel | None:
        """The route for a request with `queued` others before it; None: its model does not fit."""
        return self._away(model_id, self.upstreams.relief(model_id, queued=queued))

    def _away(self, model: str, way: UpstreamRoute | None) -> ResolvedModel | None:
        if way is None:
            return None
        name = way.upstream.name
        listed = self.upstreams.model(name, way.model)
        settings = upstream_settings(name, way.model, (listed.n_ctx if listed else 0) or ASSUMED_CONTEXT)
        placed = place_upstream(settings)
        rule = because("upstream_rule", rule=way.rule.fact())
        return ResolvedModel(
            model_id=model if model == f"{name}/{way.model}" else f"{model}@{name}",
            engine=REMOTE,
            settings=settings,
            placement=msgspec.structs.replace(placed, reasons=(rule, *placed.reasons)),
            server=way.upstream.url,
            ran_on=way.fact(),
        )

    async def external(self, *, fresh: bool = False) -> tuple[ModelEntry, ...]:
        """Models that other local programs can serve. The programs are queried once, and again with `fresh`."""
        catalogue = await self.catalogue()
        async with self._lock:
            return await asyncio.to_thread(lambda: external_entries(catalogue.entries(), fresh=fresh))

    async def known(self, name: str) -> ModelEntry:
        """The model with that name or alias, even if its file is gone; Ollama's tag `:latest` may follow the name.

        Use it where nothing is loaded: a loaded model continues to answer when its file is gone. Raises:
        ModelNotFound.
        """
        entry = await self._entry_or_none(name)
        if entry is None and name != (untagged := name.removesuffix(LATEST)):
            entry = await self._entry_or_none(untagged)
        if entry is None:
            ids = tuple(e.id for e in await self.entries())
            raise ModelNotFound(name, ids[:8])
        return entry

    async def entry(self, name: str) -> ModelEntry:
        """The model with that name or alias, with a usable file. Raises: ModelNotFound, BadModelFile."""
        entry = await self.known(name)
        if entry.state == "offline":
            raise BadModelFile(str(entry.path), "its drive is not mounted; connect it and try again")
        if entry.state == "missing":
            raise BadModelFile(str(entry.path), "it was moved or deleted; link its new place, or remove the model")
        if entry.state == "broken":
            raise BadModelFile(str(entry.path), entry.problem or "the file is damaged; download it again")
        return entry

    async def _entry_or_none(self, name: str) -> ModelEntry | None:
        catalogue = await self.catalogue()
        resolved = await asyncio.to_thread(self.user_settings.resolve, name, catalogue.get)
        remote = self.upstreams.entry(resolved)
        if remote is not None:
            return remote
        if resolved == DEFAULT_NAME:
            chosen = default_model(await asyncio.to_thread(catalogue.entries))
            resolved = chosen.id if chosen is not None else resolved
        external = {entry.id: entry for entry in await self.external()}
        return external.get(name) or external.get(resolved) or await asyncio.to_thread(catalogue.get, resolved)

    async def add_alias(self, name: str, model: str, preset: Preset = NO_PRESET) -> ModelEntry:
        """Make `name` another name of a model. Raises: as `entry`; InputFault: a model has this name."""
        entry = await self.entry(model)
        catalogue = await self.catalogue()
        is_external = any(other.id == name for other in await self.external())
        if is_external or await asyncio.to_thread(catalogue.get, name) is not None:
            raise InputFault(f"There is already a model named {name!r}.", "alias")
        self.user_settings.set_alias(name, entry.id, preset)
        return entry

    async def resolve(self, model: str, min_ctx: int = 0) -> ResolvedModel:
        """Load settings for the pool, with the placement if `choose` is set.

        Raises: ModelNotFound, BadModelFile, InputFault.
        """
        entry, settings = await self.unplaced(model)
        if settings.engine_args.n_ctx is not None:  # it fixes the size for every client
            min_ctx = 0
        n_ctx = min(min_ctx, entry.context_train or min_ctx)
        if n_ctx > settings.n_ctx or (n_ctx and self._context is None):
            settings = resize_context(settings, n_ctx)
        placement, user_settings = None, self.user_settings.get(entry.id)
        if self._choose is not None:
            overrides = self.overrides_for(entry, min_ctx=min_ctx)
            if overrides.n_ctx is not None and n_ctx > overrides.n_ctx:
                overrides = msgspec.structs.replace(overrides, n_ctx=n_ctx)
            placement = await asyncio.to_thread(self._choose, entry.id, settings, overrides)
            settings = placement.settings
        return ResolvedModel(
            model_id=entry.id,
            engine=REMOTE if entry.format == "remote" else EXTERNAL if settings.external else ENGINES[entry.format],
            settings=settings,
            placement=placement,
            keep=user_settings.keep_loaded,
            chosen=user_settings,
        )

    def chosen(self, model_id: str) -> ModelSettings:
        """The user's current settings for a model."""
        return self.user_settings.get(model_id)

    def overrides_for(self, entry: ModelEntry, *, min_ctx: int = 0, saved: bool = True) -> PlacementLimits:
        """Options for a load of this model: the server's, and if `saved`, the user's settings for the model.

        If no context length is set, the placement may choose it.
        """
        overrides = self.overrides
        if saved:
            overrides = overrides.with_options(self.user_settings.get(entry.id))
        is_chosen = bool(min_ctx or self._context or overrides.n_ctx)
        chats = not {"embedding", "rerank"} & set(entry.capabilities)
        return msgspec.structs.replace(overrides, max_ctx=open_context(is_chosen=is_chosen or not chats))

    async def unplaced(self, model: str) -> tuple[ModelEntry, LoadSettings]:
        """A loadable model and its settings before placement. Raises: as `resolve`."""
        entry = await self.entry(model)
        if entry.format == "safetensors":
            raise InputFault(
                f"{entry.id} is a {entry.format} folder; convert it first with `tessera quantize {entry.id}`.",
                "model",
            )
        self._entries[entry.id] = entry
        settings = self.settings(entry)
        draft_path = None if settings.embeddings else await self.draft_path(entry)
        return entry, msgspec.structs.replace(settings, draft_path=draft_path)

    def recommended(self, model_id: str) -> Recommended:
        """Recommended sampling of a model that was loaded before, for fields that a request does not set."""
        entry = self._entries.get(model_id)
        return NOTHING_RECOMMENDED if entry is None else self.recommended_for(entry)

    def recommended_for(self, entry: ModelEntry) -> Recommended:
        """Recommended sampling of any model of the library."""
        return recommended_for(entry, self.user_settings.get(entry.id))

    async def choose_draft(self, entry: ModelEntry, name: str | None) -> None:
        """Set the draft model of a model; None removes it.

        Raises: ModelNotFound, BadModelFile; InputFault: its vocabulary differs.
        """
        if name is None:
            self.user_settings.change(entry.id, draft=None)
            return
        draft = await self.entry(name)
        problem = await asyncio.to_thread(unfit_draft, entry.path, draft.path)
        if problem is not None:
            raise InputFault(f"{draft.id} cannot draft for {entry.id}: {problem}.", "draft")
        self.user_settings.change(entry.id, draft=draft.id)

    async def draft_path(self, entry: ModelEntry) -> str | None:
        """File of the draft model: the user's choice, or the server's default if it fits."""
        chosen = self.user_settings.get(entry.id).draft
        if chosen is not None:
            return str((await self.entry(chosen)).path)
        if self._draft is None:
            return None
        draft = await self.entry(self._draft)
        problem = await asyncio.to_thread(unfit_draft, entry.path, draft.path)
        if problem is not None:
            log.info("model=%s runs without draft model %s: %s", entry.id, draft.id, problem)
            return None
        return str(draft.path)

    def settings(self, entry: ModelEntry) -> LoadSettings:
        """Load settings of a model before placement."""
        if entry.format == "remote":
            name, _, model = str(entry.folder).removeprefix(PREFIX).partition("/")
            return upstream_settings(name, model, entry.context_train or ASSUMED_CONTEXT)
        settings, chosen = self.usual_settings(entry), self.user_settings.get(entry.id)
        if chosen.engine is not None and entry.format == "gguf":
            return self._in_program(settings, entry, chosen.engine)
        args = chosen.engine_args
        return settings if args == NO_ARGS or entry.format != "gguf" else with_engine_args(settings, args)

    def _in_program(self, settings: LoadSettings, entry: ModelEntry, name: str) -> LoadSettings:
        """Settings of a load in a program that the user added. Raises: InputFault: it was removed."""
        program = self.programs.get(name)
        if "rerank" in entry.capabilities:
            program = msgspec.structs.replace(program, arguments=(*program.arguments, "--reranking"))
        return msgspec.structs.replace(settings, external=program)

    async def choose_engine(self, entry: ModelEntry, name: str | None) -> None:
        """Select the added program that serves this model; None: Tessera's own engine.

        Raises: InputFault: no such program, or it cannot serve this model. OSError.
        """
        if name is not None:
            self.programs.get(name)
            if entry.format != "gguf":
                raise InputFault(because("engine_reads_gguf", engine=name, model=entry.id), "engine")
            if self.user_settings.get(entry.id).engine_args != NO_ARGS:
                raise InputFault(because("engine_has_args", engine=name, model=entry.id), "engine")
        await asyncio.to_thread(self.user_settings.change, entry.id, engine=name)

    def usual_settings(self, entry: ModelEntry) -> LoadSettings:
        """Load settings before placement, without the model's own engine arguments."""
        lora = tuple(path for name, path in self._lora if self.user_settings.resolve(name) == entry.id)
        return load_settings(entry, self._context, self._cache, lora)
