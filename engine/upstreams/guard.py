"""Child process between the server and an external program: neither it nor its children outlive the server.

Usage: python -m engine.upstreams.guard PROGRAM [ARGUMENT ...]. Starts the program as the leader of a process group
and ends the whole group when its own input closes, which happens however the server ends. Exits with the program's
exit code.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from typing import Final

# vLLM stops its engine's process and frees the GPU in this time; after it the program is killed.
STOP_S: Final = 10.0
_NOT_STARTED: Final = 127


def main(command: list[str]) -> int:
    """Start the program, wait for it, and exit with its code."""
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        sys.stderr.write(f"{command[0]} could not be started: {error.strerror}\n")
        return _NOT_STARTED
    threading.Thread(target=_end_with_input, args=(process,), daemon=True).start()
    code = process.wait()
    _signal(process, kill=True)  # after a crash its engine may run on for a while
    return code if code >= 0 else 128 - code


def _end_with_input(process: subprocess.Popen[bytes]) -> None:
    while os.read(sys.stdin.fileno(), 1 << 12):  # unbuffered: a buffer's lock would be held when this process ends
        pass
    _signal(process, kill=False)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        _signal(process, kill=True)


def _signal(process: subprocess.Popen[bytes], *, kill: bool) -> None:
    if sys.platform == "win32":
        process.kill()  # Windows has no process groups and no polite signal
        return
    with contextlib.suppress(ProcessLookupError):  # all of them have ended
        os.killpg(process.pid, signal.SIGKILL if kill else signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
