"""Streams the experts of one load, and stores their usage statistics for the next one."""

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

# Minimum interval between writes of the statistics, which happen when idle.
_SAVE_EVERY_S: Final = 60.0


class StreamedExperts:
    """The streamed experts of a load whose settings limit their memory."""

    def __init__(self, api: Any, settings: LoadSettings) -> None:
        """Prepare streaming. Raises: CannotStream."""
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
        """The callback that every context of the model needs."""
        return self._stream.callback

    def begin(self) -> None:
        """Start streaming after the file is mapped. Raises: CannotStream."""
        use = self._store.get() if self._store is not None else ExpertUse()
        try:
            model = cached_gguf_model(self._settings.path)
        except TesseraError as error:
            raise CannotStream(str(error)) from error
        self._stream.begin(model, self._settings.expert_bytes, use)
        self._saved_tokens = use.tokens

    def problem(self) -> str:
        """Return why the last step is invalid; empty if it is valid."""
        return self._stream.problem

    def stats(self) -> ExpertStats:
        """Return the counts since the load."""
        return self._stream.stats()

    def on_idle(self) -> None:
        """Write the statistics if the last write was long enough ago."""
        if time.monotonic() - self._saved_at > _SAVE_EVERY_S:
            self.keep()

    def keep(self) -> None:
        """Write the statistics."""
        self._saved_at = time.monotonic()
        use = self._stream.use()
        if self._store is not None and use.tokens != self._saved_tokens:
            self._saved_tokens = use.tokens
            keep(self._store, use)

    def close(self) -> None:
        """Write the statistics and stop reading."""
        self.keep()
        self._stream.close()
