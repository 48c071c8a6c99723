"""How many cells the requests of a model share."""

from typing import Final

import msgspec

from engine.fit.need import CELL_PADDING, kv_layer_bytes
from engine.fit.shape import ModelShape
from engine.runner.protocol import LoadSettings

# Beyond one full context, a cache grows to this for the sake of parallel requests. llama.cpp zeroes all of it at
# the load, at about a GB a second. Measured: docs/log.md, engine.
ROOMY_BYTES: Final = 512 << 20


def within_reason(settings: LoadSettings, shape: ModelShape) -> LoadSettings:
    """`settings` whose shared cache holds one whole context, and of more only what ROOMY_BYTES hold."""
    if settings.kv_cells <= settings.n_ctx:
        return settings
    one = sum(kv_layer_bytes(shape, msgspec.structs.replace(settings, kv_cells=0)))
    cells = settings.n_ctx * ROOMY_BYTES // one if one else settings.kv_cells
    cells -= cells % CELL_PADDING
    return msgspec.structs.replace(settings, kv_cells=min(settings.kv_cells, max(cells, settings.n_ctx)))
