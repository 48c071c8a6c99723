"""LoRA adapters: loaded with the model, chosen by each request, switched between steps.

An adapter applies to the whole context, so one step can serve only sequences with the same adapters.
"""

import ctypes
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from engine.runner.llama.cache.prefix_index import Key
from engine.runner.llama.native import log
from engine.runner.llama.native.model import FileRefused, LoadedModel, metadata_of
from engine.runner.llama.sequence import LlamaSequence


class Adapters:
    """The adapters of one model, by file name without extension."""

    def __init__(self, loaded: LoadedModel, paths: Iterable[str]) -> None:
        self._api = loaded.api
        self._loaded = loaded
        self._handles: dict[str, Any] = {}
        self._active: Key = ()
        self._turn: Key = ()
        files = tuple(paths)
        if not files:
            return
        from engine.runner.llama.batch.fitted_adapter import fitted

        for path in files:
            log.begin("the LoRA adapter", str(path))
            with fitted(Path(path), metadata_of(loaded)) as fitting:
                handle = self._api.llama_adapter_lora_init(loaded.model, str(fitting).encode())
            if not handle:
                raise FileRefused(log.explained(f"the LoRA adapter {path} does not fit this model or is damaged"))
            self._handles[Path(path).stem] = handle

    def within(self, loaded: LoadedModel) -> "Adapters":
        """Return the same adapters for another context of the same weights."""
        other = Adapters(loaded, ())
        other._handles = self._handles
        return other

    @property
    def names(self) -> tuple[str, ...]:
        """Names that requests may use."""
        return tuple(self._handles)

    def unknown(self, key: Key) -> str | None:
        """Return the first adapter of `key` that is not loaded, or None."""
        return next((name for name, _ in key if name not in self._handles), None)

    def members(self, running: list[LlamaSequence]) -> list[LlamaSequence]:
        """Return the sequences of the next step: one group with the same adapters; the groups take turns."""
        keys = list(dict.fromkeys(s.request.lora for s in running)) if self._handles else []
        if len(keys) > 1:
            last = keys.index(self._turn) if self._turn in keys else -1
            self._turn = keys[(last + 1) % len(keys)]
            running = [s for s in running if s.request.lora == self._turn]
        elif keys:
            self._turn = keys[0]
        self.activate(self._turn)
        return running

    def rebind(self) -> None:
        """Apply the active adapters to a new context, which has none yet."""
        active, self._active = self._active, ()
        self.activate(active)

    def activate(self, key: Key) -> None:
        """Use these adapters in the next steps."""
        if key == self._active:
            return
        count = len(key)
        handles = (self._api.llama_adapter_lora_p_ctypes * max(count, 1))(*(self._handles[name] for name, _ in key))
        scales = (ctypes.c_float * max(count, 1))(*(scale for _, scale in key))
        self._api.llama_set_adapters_lora(self._loaded.context, handles, count, scales)
        self._active = key
