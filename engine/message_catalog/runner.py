"""Sentences of engine.runner, engine.onnx, benchmarks and power."""

from typing import Final

# Why a model's process ended.
RUNNER: Final = {
    "process_ended": "the model's process ended: {cause} (exit code {code})",
    "file_ends_runner": "llama.cpp crashes when it reads the file: {cause} (exit code {code}). The file is damaged or not made for this version.",
    "part_ends_runner": "llama.cpp crashes when it reads {part}: {cause} (exit code {code}). The file is damaged or not made for this model.",
    "model_unloaded": "the model was unloaded",
    "own_check": "an internal check of llama.cpp failed",
    "segmentation_fault": "a native crash (segmentation fault)",
    "access_violation": "a native crash (access violation)",
    "unknown_instruction": "an instruction this CPU does not have",
    "killed": "the process was killed, by a user or for lack of memory",
    "file_shrank": "the model file shrank or its disk failed while it was being read",
    "not_loadable": "the model could not be loaded",
    "last_words_unknown": "its last output is unknown",
    "runner_stuck": "the runner was stuck and has been stopped: {why}",
    "did_not_start": "it did not start within {seconds:.0f} s",
    "step_took": "one step has taken {seconds:.0f} s",
    "no_sign_of_life": "no heartbeat for {seconds:.0f} s",
    "keeps_crashing": "{model} crashed {times} times in {seconds:.0f} s and is not restarted for now; the last crash: {last}",
}


# Requirements of an execution provider, and how well it was tested.
PROVIDERS: Final = {
    "provider_not_installed": "{provider} is not installed. {install}",
    "provider_library_gone": "{provider}: {library} is missing. {install}",
    "other_release": "The model was compiled for Ryzen AI {wanted}, but {installed} is installed. Install Ryzen AI Software {wanted}, or a model made for {installed}.",
    "other_release_of": "The model was compiled for Ryzen AI {wanted} (onnxruntime-genai {genai}), but {installed} is installed. Install Ryzen AI Software {wanted}, or a model made for {installed}.",
    "get_qnn": "Install its plugin: pip install onnxruntime-qnn (Qualcomm's licence).",
    "tried_qnn": "run on Qualcomm's x86-64 emulator only; not tried on hardware by this project",
    "get_openvino_ep": "Install its plugin: pip install onnxruntime-ep-openvino, on a computer with an Intel CPU.",
    "tried_openvino_ep": "the wheel of 1.24.1 was run on a CPU; its NPU was not tried on hardware by this project",
    "get_ryzen_ai": "Install AMD's Ryzen AI Software. Set RYZENAI_EP_PATH to its libonnxruntime_providers_ryzenai library and TESSERA_ONNX_PYTHON to the Python of its environment (docs/npu.md).",
    "get_vitis_ai": "It comes with AMD's Ryzen AI Software, as a separate build of onnxruntime.",
    "get_directml": "It is part of onnxruntime-directml, which was discontinued after 1.24; Windows ML replaces it.",
    "get_migraphx": "It is part of onnxruntime-migraphx, from AMD's ROCm repository.",
    "no_device_qnn": "It needs a Hexagon NPU, or on x86-64 Linux the emulator of its wheel.",
    "no_device_openvino_ep": "It lists Intel devices only.",
    "get_core_ml": "It is part of onnxruntime for macOS.",
}


# Measurements in progress, and why something cannot be measured.
BENCH: Final = {
    "nothing_works": "No settings were found that load this model: {why}",
    "standin_failed": "The simulated model could not be written: {why}",
    "bench_rest": "the idle computer",
    "bench_header": "reading the header",
    "bench_stand_in": "writing a simulated model {share:.0%}",
    "bench_loading": "loading {phase} {share:.0%}",
    "bench_warming_up": "warming up, not counted",
    "bench_length": "prompts of {tokens} tokens, run {run} of {runs}",
    "compare_place": "measuring on {device} by {backend}",
    "bench_parallel": "{requests} concurrent requests, run {run} of {runs}",
}


# Power that cannot be measured or limited, and why.
ENERGY: Final = {
    "no_power_meter": "Tuning for energy is not possible here: {why} Tuning for speed needs no power meter.",
    "no_meter": "no power meter for the CPU. Searched: {places}.",
    "meter_locked": "no power meter for the CPU. Searched: {places}. Found but not readable for this user: {locked}.",
    "meter_locked_until": "no power meter for the CPU. Searched: {places}. Found but not readable for this user: {locked} (to allow it until the next start: {command}).",
    "never_at_rest": "Tuning for energy is not possible now: other programs kept the CPU busy for {seconds:.0f} s, so the idle power of this computer is unknown. Close them and start again.",
    "unmetered": "{device} has no power sensor.",
    "nothing_beyond_rest": "The power meters showed nothing above the idle power of this computer.",
    "the_processor": "the CPU",
    "cap_not_held": "The power limit cannot be enforced: there is no power meter here. Quiet mode leaves half the cores free instead.",
    "no_battery": "This computer reports no battery, so there is no battery budget.",
}
