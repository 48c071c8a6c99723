"""Write a GGUF with the shape of a known model and random weights: its speed and memory are the real ones.

    python tests/bench/shape_model.py qwen3-0.6b OUT.gguf [--type Q4_K] [--layers N]

Blocks are made in the quantized format directly, with zero mean and about 1/sqrt(inputs) deviation, so logits are
finite and the text means nothing.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Q


@dataclass(frozen=True)
class Shape:
    arch: str
    layers: int
    embd: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    tied: bool


SHAPES = {
    "qwen3-0.6b": Shape("qwen3", 28, 1024, 16, 8, 128, 3072, 151936, tied=True),
    "qwen3-1.7b": Shape("qwen3", 28, 2048, 16, 8, 128, 6144, 151936, tied=True),
    "qwen3-4b": Shape("qwen3", 36, 2560, 32, 8, 128, 9728, 151936, tied=True),
    "llama-1b": Shape("llama", 16, 2048, 32, 8, 64, 8192, 128256, tied=True),
    "llama-8b": Shape("llama", 32, 4096, 32, 8, 128, 14336, 128256, tied=False),
    "small-250m": Shape("llama", 16, 1024, 16, 4, 64, 2816, 32000, tied=True),
}


def _half(value: float) -> np.ndarray:
    return np.frombuffer(np.float16(value).tobytes(), np.uint8)


def blocks(rng: np.random.Generator, rows: int, cols: int, qtype: Q) -> np.ndarray:
    """Random blocks, (rows, bytes a row) uint8. The scales undo the variance of uniform integers."""
    sigma = cols**-0.5
    size, width = gguf.GGML_QUANT_SIZES[qtype]
    out = rng.integers(0, 256, (rows * cols // size, width), dtype=np.uint8)
    if qtype == Q.Q4_K:
        out[:, 0:2], out[:, 2:4] = _half(sigma / 147), _half(7.5 * sigma / 147)
        out[:, 4:12], out[:, 12:16] = 160, 0
    elif qtype == Q.Q6_K:
        out[:, 192:208], out[:, 208:210] = 16, _half(sigma / 296)
    elif qtype == Q.Q8_0:
        out[:, 0:2] = _half(sigma / 74)
    elif qtype == Q.Q4_0:
        out[:, 0:2] = _half(sigma / 4.6)
    else:
        raise ValueError(f"no recipe for {qtype.name}")
    return out.reshape(rows, -1)


def write(name: str, path: Path, qtype: Q = Q.Q4_K, layers: int | None = None, seed: int = 0) -> None:
    """Write the file."""
    s = SHAPES[name]
    rng = np.random.default_rng(seed)
    head = Q.Q6_K if qtype == Q.Q4_K else qtype
    w = gguf.GGUFWriter(str(path), s.arch)
    w.add_name(f"{name} shape, random weights")
    w.add_context_length(40960)
    w.add_embedding_length(s.embd)
    w.add_block_count(layers or s.layers)
    w.add_feed_forward_length(s.ffn)
    w.add_head_count(s.heads)
    w.add_head_count_kv(s.kv_heads)
    w.add_key_length(s.head_dim)
    w.add_value_length(s.head_dim)
    w.add_rope_freq_base(1e6)
    w.add_rope_dimension_count(s.head_dim)
    w.add_layer_norm_rms_eps(1e-6)
    w.add_vocab_size(s.vocab)
    _tokenizer(w, s)

    def put(tensor: str, rows: int, cols: int, kind: Q) -> None:
        w.add_tensor(tensor, blocks(rng, rows, cols, kind), raw_dtype=kind)

    def norm(tensor: str, size: int) -> None:
        w.add_tensor(tensor, np.ones(size, np.float32))

    put("token_embd.weight", s.vocab, s.embd, head)
    norm("output_norm.weight", s.embd)
    if not s.tied:
        put("output.weight", s.vocab, s.embd, head)
    for i in range(layers or s.layers):
        p = f"blk.{i}."
        norm(p + "attn_norm.weight", s.embd)
        norm(p + "ffn_norm.weight", s.embd)
        if s.arch == "qwen3":
            norm(p + "attn_q_norm.weight", s.head_dim)
            norm(p + "attn_k_norm.weight", s.head_dim)
        put(p + "attn_q.weight", s.heads * s.head_dim, s.embd, qtype)
        put(p + "attn_k.weight", s.kv_heads * s.head_dim, s.embd, qtype)
        put(p + "attn_v.weight", s.kv_heads * s.head_dim, s.embd, qtype)
        put(p + "attn_output.weight", s.embd, s.heads * s.head_dim, qtype)
        put(p + "ffn_gate.weight", s.ffn, s.embd, qtype)
        put(p + "ffn_up.weight", s.ffn, s.embd, qtype)
        put(p + "ffn_down.weight", s.embd, s.ffn, qtype)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def _tokenizer(w: gguf.GGUFWriter, s: Shape) -> None:
    """A byte-level tokenizer: 256 bytes, then tokens without meaning, the last one ends a text."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    alphabet = {b: chr(b) for b in printable}
    alphabet |= {b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in printable)}
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("qwen2" if s.arch == "qwen3" else "llama-bpe")
    w.add_token_list([alphabet[b] for b in range(256)] + [f"<t{i}>" for i in range(256, s.vocab)])
    w.add_token_types([gguf.TokenType.NORMAL] * (s.vocab - 1) + [gguf.TokenType.CONTROL])
    w.add_token_merges([f"{alphabet[32]} {alphabet[97]}"])
    w.add_eos_token_id(s.vocab - 1)
    w.add_bos_token_id(s.vocab - 1)
    w.add_add_bos_token(False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("out", type=Path)
    parser.add_argument("--type", default="Q4_K")
    parser.add_argument("--layers", type=int)
    arguments = parser.parse_args()
    write(arguments.shape, arguments.out, Q[arguments.type], arguments.layers)
