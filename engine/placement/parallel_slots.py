"""How many requests a model answers at once, and how many cells they share."""

from typing import Final

import msgspec

from engine.placement.estimate import CELL_PADDING, kv_layer_bytes
from engine.placement.flash_attention import ENOUGH_TOKENS, HARDLY_TWO
from engine.placement.history import Use
from engine.placement.shape import ModelShape
from engine.placement.types import Overrides
from engine.runner.protocol import LoadSettings

# Beyond one full context, a cache grows to this for the sake of parallel requests. llama.cpp zeroes all of it at
# the load, at about a GB a second. Measured: docs/log.md, engine.
ROOMY_BYTES: Final = 256 << 20


# Of four requests at once on average, some wait.
BUSY: Final = 3.0
MORE_PARALLEL: Final = 8


def grown(overrides: Overrides, use: Use | None) -> Overrides:
    """`overrides` with more requests at once where nobody chose their number and the model's use asks for more."""
    if overrides.n_parallel is not None or not _several(use) or use is None or use.at_once < BUSY:
        return overrides
    return msgspec.structs.replace(overrides, n_parallel=MORE_PARALLEL)


def _several(use: Use | None) -> bool:
    return use is not None and use.tokens >= ENOUGH_TOKENS and use.at_once > HARDLY_TWO


def cap_kv_cells(settings: LoadSettings, shape: ModelShape, overrides: Overrides, use: Use | None) -> LoadSettings:
    """`settings` whose shared cache holds one whole context, which is what one person needs.

    Where the user asked for requests at once, or the model's use shows some, it holds more, up to ROOMY_BYTES.
    """
    if settings.kv_cells <= settings.n_ctx:
        return settings
    if overrides.n_parallel is None and not _several(use):
        return msgspec.structs.replace(settings, kv_cells=settings.n_ctx)
    one = sum(kv_layer_bytes(shape, msgspec.structs.replace(settings, kv_cells=0)))
    cells = settings.n_ctx * ROOMY_BYTES // one if one else settings.kv_cells
    cells -= cells % CELL_PADDING
    return msgspec.structs.replace(settings, kv_cells=min(settings.kv_cells, max(cells, settings.n_ctx)))
