"""Sentences of engine.fit: what is remarkable about a load's memory."""

from typing import Final

FIT: Final = {
    "beyond_training": "The model was trained for {tokens} tokens; beyond that its answers degrade.",
    "no_layers": "The header names no layers: the cache could not be predicted.",
    "onnx_cache": "ONNX Runtime keeps the cache in 32 bits, allocated in full for each sequence.",
    "flm_cache": "FastFlowLM does not tell what its cache takes; its list tells the weights.",
    "vllm_memory": "What vLLM takes beside weights and cache is set aside by experience, not measured here.",
}
