"""What the pool asks before, during and after a load: the memory ledger."""

from typing import Protocol

from engine.dispatch.types import Fallback
from engine.errors import EngineError
from engine.runner.buffers import BufferLog
from engine.runner.protocol import LoadSettings
from engine.types import DeviceCheck


class Admission(Protocol):
    """Decides whether a model fits beside those that are loaded."""

    async def reserve(self, model_id: str, settings: LoadSettings) -> None:
        """Reserve memory. Raises: NotEnoughMemory."""
        ...

    async def widen(self, model_id: str, settings: LoadSettings) -> None:
        """Reserve memory for the context of a loaded model's deterministic requests. Raises: NotEnoughMemory."""
        ...

    async def to_load(self, settings: LoadSettings) -> LoadSettings:
        """The settings as the runner gets them: with what its device must be compared with."""
        ...

    async def compared(self, settings: LoadSettings, check: DeviceCheck | None) -> None:
        """A load succeeded; `check` is how its device compared with the CPU, None where it was not compared."""
        ...

    async def retry(self, model_id: str, settings: LoadSettings, error: EngineError) -> Fallback | None:
        """Other settings to try after a load or the first token failed with `error`; None: give up."""
        ...

    def proven(self, model_id: str) -> None:
        """The model has generated a token with the settings it was loaded with."""
        ...

    def attach(self, model_id: str, pid: int, buffers: BufferLog) -> None:
        """The model lives in this process now; `buffers` is what its log says it allocated."""
        ...

    def observed(self, model_id: str, tokens: int, decode_s: float) -> None:
        """A request that ran alone generated this many tokens in this time."""
        ...

    def answered(self, model_id: str, tokens: int, depth: float, at_once: int) -> None:
        """An answer of `tokens` ended, on average behind `depth` others, as one of `at_once` requests."""
        ...

    async def unloading(self, model_id: str, cached_bytes: int) -> None:
        """The model is about to be unloaded; `cached_bytes` of its memory are prefixes kept for later."""
        ...

    def release(self, model_id: str) -> None:
        """The model's memory is free again."""
        ...
