"""A pool that admits everything and contacts no other computer."""

from engine.placement.types import Fallback
from engine.pool.pool import Pool
from engine.runner.process import RunnerProcess


class Unlimited:
    """Admits every model."""

    async def reserve(self, model_id, settings, placement=None): ...

    async def widen(self, model_id, settings): ...

    def widened(self, model_id): ...

    async def to_load(self, settings):
        return settings

    async def compared(self, settings, check): ...

    async def retry(self, model_id, settings, error) -> Fallback | None:
        return None

    async def after_prefill_death(self, model_id, settings, depth) -> Fallback | None:
        return None

    def proven(self, model_id): ...

    def started(self, model_id, pid): ...

    def attach(self, model_id, pid, buffers): ...

    def observed(self, model_id, tokens, decode_s, depth): ...

    def answered(self, model_id, tokens, depth, at_once): ...

    async def unloading(self, model_id, cached_bytes): ...

    def release(self, model_id): ...


class Here:
    """Has no routing rules: all requests run locally."""

    def always(self, _):
        return None

    def relief(self, *_):
        return None


class FreePool(Pool):
    def __init__(self, source, start=RunnerProcess.start, admission=None, *, ttl_s=None, max_models=None):
        super().__init__(source, start, admission or Unlimited(), Here(), ttl_s, max_models)
