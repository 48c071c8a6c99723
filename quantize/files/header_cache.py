"""Headers of GGUF files that were read a moment ago: a vocabulary takes longer to pass than all the rest of one."""

import os
import threading
import time
from collections import OrderedDict
from typing import Final

from quantize.files.gguf_split import GgufModel, parse_split_name, read_gguf_model

# A start asks for the header of its model three times: for the list, the placement and the memory it takes.
MAX_ENTRIES: Final = 4
# What changed so lately may change again without another time: file systems' clocks tick in milliseconds or in 2 s.
SETTLED_S: Final = 3.0

_State = tuple[int, ...]
_cache: "OrderedDict[str, tuple[_State, GgufModel]]" = OrderedDict()
_lock = threading.Lock()


def cached_gguf_model(path: str | os.PathLike[str]) -> GgufModel:
    """As `read_gguf_model`, from memory for as long as the file is the one that was read. Shared: change nothing.

    A model of several files is always read.

    Raises: as `read_gguf_model`.
    """
    name = os.path.abspath(path)  # noqa: PTH100 - pathlib has none that leaves links alone
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
    """What tells one state of a file from another; None: it is not there, or changed too lately to tell."""
    try:
        found = os.stat(name)  # noqa: PTH116 - as above
    except OSError:
        return None
    if abs(time.time() - found.st_mtime) < SETTLED_S:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
