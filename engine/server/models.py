"""Which models this server offers, and how each is loaded."""

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import psutil

from engine.errors import BadModelFile, InputFault, ModelNotFound
from engine.flm.entries import flm_entries
from engine.library.catalogue import Catalogue
from engine.library.types import ModelEntry
from engine.runner.protocol import LoadSettings
from engine.server.aliases import Aliases
from engine.server.drafts import Drafts, unfit_draft

log = logging.getLogger(__name__)

# Without a wish, long-context models get this much: enough for a long chat, small next to the weights.
DEFAULT_CONTEXT: Final = 8192
DEFAULT_PARALLEL: Final = 8
ONNX_PARALLEL: Final = 2
ENGINES: Final = {"gguf": "llama", "onnx": "onnx", "flm": "flm"}
# A model this small stays in a core's cache and has hundreds of barriers a millisecond: a second thread gains
# little on an idle machine and loses ten times the speed on a busy one. Measured: docs/log.md, engine.
ONE_THREAD_BYTES: Final = 64 << 20
# Computed prefixes kept outside the KV cache. A chat of 4k tokens takes 50 MB (tiny) to 500 MB (0.6B, f16).
PREFIX_RAM_BYTES: Final = 512 << 20
PREFIX_DISK_BYTES: Final = 4 << 30


class ServedModels:
    """The catalogue as the pool and the routes see it. Opened on first use, off the event loop."""

    def __init__(
        self,
        open_catalogue: Callable[[], Catalogue],
        context: int | None = None,
        aliases: Aliases | None = None,
        cache: Path | None = None,
        place: Callable[[str, LoadSettings], LoadSettings] | None = None,
        lora: tuple[tuple[str, str], ...] = (),
        drafts: Drafts | None = None,
    ) -> None:
        self._lora = lora
        self.drafts = drafts or Drafts()
        self._cache = cache
        self._place = place
        self.aliases = aliases or Aliases()
        self._open = open_catalogue
        self._context = context
        self._catalogue: Catalogue | None = None
        self._flm: tuple[ModelEntry, ...] | None = None
        self._lock = asyncio.Lock()

    async def catalogue(self) -> Catalogue:
        """The catalogue, scanned once."""
        async with self._lock:
            if self._catalogue is None:
                self._catalogue = await asyncio.to_thread(self._open)
            return self._catalogue

    async def entries(self) -> tuple[ModelEntry, ...]:
        """Models that can be served now."""
        catalogue = await self.catalogue()
        return (*await asyncio.to_thread(catalogue.entries), *await self._external())

    async def _external(self) -> tuple[ModelEntry, ...]:
        """Models that FastFlowLM has; its program is asked once."""
        async with self._lock:
            if self._flm is None:
                self._flm = await asyncio.to_thread(flm_entries)
            return self._flm

    async def entry(self, name: str) -> ModelEntry:
        """The model of that name or alias, known to be on disk and sound.

        Raises: ModelNotFound, BadModelFile.
        """
        catalogue = await self.catalogue()
        resolved = self.aliases.resolve(name)
        external = next((e for e in await self._external() if e.id == resolved), None)
        if external is not None:
            return external
        entry = await asyncio.to_thread(catalogue.get, resolved)
        if entry is None:
            known = tuple(e.id for e in await asyncio.to_thread(catalogue.entries))
            raise ModelNotFound(name, known[:8])
        if entry.state == "offline":
            raise BadModelFile(str(entry.path), "its drive is not mounted; connect it and try again")
        if entry.state == "broken":
            raise BadModelFile(str(entry.path), entry.problem or "the file is damaged; download it again")
        return entry

    async def resolve(self, model: str) -> tuple[str, str, LoadSettings]:
        """What the pool needs to load a model; where it runs is the dispatcher's choice, if there is one."""
        entry = await self.entry(model)
        if entry.format == "safetensors":
            raise InputFault(
                f"{entry.id} is a {entry.format} folder; convert it first with `tessera quantize {entry.id}`.",
                "model",
            )
        settings = self.settings(entry)
        draft_path = None if settings.embeddings else await self._draft_path(entry)
        settings = msgspec.structs.replace(settings, draft_path=draft_path)
        if self._place is not None:
            settings = await asyncio.to_thread(self._place, entry.id, settings)
        return entry.id, ENGINES[entry.format], settings

    async def choose_draft(self, entry: ModelEntry, name: str | None) -> None:
        """Let another model draft for this one; None: no longer.

        Raises: ModelNotFound, BadModelFile; InputFault: it is of another vocabulary.
        """
        if name is None:
            self.drafts.set(entry.id, None)
            return
        draft = await self.entry(name)
        problem = await asyncio.to_thread(unfit_draft, entry.path, draft.path)
        if problem is not None:
            raise InputFault(f"{draft.id} cannot draft for {entry.id}: {problem}.", "draft")
        self.drafts.set(entry.id, draft.id)

    async def _draft_path(self, entry: ModelEntry) -> str | None:
        """The file of the model that drafts: the chosen one, or the server's if it fits."""
        chosen = self.drafts.get(entry.id)
        if chosen is not None:
            return str((await self.entry(chosen)).path)
        if self.drafts.default is None:
            return None
        draft = await self.entry(self.drafts.default)
        problem = await asyncio.to_thread(unfit_draft, entry.path, draft.path)
        if problem is not None:
            log.info("model=%s runs without draft model %s: %s", entry.id, draft.id, problem)
            return None
        return str(draft.path)

    def settings(self, entry: ModelEntry) -> LoadSettings:
        """How the model is loaded."""
        trained = entry.context_train or DEFAULT_CONTEXT
        n_ctx = min(self._context or DEFAULT_CONTEXT, trained)
        embeds = bool({"embedding", "rerank"} & set(entry.capabilities))
        if entry.format == "flm":
            return LoadSettings(path=entry.folder or "", n_ctx=n_ctx, n_parallel=1)
        onnx = entry.format == "onnx"  # one generator a sequence, each with a cache of its full length
        threads = 1 if entry.size_bytes < ONE_THREAD_BYTES else usable_cores()
        return LoadSettings(
            path=str(entry.path),
            mmproj_path=None if embeds else entry.projector,
            n_ctx=n_ctx,
            kv_cells=n_ctx * (ONNX_PARALLEL if onnx else DEFAULT_PARALLEL),
            n_parallel=ONNX_PARALLEL if onnx else DEFAULT_PARALLEL,
            allow_fallback=onnx and os.environ.get("TESSERA_ONNX_FALLBACK") == "1",
            embeddings=embeds,
            n_threads=threads,
            n_threads_batch=threads,
            cache_dir=str(self._cache / "prefixes") if self._cache else None,
            cache_ram_bytes=PREFIX_RAM_BYTES,
            cache_disk_bytes=PREFIX_DISK_BYTES,
            lora=tuple(path for name, path in self._lora if self.aliases.resolve(name) == entry.id),
        )


def usable_cores() -> int:
    """Physical cores this process may use: hyperthreads slow the kernels down."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(psutil.cpu_count(logical=False) or allowed, allowed))
