"""Sentences of engine.onnx: what an execution provider needs, and how well it was tested."""

from typing import Final

PROVIDERS: Final = {
    "provider_not_installed": "{provider} is not installed. {install}",
    "provider_library_gone": "{provider}: {library} is missing. {install}",
    "other_release": "The model was compiled for Ryzen AI {wanted}, but {installed} is installed. Install Ryzen AI Software {wanted}, or a model made for {installed}.",
    "other_release_of": "The model was compiled for Ryzen AI {wanted} (onnxruntime-genai {genai}), but {installed} is installed. Install Ryzen AI Software {wanted}, or a model made for {installed}.",
    "get_qnn": "Install its plugin: pip install onnxruntime-qnn (Qualcomm's licence).",
    "tried_qnn": "run on Qualcomm's x86-64 emulator only; not tried on hardware by this project",
    "get_openvino_ep": "Install its plugin: pip install onnxruntime-ep-openvino, on a computer with an Intel processor.",
    "tried_openvino_ep": "the wheel of 1.24.1 was run on a CPU; its NPU was not tried on hardware by this project",
    "get_ryzen_ai": "Install AMD's Ryzen AI Software. Set RYZENAI_EP_PATH to its libonnxruntime_providers_ryzenai library and TESSERA_ONNX_PYTHON to the Python of its environment (docs/npu.md).",
    "get_vitis_ai": "It comes with AMD's Ryzen AI Software, as a separate build of onnxruntime.",
    "get_directml": "It is part of onnxruntime-directml, which was discontinued after 1.24; Windows ML replaces it.",
    "get_migraphx": "It is part of onnxruntime-migraphx, from AMD's ROCm repository.",
    "no_device_qnn": "It needs a Hexagon NPU, or on x86-64 Linux the emulator of its wheel.",
    "no_device_openvino_ep": "It lists Intel devices only.",
    "get_core_ml": "It is part of onnxruntime for macOS.",
}
