"""Child process: loads a model without allocating, to estimate a real load's memory. Prints one JSON line.

Usage: python -m engine.runner.llama.memory_probe SETTINGS_JSON
"""

import contextlib
import ctypes
import os
import re
import sys
import time
from typing import Any

import msgspec

from devices.child_command import answer_with
from devices.msgspec_lock import learned
from devices.process_memory import process_memory
from engine.core.errors import ConstraintRefused
from engine.core.types import Constraint
from engine.runner.generation.grammar_mask import ConstraintCompiler
from engine.runner.llama import service
from engine.runner.llama.native import model as llama_model
from engine.runner.llama.native.llama_api import KernelsMissing, start_backends
from engine.runner.llama.native.rpc import NoWorker, add_workers
from engine.runner.llama.native.vocabulary import LlamaVocabulary
from engine.runner.protocol import LoadSettings

MIB = 1 << 20
STAND_IN_S = 10.0
# The states of compressors have a line of their own. Source: llama-kv-cache-dsv4.cpp.
CACHE = re.compile(
    r"(llama_kv_cache\w*|llama_memory_recurrent|llama_dsv4_comp_state): (?:\w+ ratio = .*, )?size = +([0-9.]+) MiB"
)
# A worker's buffers have its address in brackets.
BUFFER = re.compile(r"([A-Za-z0-9_]+)(?:\[[^\]]*\])? +(compute|output) buffer size = +([0-9.]+) MiB")


def sizes(log: str) -> dict[str, Any]:
    """Return cache, output and compute sizes from llama.cpp's log, in bytes.

    Without allocation its lines about buffers show 0 for weights and caches. The summary line of each cache, the
    output buffer and the graph's compute buffers are real. If a reservation is repeated, the last one counts.
    """
    result: dict[str, Any] = {"kv_bytes": 0, "recurrent_bytes": 0, "output_bytes": 0, "compute_bytes": {}}
    for kind, mib in CACHE.findall(log):
        key = "kv_bytes" if "kv_cache" in kind else "recurrent_bytes"
        result[key] += round(float(mib) * MIB)
    for device, kind, mib in BUFFER.findall(log):
        if kind == "compute":
            result["compute_bytes"][device] = round(float(mib) * MIB)
        else:
            result["output_bytes"] = round(float(mib) * MIB)
    return result


def stand_ins(settings: LoadSettings) -> list[str]:
    """Return addresses of local workers that replace the remote ones; they live as long as this process.

    Nothing is allocated, so they need no memory, and no connection is needed to estimate the remote part.
    """
    # Import these only here: the probe must have the memory of a runner, which does not import them.
    import atexit
    import socket
    import subprocess

    from devices.child_command import child_command

    endpoints = []
    for _ in range(1 + max(int(name.removeprefix("RPC")) for name in settings.devices)):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        argv = child_command("engine.runner.llama.rpc_worker", str(port), "1", "attached")
        child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        atexit.register(child.kill)
        endpoints.append(f"127.0.0.1:{port}")
        deadline = time.monotonic() + STAND_IN_S
        while child.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.02)
    return endpoints


def dry_run(settings: LoadSettings) -> dict[str, Any]:
    """Load without allocating, and report what llama.cpp would have allocated.

    A second context without space for drafts shows how much of the scratch memory normal use never touches.
    """
    started = time.monotonic()
    api = start_backends(tiles=settings.tiles, variables=settings.variables)
    if settings.engine_args.rpc:
        add_workers(api, settings.engine_args.rpc)
    elif settings.remotes:
        add_workers(api, stand_ins(settings))
    lines: list[str] = []
    callback = api.llama_log_callback(lambda _level, text, _data: lines.append(text.decode("utf-8", "replace")))
    api.llama_log_set(callback, ctypes.c_void_p(None))
    loaded = llama_model.load(api, settings, lambda _fraction: True, dry_run=True)
    report = sizes("".join(lines))
    vocabulary = LlamaVocabulary(api, loaded.vocab)
    constraints = ConstraintCompiler(vocabulary)
    with contextlib.suppress(ConstraintRefused):  # the runner builds the same token table after every load
        constraints.compile(Constraint(kind="regex", source="x"))
    memory = process_memory(os.getpid())
    loaded.close()
    lines.clear()
    plain = llama_model.load(api, settings, lambda _fraction: True, dry_run=True, spare_outputs=0)
    plain.close()
    saved = sum(report["compute_bytes"].values()) - sum(sizes("".join(lines))["compute_bytes"].values())
    unused_logits = 4 * vocabulary.size * max(0, loaded.n_seq_max - settings.n_parallel)
    report["untouched_bytes"] = max(0, saved) + unused_logits
    report["overhead_bytes"] = memory.rss_bytes if memory else 0
    report["seconds"] = time.monotonic() - started
    return report


def main() -> int:
    """Print the report, or the error."""
    assert service is not None  # imported so that this process has the memory of a runner
    return answer_with(
        lambda: dry_run(msgspec.json.decode(sys.argv[1].encode(), type=learned(LoadSettings))),
        *(KernelsMissing, NoWorker, llama_model.LoadFailed, msgspec.DecodeError),
    )


if __name__ == "__main__":
    sys.exit(main())
