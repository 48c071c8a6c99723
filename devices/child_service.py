"""Main loop of a child that serves requests within limits of memory and time."""

import faulthandler
import sys
from collections.abc import Callable
from typing import Final

from devices.frames import claim_stdio, read_frame, write_frame

READY: Final = b"ready"
# A reply that gets little CPU time on a busy machine may take this many times its limit.
PATIENCE: Final = 5


def serve(answer: Callable[[bytes], bytes]) -> None:
    """Main loop of the child: send READY, then reply to frames until the parent closes the pipe.

    argv[1] is the memory limit in bytes, argv[2] the time limit of one reply in seconds. The watchdog
    is a C thread that ends the process even inside one long native operation. It fires later than the
    parent's own limit, so it matters only if the parent is gone.
    """
    _limit_memory(int(sys.argv[1]))
    seconds = float(sys.argv[2])
    source, sink = claim_stdio()
    write_frame(sink, READY)
    while (body := read_frame(source)) is not None:
        faulthandler.dump_traceback_later(seconds * (PATIENCE + 1), exit=True)
        reply = answer(body)
        faulthandler.cancel_dump_traceback_later()
        write_frame(sink, reply)


def _limit_memory(limit_bytes: int) -> None:
    """Limit the address space if the system can; elsewhere the parent checks the size."""
    if sys.platform == "linux":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
