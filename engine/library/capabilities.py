"""What a model can be used for, read from its header; nothing is claimed that the file does not show."""

from collections.abc import Iterable, Mapping

# Architectures that only encode. Source: llama.cpp's llm_arch names whose models have no causal head.
_ENCODERS = frozenset({
    "bert", "modern-bert", "nomic-bert", "nomic-bert-moe", "neo-bert", "jina-bert-v2", "jina-bert-v3", "eurobert",
    "gemma-embedding", "t5encoder", "llama-embed",
})  # fmt: skip
_POOLING_RANK = 4  # llama.h, LLAMA_POOLING_TYPE_RANK
_THINK_MARKS = ("<think>", "enable_thinking", "reasoning_content", "reasoning_effort", "<|channel|>")


def from_gguf(metadata: Mapping[str, object], tensor_names: Iterable[str]) -> tuple[str, ...]:
    """Capabilities of a GGUF model, from metadata and the names of its tensors."""
    architecture = metadata.get("general.architecture", "")
    pooling = metadata.get(f"{architecture}.pooling_type")
    names = set(tensor_names)
    if pooling == _POOLING_RANK or {"cls.weight", "cls.output.weight"} & names:
        return ("rerank",)
    if architecture in _ENCODERS or (isinstance(pooling, int) and pooling > 0):
        return ("embedding",)
    found = ["completion", *from_template(metadata.get("tokenizer.chat_template"))]
    if any(metadata.get(f"tokenizer.ggml.{k}_token_id") is not None for k in ("fim_pre", "prefix")):
        found.append("fim")
    return tuple(found)


def from_template(template: object) -> tuple[str, ...]:
    """chat, tools and reasoning, as far as a chat template shows them."""
    if not isinstance(template, str) or not template.strip():
        return ()
    found = ["chat"]
    if "tools" in template or "tool_calls" in template:
        found.append("tools")
    if any(mark in template for mark in _THINK_MARKS):
        found.append("reasoning")
    return tuple(found)
