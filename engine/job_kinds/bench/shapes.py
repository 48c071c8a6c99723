"""Published dimensions of well-known models, for dummy-weight models.

Source: each model's published config.json (layers, widths, heads, vocabulary, tied head, context).
"""

from typing import Final

import msgspec

from quantize.files.gguf_file import ValueType
from quantize.files.gguf_write import MetaValue, array, scalar

# A mixture's router stays in 32 bits in every file.
ROUTER: Final = "ffn_gate_inp.weight"


class Dimensions(msgspec.Struct, frozen=True):
    """A transformer's dimensions. `experts` of a mixture: count, used for a token, width of each.

    `context`: tokens that it was trained for.
    """

    arch: str
    layers: int
    embd: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    tied: bool
    experts: tuple[int, int, int] | None = None
    context: int = 40960


SHAPES: Final = {
    "stories-110m": Dimensions("llama", 12, 768, 12, 12, 64, 2048, 32000, tied=True, context=1024),
    "smollm2-135m": Dimensions("llama", 30, 576, 9, 3, 64, 1536, 49152, tied=True, context=8192),
    "smollm2-360m": Dimensions("llama", 32, 960, 15, 5, 64, 2560, 49152, tied=True, context=8192),
    "qwen3-0.6b": Dimensions("qwen3", 28, 1024, 16, 8, 128, 3072, 151936, tied=True),
    "qwen3-1.7b": Dimensions("qwen3", 28, 2048, 16, 8, 128, 6144, 151936, tied=True),
    "qwen3-4b": Dimensions("qwen3", 36, 2560, 32, 8, 128, 9728, 151936, tied=True),
    "qwen3-8b": Dimensions("qwen3", 36, 4096, 32, 8, 128, 12288, 151936, tied=False),
    "qwen3-14b": Dimensions("qwen3", 40, 5120, 40, 8, 128, 17408, 151936, tied=False),
    "qwen3-32b": Dimensions("qwen3", 64, 5120, 64, 8, 128, 25600, 151936, tied=False),
    "qwen3-30b-a3b": Dimensions("qwen3moe", 48, 2048, 32, 4, 128, 6144, 151936, tied=False, experts=(128, 8, 768)),
    "llama3.2-1b": Dimensions("llama", 16, 2048, 32, 8, 64, 8192, 128256, tied=True, context=131072),
    "llama3.2-3b": Dimensions("llama", 28, 3072, 24, 8, 128, 8192, 128256, tied=True, context=131072),
    "llama3.1-8b": Dimensions("llama", 32, 4096, 32, 8, 128, 14336, 128256, tied=False, context=131072),
    "llama3.3-70b": Dimensions("llama", 80, 8192, 64, 8, 128, 28672, 128256, tied=False, context=131072),
}


def tensors(d: Dimensions) -> list[tuple[str, tuple[int, ...]]]:
    """Names and ggml shapes (row length first) of all tensors."""
    shapes: list[tuple[str, tuple[int, ...]]] = [
        ("token_embd.weight", (d.embd, d.vocab)),
        ("output_norm.weight", (d.embd,)),
    ]
    if not d.tied:
        shapes.append(("output.weight", (d.embd, d.vocab)))
    q, kv = d.heads * d.head_dim, d.kv_heads * d.head_dim
    for i in range(d.layers):
        p = f"blk.{i}."
        shapes += [(p + "attn_norm.weight", (d.embd,)), (p + "ffn_norm.weight", (d.embd,))]
        if d.arch in {"qwen3", "qwen3moe"}:
            shapes += [(p + "attn_q_norm.weight", (d.head_dim,)), (p + "attn_k_norm.weight", (d.head_dim,))]
        shapes += [
            (p + "attn_q.weight", (d.embd, q)),
            (p + "attn_k.weight", (d.embd, kv)),
            (p + "attn_v.weight", (d.embd, kv)),
            (p + "attn_output.weight", (q, d.embd)),
        ]
        if d.experts is None:
            shapes += [
                (p + "ffn_gate.weight", (d.embd, d.ffn)),
                (p + "ffn_up.weight", (d.embd, d.ffn)),
                (p + "ffn_down.weight", (d.ffn, d.embd)),
            ]
        else:
            count, _, width = d.experts
            shapes += [
                (p + ROUTER, (d.embd, count)),
                (p + "ffn_gate_exps.weight", (d.embd, width, count)),
                (p + "ffn_up_exps.weight", (d.embd, width, count)),
                (p + "ffn_down_exps.weight", (width, d.embd, count)),
            ]
    return shapes


def metadata(name: str, d: Dimensions) -> dict[str, MetaValue]:
    """A header that llama.cpp loads: dimensions, and a byte-level vocabulary padded with numbered tokens."""
    a = d.arch
    mixture: dict[str, MetaValue] = {}
    if d.experts is not None:
        names = ("expert_count", "expert_used_count", "expert_feed_forward_length")
        mixture = {f"{a}.{name}": scalar(count) for name, count in zip(names, d.experts, strict=True)}
    return {
        "general.architecture": scalar(a),
        "general.name": scalar(f"{name} shape, random weights"),
        f"{a}.context_length": scalar(d.context),
        f"{a}.embedding_length": scalar(d.embd),
        f"{a}.block_count": scalar(d.layers),
        f"{a}.feed_forward_length": scalar(d.ffn),
        f"{a}.attention.head_count": scalar(d.heads),
        f"{a}.attention.head_count_kv": scalar(d.kv_heads),
        f"{a}.attention.key_length": scalar(d.head_dim),
        f"{a}.attention.value_length": scalar(d.head_dim),
        f"{a}.attention.layer_norm_rms_epsilon": scalar(1e-6),
        f"{a}.rope.freq_base": scalar(1e6),
        f"{a}.rope.dimension_count": scalar(d.head_dim),
        f"{a}.vocab_size": scalar(d.vocab),
        **mixture,
        **vocabulary("qwen2" if a.startswith("qwen3") else "llama-bpe", d.vocab),
    }


def vocabulary(pre: str, size: int) -> dict[str, MetaValue]:
    """Bytes first, then numbered tokens without meaning; the last one ends a text."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    alphabet = {b: chr(b) for b in printable}
    alphabet |= {b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in printable)}
    tokens = [alphabet[b] for b in range(256)] + [f"<t{i}>" for i in range(256, size)]
    normal, control = 1, 3
    return {
        "tokenizer.ggml.model": scalar("gpt2"),
        "tokenizer.ggml.pre": scalar(pre),
        "tokenizer.ggml.tokens": array(tokens, ValueType.STRING),
        "tokenizer.ggml.token_type": array([normal] * (size - 1) + [control], ValueType.INT32),
        "tokenizer.ggml.merges": array([f"{alphabet[32]} {alphabet[97]}"], ValueType.STRING),
        "tokenizer.ggml.eos_token_id": scalar(size - 1),
        "tokenizer.ggml.bos_token_id": scalar(size - 1),
        "tokenizer.ggml.add_bos_token": scalar(value=False),
    }
