"""Remote models with realistic headers and sizes that use no disk space: a header, then zeros."""

import hashlib
import struct
from functools import cache

from engine.placement.shape import shape_of
from quantize.files.gguf_file import read_gguf_source
from quantize.ggml_types import BLOCK_SIZES, GgmlType
from tests.support.fakes.fake_hub import FakeFile


def _text(value):
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


class Zeros:
    """A header followed by zeros, of any length; sliceable like bytes."""

    def __init__(self, head, size):
        self.head, self.size = head, size

    def __len__(self):
        return self.size

    def __getitem__(self, span):
        start, end, _ = span.indices(self.size)
        return self.head[start:end] + b"\0" * (end - max(start, len(self.head)) if end > len(self.head) else 0)


class RemoteModel(FakeFile):
    """A file whose hash is that of its header, because it is never downloaded."""

    def __post_init__(self):
        self.sha256 = hashlib.sha256(self.data.head).hexdigest()
        self.git_sha1 = "0" * 40


_TOKENS = {}


def vocabulary(count):
    """The three arrays of a byte-level BPE vocabulary: tokens, their types, merges."""
    if count not in _TOKENS:
        tokens = b"".join(_text(f"tok{i:06x}") for i in range(count))
        merges = b"".join(_text(f"{i:05x} {i // 7:05x}") for i in range(count))
        types = struct.pack("<I", 1) * count
        _TOKENS[count] = [
            _text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, count) + tokens,
            _text("tokenizer.ggml.token_type") + struct.pack("<IIQ", 9, 5, count) + types,
            _text("tokenizer.ggml.merges") + struct.pack("<IIQ", 9, 8, count) + merges,
        ]
    return _TOKENS[count]


def remote_gguf(ggml_type, file_type, *, tokens=150_000, layers=36, width=4096, ffn=12288, head_kv=8):
    """A file with the shape of an 8B model in one type, and a header as large as that of a real vocabulary."""
    numbers = {
        "general.file_type": file_type,
        "qwen3.context_length": 40960,
        "qwen3.embedding_length": width,
        "qwen3.block_count": layers,
        "qwen3.feed_forward_length": ffn,
        "qwen3.attention.head_count": 32,
        "qwen3.attention.head_count_kv": head_kv,
        "qwen3.attention.key_length": 128,
        "qwen3.attention.value_length": 128,
    }
    strings = {"general.architecture": "qwen3", "general.name": "Big", "tokenizer.ggml.model": "gpt2"}
    pairs = [_text(k) + struct.pack("<I", 8) + _text(v) for k, v in strings.items()]
    pairs += [_text(k) + struct.pack("<II", 4, v) for k, v in numbers.items()]
    pairs += vocabulary(tokens)
    pairs.append(
        _text("tokenizer.chat_template") + struct.pack("<I", 8) + _text("{% if tools %}x{% endif %}" * 200)
    )
    shapes = [("token_embd.weight", (width, tokens)), ("output.weight", (width, tokens))]
    for layer in range(layers):
        for name, shape in (
            ("attn_q", (width, 4096)), ("attn_k", (width, 1024)), ("attn_v", (width, 1024)),
            ("attn_output", (4096, width)), ("ffn_gate", (width, ffn)), ("ffn_up", (width, ffn)),
            ("ffn_down", (ffn, width)), ("attn_norm", (width,)), ("ffn_norm", (width,)),
        ):  # fmt: skip
            shapes.append((f"blk.{layer}.{name}.weight", shape))
    rows, offset = b"", 0
    for name, shape in shapes:
        kind = ggml_type if len(shape) > 1 else GgmlType.F32
        rows += _text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape) + struct.pack("<IQ", kind, offset)
        block, size = BLOCK_SIZES[kind]
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        offset += -(-(count // block * size) // 32) * 32
    head = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(pairs)) + b"".join(pairs) + rows
    head += b"\0" * (-len(head) % 32)
    return RemoteModel(Zeros(head, len(head) + offset))


_MIXES = {
    "IQ1_S": (GgmlType.IQ1_S, 24), "IQ2_XXS": (GgmlType.IQ2_XXS, 19), "IQ2_XS": (GgmlType.IQ2_XS, 20),
    "Q2_K": (GgmlType.Q2_K, 10), "IQ3_XXS": (GgmlType.IQ3_XXS, 23), "IQ3_S": (GgmlType.IQ3_S, 26),
    "Q3_K_M": (GgmlType.Q3_K, 12), "IQ4_XS": (GgmlType.IQ4_XS, 30), "Q4_0": (GgmlType.Q4_0, 2),
    "IQ4_NL": (GgmlType.IQ4_NL, 25), "Q4_K_S": (GgmlType.Q4_K, 14), "Q4_K_M": (GgmlType.Q4_K, 15),
    "Q4_1": (GgmlType.Q4_1, 3), "Q5_0": (GgmlType.Q5_0, 8), "Q5_K_S": (GgmlType.Q5_K, 16),
    "Q5_K_M": (GgmlType.Q5_K, 17), "Q5_1": (GgmlType.Q5_1, 9), "Q6_K": (GgmlType.Q6_K, 18),
    "Q8_0": (GgmlType.Q8_0, 7), "BF16": (GgmlType.BF16, 32),
}  # fmt: skip


def repository_of_twenty(tokens=150_000):
    """File name to file: twenty quantizations with the same vocabulary."""
    return {f"Big-8B-{name}.gguf": remote_gguf(*mix, tokens=tokens) for name, mix in _MIXES.items()}


class Bytes:
    """A file source in memory."""

    name = "big.gguf"

    def __init__(self, data):
        self.data, self.size = data, len(data)

    def read_at(self, offset, length):
        return bytes(self.data[offset : offset + length])


@cache
def shape(kind):
    """The shape of an 8B model in that type, read from its header."""
    header = read_gguf_source(Bytes(remote_gguf(kind, 15, tokens=32_000).data))
    return shape_of(header, header.tensors, header.file_bytes)
