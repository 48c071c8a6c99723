"""`tessera --child MODULE`: runs a module in a child process of a frozen build."""

import runpy
import sys
from typing import Final

# All modules that run as child processes. A package recipe must list them because nothing imports them.
CHILDREN: Final = frozenset(
    {
        "app.code.index.worker",
        "app.tools.calculate_child",
        "app.gui.markdown.drawing_child",
        "app.latex_child",
        "app.voice.microphone_child",
        "devices.backends.ggml_child",
        "devices.backends.onnx_child",
        "devices.backends.openvino_child",
        "devices.kernel_packs.abi",
        "devices.landlock",
        "engine.job_kinds.bench.dummy_model",
        "engine.chat.grammar_check_child",
        "engine.chat.render_child",
        "engine.job_kinds.quantize.regex_child",
        "engine.remotes.tunnel_child",
        "engine.documents.reader_child",
        "engine.runner.llama.deep_check_child",
        "engine.runner.llama.memory_probe",
        "engine.runner.llama.operations_child",
        "engine.runner.llama.recompute_child",
        "engine.runner.llama.reference_child",
        "engine.runner.llama.rpc_worker",
        "engine.runner.llama.version_check",
        "engine.runner.main",
        "engine.runner.onnx.probe",
        "engine.runner.onnx.speech.child",
        "engine.runner.onnx.speech.convert",
        "engine.upstreams.guard",
        "quantize.files.cleanup_child",
        "quantize.job.worker",
    }
)
EXIT_UNKNOWN: Final = 2


def run(arguments: list[str]) -> None:
    """Run the module of CHILDREN that `arguments` names, with the rest as its arguments; run nothing else."""
    module = arguments[0] if arguments else ""
    if module not in CHILDREN:
        sys.stderr.write(f"tessera: {module!r} is not one of its child processes\n")
        sys.exit(EXIT_UNKNOWN)
    sys.argv[1:] = arguments[1:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
