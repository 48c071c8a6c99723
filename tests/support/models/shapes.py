"""Small GGUF models with random weights in the shapes of real architectures, written in 1 to 2 s.

Speed, memory and loading do not depend on the weights' values, so such a file replaces a download. Its text is
meaningless, but its logits are finite. `write_shape(path, SHAPES["gemma3"])` writes one; scale any of them with
`replace(SHAPES["llama"], layers=4, vocab=1000)`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Q

F32_ONLY = ("norm", "ffn_gate_inp", "ssm_conv1d", "ssm_a", "ssm_d", "ssm_dt.bias", "shortconv.conv", "exp_probs")


@dataclass(frozen=True)
class Shape:
    """Dimensions of a model. `kv_heads` is 0 in `recurrent_layers`; `experts` is (count, used, width)."""

    arch: str
    layers: int = 6
    embd: int = 512
    heads: int = 8
    kv_heads: int = 2
    head_dim: int = 64
    ffn: int = 1536
    vocab: int = 4096
    context: int = 32768
    tied: bool = False
    qtype: Q = Q.F16
    experts: tuple[int, int, int] | None = None
    sliding_window: int | None = None
    recurrent_layers: tuple[int, ...] = ()
    ssm: tuple[int, int, int, int] | None = None  # conv kernel, inner size, state size, time-step rank
    kv_lora: int | None = None  # MLA: rank of the compressed KV
    rope_dim: int | None = None
    rope_sections: tuple[int, int, int, int] | None = None  # M-RoPE: time, height, width, unused


SHAPES: dict[str, Shape] = {
    "llama": Shape("llama"),
    "llama-q4_0": Shape("llama", qtype=Q.Q4_0),
    "qwen2": Shape("qwen2", tied=True),
    "qwen3": Shape("qwen3", tied=True, kv_heads=4),
    "big-vocab": Shape("qwen3", tied=True, layers=4, embd=256, vocab=151936, qtype=Q.Q8_0),
    "qwen3moe": Shape("qwen3moe", experts=(16, 4, 256)),
    "gemma3": Shape("gemma3", layers=12, kv_heads=4, head_dim=128, tied=True, sliding_window=512),
    "lfm2": Shape("lfm2", layers=8, tied=True, kv_heads=4, recurrent_layers=(0, 1, 3, 4, 6)),
    "mamba": Shape(
        "mamba", layers=6, heads=1, kv_heads=1, ffn=0, ssm=(4, 1024, 16, 32), recurrent_layers=tuple(range(6))
    ),
    "deepseek2": Shape(
        "deepseek2", layers=4, experts=(8, 2, 256), kv_lora=256, rope_dim=32, head_dim=96, kv_heads=8
    ),
}


def write_shape(path: Path, shape: Shape, seed: int = 0, template: str = "") -> Path:
    """Write `shape` to `path` and return it. `template`: its chat template."""
    writer = _described(path, shape)
    if template:
        writer.add_chat_template(template)
    rng = np.random.default_rng(seed)
    for name, dims in tensors(shape):
        _add(writer, rng, name, dims, shape.qtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_hollow(path: Path, shape: Shape) -> Path:
    """Write the same file with a hole instead of weights, for tests that only read its header."""
    writer = _described(path, shape)
    for name, dims in tensors(shape):
        kept = _qtype(name, dims, shape.qtype)
        of_bytes = gguf.quants.quant_shape_to_byte_shape(dims, kept)
        num_bytes = int(np.prod(of_bytes))
        writer.add_tensor_info(name, of_bytes, np.dtype(np.uint8), num_bytes, raw_dtype=kept)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    (out,), (infos,) = writer.fout, writer.tensors
    sizes = [out.tell(), *(info.nbytes for info in infos.values())]
    out.truncate(sum(writer.ggml_pad(size, writer.data_alignment) for size in sizes))
    writer.close()
    return path


def _described(path: Path, shape: Shape) -> gguf.GGUFWriter:
    writer = gguf.GGUFWriter(str(path), shape.arch)
    _metadata(writer, shape)
    _vocabulary(writer, shape)
    return writer


def _qtype(name: str, dims: tuple[int, ...], qtype: Q) -> Q:
    """The type that a tensor is written in."""
    if len(dims) == 1 or any(mark in name for mark in F32_ONLY):
        return Q.F32
    return qtype if dims[-1] % gguf.GGML_QUANT_SIZES[qtype][0] == 0 else Q.F16


def tensors(shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and dimensions, row length last (numpy order)."""
    yield "token_embd.weight", (shape.vocab, shape.embd)
    yield ("token_embd_norm.weight" if shape.arch == "lfm2" else "output_norm.weight"), (shape.embd,)
    if not shape.tied:
        yield "output.weight", (shape.vocab, shape.embd)
    for layer in range(shape.layers):
        prefix = f"blk.{layer}."
        yield prefix + "attn_norm.weight", (shape.embd,)
        if layer in shape.recurrent_layers:
            yield from _recurrent(prefix, shape)
        elif shape.kv_lora:
            yield from _latent_attention(prefix, shape, shape.kv_lora)
        else:
            yield from _attention(prefix, shape)
        if shape.ffn:
            yield from _feed_forward(prefix, shape, dense=shape.kv_lora is not None and layer == 0)


