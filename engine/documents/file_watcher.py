"""Following files on disk: the system tells of changes where it can, else folders are looked at now and then."""

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from engine.message_catalog.reasons import Reason, because

log = logging.getLogger(__name__)

# Changes that come together (a program that saves writes several times) are told together.
_GATHER_MS: Final = 300
_STEP_MS: Final = 50
_WAKE_MS: Final = 1000


class Follower:
    """Calls `changed` with paths below the sources, on a thread of its own. `problem` says why it cannot follow."""

    def __init__(self, changed: Callable[[set[str]], None]) -> None:
        self._changed = changed
        self._sources: tuple[str, ...] = ()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.problem: Reason | None = None

    def follow(self, sources: Sequence[str]) -> None:
        """Follow these from now on; sources that are not there are left out until this is called again."""
        wanted = tuple(sorted({source for source in sources if Path(source).exists()}))
        if wanted == self._sources:
            return
        self.stop()
        self._sources = wanted
        if wanted:
            self._stop = threading.Event()
            self._thread = threading.Thread(
                target=self._run, args=(wanted, self._stop), name="documents-follow", daemon=True
            )
            self._thread.start()

    def _run(self, sources: tuple[str, ...], stop: threading.Event) -> None:
        from watchfiles import watch  # noqa: PLC0415 - only where something is followed

        self.problem = None
        try:
            for changes in watch(
                *sources,
                watch_filter=None,
                debounce=_GATHER_MS,
                step=_STEP_MS,
                rust_timeout=_WAKE_MS,
                stop_event=stop,
                ignore_permission_denied=True,
                raise_interrupt=False,
            ):
                self._changed({path for _, path in changes})
        except (OSError, RuntimeError) as error:  # the system's limit of watches; a source that went away
            self.problem = because("looked_for_every_minute", why=str(error))
            log.warning("documents are not followed: %s", error)
            self._sources = ()

    def stop(self) -> None:
        """Follow nothing any more."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._thread, self._sources = None, ()
