"""Small random projectors (mmproj files) for the random models of shapes.py, and small images."""

import struct
import zlib
from pathlib import Path

import gguf
import numpy as np

WIDTH, BLOCKS, PATCH = 64, 2, 14


def write_projector(path: Path, kind: str, text_embd: int, *, tokens_a_side: int = 4, seed: int = 1) -> Path:
    """Write a random vision encoder: `gemma3` (a fixed square of tokens) or `qwen2vl_merger` (M-RoPE)."""
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(str(path), "clip")
    side = PATCH * 2 * tokens_a_side
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", kind)
    for name, value in (
        ("image_size", side), ("patch_size", PATCH), ("embedding_length", WIDTH),
        ("feed_forward_length", 2 * WIDTH),
        ("block_count", BLOCKS), ("projection_dim", text_embd), ("attention.head_count", 4),
        ("projector.scale_factor", 2), ("spatial_merge_size", 2),
    ):  # fmt: skip
        writer.add_uint32(f"clip.vision.{name}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    writer.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
    writer.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])
    writer.add_bool("clip.use_gelu", True)

    def add(name: str, *dims: int, ones: bool = False) -> None:
        values = np.ones(dims) if ones else rng.standard_normal(dims) * dims[-1] ** -0.5
        writer.add_tensor(name, values.astype(np.float32))

    add("v.patch_embd.weight", WIDTH, 3, PATCH, PATCH)
    for block in range(BLOCKS):
        prefix = f"v.blk.{block}."
        for part in ("attn_q", "attn_k", "attn_v", "attn_out"):
            add(f"{prefix}{part}.weight", WIDTH, WIDTH)
            add(f"{prefix}{part}.bias", WIDTH)
        for norm in ("ln1", "ln2"):
            add(f"{prefix}{norm}.weight", WIDTH, ones=True)
            add(f"{prefix}{norm}.bias", WIDTH)
        add(f"{prefix}ffn_up.weight", 2 * WIDTH, WIDTH)
        add(f"{prefix}ffn_up.bias", 2 * WIDTH)
        add(f"{prefix}ffn_down.weight", WIDTH, 2 * WIDTH)
        add(f"{prefix}ffn_down.bias", WIDTH)
    add("v.post_ln.weight", WIDTH, ones=True)
    add("v.post_ln.bias", WIDTH)
    if kind == "gemma3":
        add("v.patch_embd.bias", WIDTH)
        add("v.position_embd.weight", (2 * tokens_a_side) ** 2, WIDTH)
        add("mm.input_projection.weight", WIDTH, text_embd)
        add("mm.soft_emb_norm.weight", WIDTH, ones=True)
    else:
        add("v.patch_embd.weight.1", WIDTH, 3, PATCH, PATCH)
        add("mm.0.weight", 4 * WIDTH, 4 * WIDTH)
        add("mm.0.bias", 4 * WIDTH)
        add("mm.2.weight", text_embd, 4 * WIDTH)
        add("mm.2.bias", text_embd)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def png(pixels: np.ndarray, claimed: tuple[int, int] | None = None) -> bytes:
    """A PNG of (height, width, 3) uint8; `claimed` (width, height) writes a false header."""
    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", *(claimed or (width, height)), 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    )


def noise(seed: int, width: int = 60, height: int = 40) -> bytes:
    """An image of random pixels, different for each seed."""
    return png(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))
