"""Calls ggml's functions through one handle, whichever of llama.cpp's libraries exports them."""

import ctypes
import sys
from functools import cache
from pathlib import Path
from typing import Any, Final

# Libraries that export ggml's functions in addition to llama.dll.
WINDOWS_LIBRARIES: Final = ("ggml.dll", "ggml-base.dll")


class Exports:
    """Looks a function up in each of several libraries, as Linux and macOS do by themselves."""

    def __init__(self, *libraries: Any) -> None:
        self._libraries = libraries

    def __getattr__(self, name: str) -> Any:
        for library in self._libraries:
            try:
                return getattr(library, name)
            except AttributeError:
                continue
        raise AttributeError(name)


def _is_windows() -> bool:
    return sys.platform == "win32"


@cache
def ggml_functions(handle: Any, folder: Path) -> Any:
    """Ggml's functions for a process that has opened libllama as `handle`; its libraries are in `folder`.

    dlsym also searches the libraries that a library was linked with; GetProcAddress searches only its own exports.
    So on Windows the copies that llama.dll has loaded are searched too.
    """
    if not _is_windows():
        return handle
    paths = [folder / name for name in WINDOWS_LIBRARIES]
    return Exports(handle, *[ctypes.CDLL(str(path)) for path in paths if path.exists()])
