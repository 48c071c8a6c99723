"""Child process: this machine's devices for models of another machine, on loopback.

Usage: python -m engine.runner.llama.rpc_worker PORT THREADS
"""

import sys

from engine.runner.llama.native.binding import KernelsMissing, start_backends
from engine.runner.llama.native.rpc import NoWorker, serve


def main(port: str, threads: str) -> int:
    """Serve until killed."""
    try:
        serve(start_backends(), int(port), int(threads))
    except (KernelsMissing, NoWorker) as error:
        sys.stderr.write(f"tessera worker: {error}\n")
    return 3


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
