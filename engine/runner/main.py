"""Entry point of every runner process: `python -m engine.runner.main ENGINE PARENT_PID`."""

import gc
import os
import sys

from devices.process_memory import short_turns
from engine.runner.orphans import die_with_parent
from engine.runner.protocol import claim_stdio


def main() -> int:
    """Claim the pipes, tie this process to its server, and serve with the named engine."""
    engine, parent_pid = sys.argv[1], int(sys.argv[2])
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # otherwise an abort starts a debugger, if one is installed
    die_with_parent(parent_pid)
    short_turns()  # for the thread that runs steps, next to those that read and tokenize requests
    channel = claim_stdio()
    if engine == "llama":
        gc.disable()  # imported modules are not garbage, and collecting takes a tenth of the start time
        from engine.runner.llama.service import LlamaRunner

        gc.freeze()
        gc.enable()
        return LlamaRunner(channel).run()
    if engine == "onnx":
        from engine.runner.onnx.service import OnnxRunner

        return OnnxRunner(channel).run()
    sys.stderr.write(f"unknown engine {engine}\n")
    return 2


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # native teardown of a model can take seconds, and there is nothing left to save
