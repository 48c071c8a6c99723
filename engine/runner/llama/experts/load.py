"""The experts of one load: where they are streamed, with what was learnt of them before, and learnt from them."""

import sys
import time
from pathlib import Path
from typing import Any, Final

from devices.errors import TesseraError
from engine.core.expert_stats import ExpertUse, folder_of, keep, use_store
from engine.core.json_store import JsonStore
from engine.runner.llama.experts.expert_cache import CannotStream, ExpertStream
from engine.runner.protocol import ExpertStats, LoadSettings
from quantize.files.header_cache import cached_gguf_model

# What was learnt is written in pauses, this long after the last time.
_SAVE_EVERY_S: Final = 60.0


class StreamedExperts:
    """Of a load whose settings say how much memory its experts may take."""

    def __init__(self, api: Any, settings: LoadSettings) -> None:
        """Raises: CannotStream."""
        if sys.platform != "linux":
            raise CannotStream("experts are streamed on Linux only")
        if settings.embeddings or not settings.use_mmap or settings.repack or settings.use_mlock:
            raise CannotStream("experts are streamed from a mapped file whose weights are used as they are")
        self._settings = settings
        self._stream = ExpertStream(api)
        folder = folder_of(settings.cache_dir)
        self._store: JsonStore[ExpertUse] | None = use_store(folder, Path(settings.path)) if folder else None
        self._saved_at = time.monotonic()
        self._saved_tokens = 0.0

    @property
    def callback(self) -> Any:
        """What every context of the model is made with."""
        return self._stream.callback

    def begin(self) -> None:
        """The file is mapped now. Raises: CannotStream."""
        use = self._store.get() if self._store is not None else ExpertUse()
        try:
            model = cached_gguf_model(self._settings.path)
        except TesseraError as error:
            raise CannotStream(str(error)) from error
        self._stream.begin(model, self._settings.expert_bytes, use)
        self._saved_tokens = use.tokens

    def problem(self) -> str:
        """Why the last step is of no use; empty where it is."""
        return self._stream.problem

    def stats(self) -> ExpertStats:
        """Counts since the load."""
        return self._stream.stats()

    def on_idle(self) -> None:
        """Write what was learnt, now and then."""
        if time.monotonic() - self._saved_at > _SAVE_EVERY_S:
            self.keep()

    def keep(self) -> None:
        """Write what was learnt."""
        self._saved_at = time.monotonic()
        use = self._stream.use()
        if self._store is not None and use.tokens != self._saved_tokens:
            self._saved_tokens = use.tokens
            keep(self._store, use)

    def close(self) -> None:
        """Write what was learnt and read no more."""
        self.keep()
        self._stream.close()
