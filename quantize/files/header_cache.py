"""Caches GGUF headers that were just read: skipping the vocabulary takes most of the reading time."""

import os
import threading
import time
from collections import OrderedDict
from typing import Final

from quantize.files.gguf_split import GgufModel, parse_split_name, read_gguf_model

# A start reads the header of its model three times: for the list, the placement and the memory estimate.
MAX_ENTRIES: Final = 4
# A file changed this recently may change again with the same timestamp: file systems have a resolution of
# milliseconds up to 2 s.
SETTLED_S: Final = 3.0

_State = tuple[int, ...]
_cache: "OrderedDict[str, tuple[_State, GgufModel]]" = OrderedDict()
_lock = threading.Lock()


def cached_gguf_model(path: str | os.PathLike[str]) -> GgufModel:
    """`read_gguf_model` with a cache that is valid while the file is unchanged.

    The result is shared: do not modify it.

    Split models are not cached.

    Raises: same as `read_gguf_model`.
    """
    name = os.path.abspath(path)  # noqa: PTH100 - pathlib normalizes only with resolving links
    before = None if parse_split_name(os.path.basename(name)) is not None else _state(name)  # noqa: PTH119 - as above
    if before is None:
        return read_gguf_model(path)
    with _lock:
        state, model = _cache.get(name, (None, None))
        if model is not None and state == before:
            _cache.move_to_end(name)
            return model
    model = read_gguf_model(path)
    if _state(name) == before:
        with _lock:
            _cache[name] = (before, model)
            _cache.move_to_end(name)
            while len(_cache) > MAX_ENTRIES:
                _cache.popitem(last=False)
    return model


def _state(name: str) -> _State | None:
    """Identifies the state of a file; None if it is missing or changed too recently."""
    try:
        status = os.stat(name)  # noqa: PTH116 - as above
    except OSError:
        return None
    if abs(time.time() - status.st_mtime) < SETTLED_S:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
