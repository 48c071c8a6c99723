"""Gives a context another size on the same weights, with all computed states.

A context on the CPU has all cells that it may ever need from the start (native/untouched.py) and uses more of them.
Any other one is replaced: states go to main memory first, or to a file if memory has no space. Then the old context
is freed and the new one created: with both at once a GPU would have to hold two caches. Copies are only as large as
the used part. Measured: docs/adr/0031-growing-contexts.md.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from engine.runner.llama.cache.state_buffer import file_buffer, pointer, state_buffer
from engine.runner.llama.native.batch import EngineBroken
from engine.runner.llama.native.model import LoadedModel, LoadFailed, make_context, padded


class Moved(msgspec.Struct, frozen=True):
    """Cost of a resize: bytes of copied state, and seconds."""

    state_bytes: int
    seconds: float


def resize(loaded: LoadedModel, n_ctx: int, kv_cells: int, *, through_disk: bool = False) -> Moved:
    """Resize to `n_ctx` tokens per sequence and `kv_cells` cells, without computing any token again.

    `through_disk`: the copies are in a file during the resize, if main memory has no space for them.

    Raises: LoadFailed: there is not enough memory; nothing has changed. EngineBroken: the old size failed too.
    """
    started_at, before = time.monotonic(), loaded.settings
    sizes = n_ctx, max(n_ctx, kv_cells)
    if loaded.kv_cells <= (cells := padded(sizes[1])) <= loaded.reserved_cells:
        loaded.settings = msgspec.structs.replace(before, n_ctx=n_ctx, kv_cells=sizes[1])
        loaded.n_ctx, loaded.kv_cells = n_ctx, cells
        return Moved(0, time.monotonic() - started_at)
    states = _states(loaded, through_disk=through_disk)
    cells_before = loaded.kv_cells
    loaded.api.llama_free(loaded.context)
    try:
        _replace(loaded, *sizes, states)
    except LoadFailed as error:
        try:
            _replace(loaded, before.n_ctx, cells_before, states)
        except LoadFailed as again:
            raise EngineBroken(f"the context could not be made again after it did not grow: {again}") from error
        loaded.settings = before
        raise
    return Moved(states.nbytes, time.monotonic() - started_at)


def _states(loaded: LoadedModel, *, through_disk: bool) -> Any:
    """Return all sequences' states as one array (n,) uint8; shared cells are in it once."""
    api = loaded.api
    size = int(api.llama_state_get_size(loaded.context))
    try:
        folder = Path(loaded.settings.cache_dir or tempfile.gettempdir())
        data = file_buffer(size, folder) if through_disk else state_buffer(size)
    except (MemoryError, OSError) as error:
        raise LoadFailed(f"there is no memory for {size} bytes of state: {error}") from error
    written = int(api.llama_state_get_data(loaded.context, pointer(data), size))
    if not 0 < written <= size:
        raise LoadFailed("llama.cpp does not give the states of this model's sequences")
    return data[:written]


def _replace(loaded: LoadedModel, n_ctx: int, kv_cells: int, states: Any) -> None:
    loaded.settings = msgspec.structs.replace(loaded.settings, n_ctx=n_ctx, kv_cells=kv_cells)
    loaded.kv_cells = kv_cells
    make_context(loaded)
    if int(loaded.api.llama_state_set_data(loaded.context, pointer(states), len(states))) != len(states):
        loaded.api.llama_free(loaded.context)
        raise LoadFailed(f"llama.cpp does not take the states into a context of {kv_cells} cells")
