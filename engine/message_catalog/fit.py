"""Sentences of engine.placement: notes on a load's memory, options that need less, and their commands."""

from typing import Final

FIT: Final = {
    "beyond_training": "The model was trained for {tokens} tokens; beyond that its answers degrade.",
    "no_layers": "The header names no layers: the cache could not be predicted.",
    "onnx_cache": "ONNX Runtime stores the KV cache in 32 bits and allocates it in full for each sequence.",
    "flm_cache": "FastFlowLM does not report the size of its cache; its list gives the size of the weights.",
    "llama_server_memory": "Computed as for Tessera's own llama.cpp; another build may use more or less.",
    "vllm_memory": "Memory that vLLM needs in addition to weights and cache is estimated from experience, not measured here.",
}
OPTIONS: Final = {
    "with_command": "{option} ({command})",
    "option_kv": "use KV cache type {kv_type} instead of {before}",
    "option_parallel": "answer one request at a time",
    "option_context": "use a context of {n_ctx} tokens instead of {before}",
    "option_compact_context": "use a context of {n_ctx} tokens instead of {before}, 8-bit, one request at a time",
    "option_layers": "keep {layers} of {all_layers} layers on the GPU",
    "option_processor": "run it on the processor",
    "option_quantize": "quantize it to {mix}, or let Tessera choose a quantization of that size",
    "option_quantize_kv": "quantize it to {mix}, or to another quantization of that size, and use an 8-bit cache",
    "option_fetch": "download a smaller quantization, as large as {mix}: {budget_mib} MiB",
    "option_fetch_kv": "download a smaller quantization, as large as {mix}: {budget_mib} MiB, and use an 8-bit cache",
    "option_unload": "unload {model}, which uses {held_gib:.1f} GiB",
}
# Options of `tessera fit` and `serve`, or whole commands.
COMMANDS: Final = {
    "option_kv": "--kv {kv_type}",
    "option_parallel": "--parallel 1",
    "option_context": "--ctx {n_ctx}",
    "option_compact_context": "--ctx {n_ctx} --kv q8_0 --parallel 1",
    "option_layers": "--layers {layers}",
    "option_processor": "--layers 0",
    "option_quantize": "tessera quantize {model} --budget {budget_mib}MiB",
    "option_quantize_kv": "tessera quantize {model} --budget {budget_mib}MiB, then --kv q8_0",
    "option_fetch": "tessera models pull {repository} --plan",
    "option_fetch_kv": "tessera models pull {repository} --plan, then --kv q8_0",
    "option_unload": "tessera models unload {model}",
}
