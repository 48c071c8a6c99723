"""Child process: computes recorded rows of answers again on the CPU, at the lowest priority.

Usage: python -m engine.runner.llama.recompute_child PARENT_PID. Reads one frame with a `Recompute` and writes one
with a `RowVerdict`, or with the reason why there is none.
"""

import os
import sys
from typing import Final

import msgspec

from devices.frames import claim_stdio, read_frame, write_frame
from devices.msgspec_lock import learned
from engine.runner.llama.native.llama_api import KernelsMissing, start_backends
from engine.runner.llama.native.model import LoadFailed
from engine.runner.llama.native.row_check import judged
from engine.runner.llama.reference_child import reference_settings
from engine.runner.orphans import die_with_parent
from engine.runner.protocol import Recompute

LOWEST_PRIORITY: Final = 19


def main() -> int:
    """Answer the one frame."""
    die_with_parent(int(sys.argv[1]))
    source, sink = claim_stdio()
    if hasattr(os, "nice"):
        os.nice(LOWEST_PRIORITY)
    body = read_frame(source)
    if body is None:
        return 2
    try:
        work = msgspec.msgpack.decode(body, type=learned(Recompute))
        settings = msgspec.structs.replace(
            reference_settings(work.settings), n_threads=work.threads, n_threads_batch=work.threads
        )
        verdict = judged(start_backends(), settings, work.recorded)
    except (KernelsMissing, LoadFailed, msgspec.DecodeError, ValueError) as error:
        write_frame(sink, msgspec.json.encode({"reason": str(error)}))
        return 1
    write_frame(sink, msgspec.json.encode(verdict))
    return 0


if __name__ == "__main__":
    sys.exit(main())