def _attention(prefix: str, shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    yield prefix + "attn_q.weight", (query, shape.embd)
    yield prefix + "attn_k.weight", (key, shape.embd)
    yield prefix + "attn_v.weight", (key, shape.embd)
    yield prefix + "attn_output.weight", (shape.embd, query)
    if shape.arch == "qwen2":
        for name, width in (("q", query), ("k", key), ("v", key)):
            yield prefix + f"attn_{name}.bias", (width,)
    if shape.arch in {"qwen3", "qwen3moe", "gemma3", "lfm2"}:
        yield prefix + "attn_q_norm.weight", (shape.head_dim,)
        yield prefix + "attn_k_norm.weight", (shape.head_dim,)
    if shape.arch == "gemma3":
        yield prefix + "post_attention_norm.weight", (shape.embd,)
        yield prefix + "post_ffw_norm.weight", (shape.embd,)


def _latent_attention(prefix: str, shape: Shape, rank: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    rope = shape.rope_dim or 0
    plain = shape.head_dim - rope
    yield prefix + "attn_q_a.weight", (rank, shape.embd)
    yield prefix + "attn_q_a_norm.weight", (rank,)
    yield prefix + "attn_q_b.weight", (shape.heads * shape.head_dim, rank)
    yield prefix + "attn_kv_a_mqa.weight", (rank + rope, shape.embd)
    yield prefix + "attn_kv_a_norm.weight", (rank,)
    yield prefix + "attn_k_b.weight", (shape.heads, rank, plain)
    yield prefix + "attn_v_b.weight", (shape.heads, plain, rank)
    yield prefix + "attn_output.weight", (shape.embd, shape.heads * plain)


def _recurrent(prefix: str, shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    if shape.ssm is None:  # LFM2's short convolution
        yield prefix + "shortconv.conv.weight", (shape.embd, 3)
        yield prefix + "shortconv.in_proj.weight", (3 * shape.embd, shape.embd)
        yield prefix + "shortconv.out_proj.weight", (shape.embd, shape.embd)
        return
    kernel, inner, state, rank = shape.ssm
    yield prefix + "ssm_in.weight", (2 * inner, shape.embd)
    yield prefix + "ssm_conv1d.weight", (inner, kernel)
    yield prefix + "ssm_conv1d.bias", (inner,)
    yield prefix + "ssm_x.weight", (rank + 2 * state, inner)
    yield prefix + "ssm_dt.weight", (inner, rank)
    yield prefix + "ssm_dt.bias", (inner,)
    yield prefix + "ssm_a", (inner, state)
    yield prefix + "ssm_d", (inner,)
    yield prefix + "ssm_out.weight", (shape.embd, inner)


def _feed_forward(prefix: str, shape: Shape, *, dense: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield prefix + "ffn_norm.weight", (shape.embd,)
    if shape.experts is None or dense:
        yield prefix + "ffn_gate.weight", (shape.ffn, shape.embd)
        yield prefix + "ffn_up.weight", (shape.ffn, shape.embd)
        yield prefix + "ffn_down.weight", (shape.embd, shape.ffn)
        return
    count, _, width = shape.experts
    yield prefix + "ffn_gate_inp.weight", (count, shape.embd)
    for expert_set, size in (("exps", count), *((("shexp", 0),) if shape.kv_lora else ())):
        stack = (size,) if size else ()
        yield prefix + f"ffn_gate_{expert_set}.weight", (*stack, width, shape.embd)
        yield prefix + f"ffn_up_{expert_set}.weight", (*stack, width, shape.embd)
        yield prefix + f"ffn_down_{expert_set}.weight", (*stack, shape.embd, width)


def _metadata(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_name(f"{shape.arch} shape, random weights")
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.embd)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.heads)
    if shape.arch == "lfm2":
        writer.add_head_count_kv(
            [0 if i in shape.recurrent_layers else shape.kv_heads for i in range(shape.layers)]
        )
        writer.add_uint32("lfm2.shortconv.l_cache", 3)
    else:
        writer.add_head_count_kv(1 if shape.kv_lora else shape.kv_heads)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(shape.vocab)
    if shape.kv_lora:
        rope = shape.rope_dim or 0
        writer.add_q_lora_rank(shape.kv_lora)
        writer.add_kv_lora_rank(shape.kv_lora)
        writer.add_key_length(shape.kv_lora + rope)
        writer.add_value_length(shape.kv_lora)
        writer.add_key_length_mla(shape.head_dim)
        writer.add_value_length_mla(shape.head_dim - rope)
        writer.add_rope_dimension_count(rope)
        writer.add_leading_dense_block_count(1)
        writer.add_expert_shared_count(1)
        writer.add_expert_weights_scale(1.0)
    elif not shape.ssm:
        writer.add_key_length(shape.head_dim)
        writer.add_value_length(shape.head_dim)
        writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(1e6)
    if shape.experts:
        writer.add_expert_count(shape.experts[0])
        writer.add_expert_used_count(shape.experts[1])
        writer.add_expert_feed_forward_length(shape.experts[2])
    if shape.sliding_window:
        writer.add_sliding_window(shape.sliding_window)
    if shape.rope_sections:
        writer.add_rope_dimension_sections(list(shape.rope_sections))
    if shape.ssm:
        writer.add_ssm_conv_kernel(shape.ssm[0])
        writer.add_ssm_inner_size(shape.ssm[1])
        writer.add_ssm_state_size(shape.ssm[2])
        writer.add_ssm_time_step_rank(shape.ssm[3])


def _vocabulary(writer: gguf.GGUFWriter, shape: Shape) -> None:
    """Write a byte-level vocabulary, filled up with numbered tokens; the last one is the end of text."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    alphabet = {b: chr(b) for b in printable}
    alphabet |= {b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in alphabet)}
    tokens = [alphabet[b] for b in range(256)] + [f"<t{i}>" for i in range(256, shape.vocab)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * (shape.vocab - 1) + [gguf.TokenType.CONTROL])
    writer.add_token_merges([f"{alphabet[32]} {alphabet[97]}"])
    writer.add_bos_token_id(shape.vocab - 1)
    writer.add_eos_token_id(shape.vocab - 1)
    writer.add_add_bos_token(False)


def _add(writer: gguf.GGUFWriter, rng: np.random.Generator, name: str, dims: tuple[int, ...], qtype: Q) -> None:
    if name.endswith("norm.weight"):
        writer.add_tensor(name, np.ones(dims, np.float32))
        return
    kept = _qtype(name, dims, qtype)
    if kept == Q.F32:
        values = rng.standard_normal(dims, dtype=np.float32) * 0.1
        writer.add_tensor(name, -np.abs(values) if name.endswith("ssm_a") else values)
        return
    data = random_blocks(rng, dims, kept)
    writer.add_tensor(name, data, raw_dtype=None if kept == Q.F16 else kept)


def random_blocks(rng: np.random.Generator, dims: tuple[int, ...], qtype: Q) -> np.ndarray:
    """Random weights with standard deviation 1/sqrt(row length): float16, or Q4_0 or Q8_0 blocks as uint8 rows."""
    sigma = dims[-1] ** -0.5
    if qtype == Q.F16:
        return (rng.standard_normal(dims, dtype=np.float32) * sigma).astype(np.float16)
    spread = {Q.Q4_0: 4.6, Q.Q8_0: 74.0}[qtype]  # standard deviation of the integers in random bytes
    size, width = gguf.GGML_QUANT_SIZES[qtype]
    rows = int(np.prod(dims[:-1]))
    blocks = rng.integers(0, 256, (rows * dims[-1] // size, width), dtype=np.uint8)
    blocks[:, 0:2] = np.frombuffer(np.float16(sigma / spread).tobytes(), np.uint8)
    return blocks.reshape(*dims[:-1], -1)


def scaled(name: str, **changes: object) -> Shape:
    """A named shape with some dimensions changed."""
    return replace(SHAPES[name], **changes)


def shallow(name: str) -> Shape:
    """A named shape with fewer layers, of each of its kinds: written and computed in a third of the time."""
    if name == "gemma3":
        return scaled(name, layers=6)  # every sixth one sees all tokens
    if SHAPES[name].recurrent_layers:
        layers = 2 if name == "mamba" else 4
        return scaled(name, layers=layers, recurrent_layers=tuple(range(2)) if layers == 2 else (0, 1, 3))
    return scaled(name, layers=2)
