"""Child process: serves this machine's devices to another machine, on loopback.

Usage: python -m engine.runner.llama.rpc_worker PORT THREADS [attached], or describe, which prints one JSON line. An
attached worker exits when its input is closed, so that it does not outlive its parent.
"""

import os
import sys
import threading

from devices.child_command import write_answer
from devices.process_memory import process_memory
from engine.runner.llama.native.llama_api import KernelsMissing, start_backends
from engine.runner.llama.native.rpc import NoWorker, describe, serve


def main(*arguments: str) -> int:
    """Serve until killed."""
    try:
        if arguments == ("describe",):
            description = describe(start_backends())
            memory = process_memory(os.getpid())
            write_answer({"devices": description, "held_bytes": memory.rss_bytes if memory else 0})
            return 0
        port, threads, *options = arguments
        if options:
            threading.Thread(target=_end_with_input, daemon=True).start()
        serve(start_backends(), int(port), int(threads))
    except (KernelsMissing, NoWorker) as error:
        sys.stderr.write(f"tessera worker: {error}\n")
    return 3


def _end_with_input() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
