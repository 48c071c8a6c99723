"""A tiny BERT with random weights: an encoder without a KV cache, like embedding and reranking models."""

from pathlib import Path

import gguf
import numpy as np

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "\u2581one", "\u2581two", "\u2581three", "\u2581tile", "s"]
EMBD, LAYERS, CONTEXT, FFN, HEADS = 32, 2, 64, 64, 4


def write_bert(
    path: Path, *, rank: bool = False, mean: bool = False, seed: int = 0, known: tuple[str, ...] = ()
) -> Path:
    """Write the file; `known` are additional words in its vocabulary."""
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(str(path), "bert")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(EMBD)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    writer.add_pooling_type(getattr(gguf.PoolingType, "RANK" if rank else "MEAN" if mean else "CLS"))
    more = [*known, *(f"w{i}" for i in range(54))][:54]
    words = [*WORDS, *(f"\u2581{word}" for word in more)]
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(words)
    writer.add_token_types([gguf.TokenType.CONTROL if w.startswith("[") else gguf.TokenType.NORMAL for w in words])
    writer.add_token_type_count(2)
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(3)
    writer.add_sep_token_id(3)
    writer.add_unk_token_id(1)
    writer.add_pad_token_id(0)

    def add(name: str, *shape: int, ones: bool = False) -> None:
        values = np.ones(shape) if ones else rng.normal(0, 0.5, shape)
        writer.add_tensor(name, values.astype(np.float32))

    def norm(name: str) -> None:
        add(f"{name}.weight", EMBD, ones=True)
        add(f"{name}.bias", EMBD)

    add("token_embd.weight", len(words), EMBD)
    add("token_types.weight", 2, EMBD)
    add("position_embd.weight", CONTEXT, EMBD)
    norm("token_embd_norm")
    for layer in range(LAYERS):
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"blk.{layer}.{part}.weight", EMBD, EMBD)
            add(f"blk.{layer}.{part}.bias", EMBD)
        norm(f"blk.{layer}.attn_output_norm")
        add(f"blk.{layer}.ffn_up.weight", FFN, EMBD)
        add(f"blk.{layer}.ffn_up.bias", FFN)
        add(f"blk.{layer}.ffn_down.weight", EMBD, FFN)
        add(f"blk.{layer}.ffn_down.bias", EMBD)
        norm(f"blk.{layer}.layer_output_norm")
    if rank:
        add("cls.weight", EMBD, EMBD)
        add("cls.bias", EMBD)
        add("cls.output.weight", 1, EMBD)
        add("cls.output.bias", 1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
