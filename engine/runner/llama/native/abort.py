"""Aborts a running decode from another thread, without Python in the callback.

llama.cpp calls a C callback between graph nodes (CPU and Metal only). libc's `strlen` can serve as one: for a
two-byte buffer it returns 0, and 1 once a byte is written, without the GIL.
"""

import ctypes
import sys
from typing import Any


class AbortSwitch:
    """`pull` makes the running decode return 2; call `reset` before the next one."""

    def __init__(self, api: Any, context: Any) -> None:
        self._byte = ctypes.create_string_buffer(2)
        library = ctypes.CDLL("ucrtbase") if sys.platform == "win32" else ctypes.CDLL(None)
        self._callback = ctypes.cast(library.strlen, api.ggml_abort_callback)
        self._api = api
        self.bind(context)

    def bind(self, context: Any) -> None:
        """Let the switch abort decodes of this context."""
        self._api.llama_set_abort_callback(context, self._callback, ctypes.addressof(self._byte))

    def pull(self) -> None:
        """Abort the current decode, or the next one."""
        self._byte[0] = b"\x01"

    def reset(self) -> None:
        """Allow decodes again."""
        self._byte[0] = b"\x00"
