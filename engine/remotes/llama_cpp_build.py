"""Identifies the installed llama.cpp: two machines can compute one model only with the same build."""

import ctypes
from functools import cache

from devices.backends.libraries import ggml_library, library_folder


@cache
def kernel_name() -> str:
    """Version and commit of the installed ggml; empty if unknown.

    Only its smallest library is opened, which starts no backend.
    """
    folder = library_folder()
    if folder is None:
        return ""
    try:
        library = ctypes.CDLL(str(ggml_library(folder)))
        names = []
        for name in ("ggml_version", "ggml_commit"):
            function = getattr(library, name)
            function.restype = ctypes.c_char_p
            names.append((function() or b"").decode("ascii", "replace"))
    except (OSError, AttributeError):
        return ""
    return " ".join(names)
