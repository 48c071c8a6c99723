"""Headers of popular models, without a file: tensors, layers and sizes as published."""

from engine.placement.shape import Layer, ModelShape
from quantize.files.gguf_file import TensorInfo
from quantize.ggml_types import BLOCK_SIZES
from quantize.ggml_types import GgmlType as Type


def published(
    architecture, layers, embedding, queries, keys, heads, feed_forward, vocabulary, *,
    attention=Type.Q4_K, other=Type.Q4_K, head=Type.Q6_K, experts=0, used=0, context=131_072, window=0,
    sliding=lambda _: False,
):  # fmt: skip
    """A model shape; `feed_forward` is that of one expert in MoE models, `keys` the width of all key heads."""
    found = []

    def tensor(name, kind, *shape):
        block, width = BLOCK_SIZES[kind]
        count = 1
        for n in shape:
            count *= n
        found.append(TensorInfo(name, shape, kind, 0, count // block * width))

    for layer in range(layers):
        tensor(f"blk.{layer}.attn_q.weight", attention, embedding, queries)
        tensor(f"blk.{layer}.attn_k.weight", attention, embedding, keys)
        tensor(f"blk.{layer}.attn_v.weight", attention, embedding, keys)
        tensor(f"blk.{layer}.attn_output.weight", attention, queries, embedding)
        suffix = ("_exps", experts) if experts else ("",)
        if experts:
            tensor(f"blk.{layer}.ffn_gate_inp.weight", Type.F32, embedding, experts)
        for name in ("gate", "up"):
            tensor(f"blk.{layer}.ffn_{name}{suffix[0]}.weight", other, embedding, feed_forward, *suffix[1:])
        tensor(f"blk.{layer}.ffn_down{suffix[0]}.weight", other, feed_forward, embedding, *suffix[1:])
    tensor("token_embd.weight", attention, embedding, vocabulary)
    tensor("output.weight", head, embedding, vocabulary)
    return ModelShape(
        architecture=architecture,
        layers=tuple(Layer(key_values=keys, value_values=keys, sliding=sliding(i)) for i in range(layers)),
        embedding=embedding, heads=heads, attention=queries, feed_forward=feed_forward, vocabulary=vocabulary,
        context_train=context, sliding_window=window, experts=experts, experts_used=used,
        file_bytes=sum(t.nbytes for t in found), tensors=tuple(found),
    )  # fmt: skip


_OSS = {
    "attention": Type.Q8_0, "other": Type.MXFP4, "head": Type.Q8_0, "used": 4, "window": 128,
    "sliding": lambda layer: layer % 2 == 0,
}  # fmt: skip
MODELS = {
    "4B": published("qwen3", 36, 2560, 4096, 1024, 32, 9728, 151_936, context=40_960),
    "4B Q4_0": published("qwen3", 36, 2560, 4096, 1024, 32, 9728, 151_936, attention=Type.Q4_0, other=Type.Q4_0),
    "8B": published("llama", 32, 4096, 4096, 1024, 32, 14_336, 128_256),
    "30B-A3B": published("qwen3moe", 48, 2048, 4096, 512, 32, 768, 151_936, experts=128, used=8),
    "gpt-oss-20b": published("gpt-oss", 24, 2880, 4096, 512, 64, 2880, 201_088, experts=32, **_OSS),
    "gpt-oss-120b": published("gpt-oss", 36, 2880, 4096, 512, 64, 2880, 201_088, experts=128, **_OSS),
    "70B": published("llama", 80, 8192, 8192, 1024, 64, 28_672, 128_256),
}
