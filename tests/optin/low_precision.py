"""Compare weights in low precision with the libraries that define the formats, to the last bit.

Run in an environment with torch, compressed-tensors and bitsandbytes besides Tessera's own packages:

    PYTHONPATH=. python tests/optin/low_precision.py
"""

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from bitsandbytes import functional as bnb
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import save_file

from quantize.convert.checkpoint import Checkpoint

ROWS, COLUMNS = 256, 512
BASE = "model.layers.0.mlp.up_proj"
Made = tuple[dict[str, torch.Tensor], dict[str, Any], torch.Tensor]


def weights() -> torch.Tensor:
    torch.manual_seed(4)
    return (torch.randn(ROWS, COLUMNS) / 50).to(torch.bfloat16)


def compressed(name: str, args: QuantizationArgs, *, zero_points: bool = False) -> Made:
    """What a compressor writes, and what it reads again."""
    compressor = BaseCompressor.load_from_registry(name)
    values = weights()
    size = args.group_size if args.group_size and args.group_size > 0 else COLUMNS
    blocks = values.float().reshape(ROWS, -1, size)
    named = {}
    if name == "nvfp4-pack-quantized":
        whole = (448.0 * 6.0 / values.float().abs().max()).reshape(1)
        scale = (whole * blocks.abs().amax(dim=2) / 6).to(torch.float8_e4m3fn).to(torch.bfloat16)
        named["weight_global_scale"] = whole
    else:
        top = torch.finfo(torch.float8_e4m3fn).max if args.type == "float" else (1 << args.num_bits - 1) - 1
        scale = (blocks.abs().amax(dim=2) / top).to(torch.bfloat16)
    zero = torch.randint(-3, 3, scale.shape, dtype=torch.int8) if zero_points else None
    scheme = QuantizationScheme(targets=["Linear"], weights=args, format=name)
    given = {"weight": values, "weight_scale": scale, **named}
    if zero is not None:
        given["weight_zero_point"] = zero
    local = compressor.compress(given, scheme)
    read = compressor.decompress(local, scheme)["weight"]
    stored = {f"{BASE}.{k}": v for k, v in local.items()}
    groups = {"group_0": {"weights": json.loads(args.model_dump_json())}}
    settings = {"quant_method": "compressed-tensors", "config_groups": groups}
    return stored, settings, read


def fp8(kind: torch.dtype) -> Made:
    """Every code that is a number, as torch reads it."""
    codes = torch.arange(256, dtype=torch.uint8).repeat(ROWS * COLUMNS // 256).reshape(ROWS, COLUMNS)
    stored = codes.view(kind)
    stored = torch.where(torch.isfinite(stored.float()), stored.float(), 0.0).to(kind)
    scale = torch.rand(ROWS // 128, COLUMNS // 128) / 50
    spread = scale.repeat_interleave(128, 0).repeat_interleave(128, 1)
    settings = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    tensors = {f"{BASE}.weight": stored, f"{BASE}.weight_scale_inv": scale}
    return tensors, settings, (stored.float() * spread).to(torch.bfloat16)


def bits4(kind: str, *, nested: bool) -> Made:
    packed, state = bnb.quantize_4bit(weights(), quant_type=kind, compress_statistics=nested)
    tensors = {f"{BASE}.weight": packed}
    tensors |= {f"{BASE}.weight.{k}": v for k, v in state.as_dict(packed=True).items()}
    return tensors, {"quant_method": "bitsandbytes"}, bnb.dequantize_4bit(packed, state)


def bits8() -> Made:
    codes, scale, _ = bnb.int8_vectorwise_quant(weights().to(torch.float16))
    tensors = {f"{BASE}.weight": codes, f"{BASE}.SCB": scale}
    return tensors, {"quant_method": "bitsandbytes"}, bnb.int8_vectorwise_dequant(codes, scale).to(torch.bfloat16)


def _integers(bits: int, **changes: Any) -> QuantizationArgs:
    return QuantizationArgs(**{"num_bits": bits, "type": "int", "strategy": "group", "group_size": 128, **changes})


KINDS: dict[str, Callable[[], Made]] = {
    "pack-quantized, 4 bits": lambda: compressed("pack-quantized", _integers(4)),
    "pack-quantized, 4 bits, 32": lambda: compressed("pack-quantized", _integers(4, group_size=32)),
    "pack-quantized, 8 bits": lambda: compressed("pack-quantized", _integers(8)),
    "pack-quantized, zero points": lambda: compressed(
        "pack-quantized", _integers(4, symmetric=False), zero_points=True
    ),
    "int-quantized": lambda: compressed("int-quantized", _integers(8, strategy="channel", group_size=None)),
    "float-quantized": lambda: compressed(
        "float-quantized", _integers(8, type="float", strategy="channel", group_size=None)
    ),
    "nvfp4-pack-quantized": lambda: compressed(
        "nvfp4-pack-quantized", _integers(4, type="float", strategy="tensor_group", group_size=16)
    ),
    "FP8 E4M3": lambda: fp8(torch.float8_e4m3fn),
    "FP8 E5M2": lambda: fp8(torch.float8_e5m2),
    "NF4": lambda: bits4("nf4", nested=False),
    "NF4, scales in 8 bits": lambda: bits4("nf4", nested=True),
    "FP4": lambda: bits4("fp4", nested=False),
    "8 bits by rows": bits8,
}


def differing(made: Made) -> int:
    """Values that are not the library's, of ROWS x COLUMNS."""
    tensors, settings, wanted = made
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_file({k: v.contiguous() for k, v in tensors.items()}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps({"dtype": "bfloat16", "quantization_config": settings}))
        source = Checkpoint(folder)
        found = torch.from_numpy(source.rows(f"{BASE}.weight", 0, ROWS).copy().view("i2"))
    return int((found != wanted.contiguous().view(torch.int16)).sum())


def main() -> int:
    """Print the number of differing values for each format; 1 if there are any."""
    wrong = 0
    for kind, make in KINDS.items():
        count = differing(make())
        wrong += count
        print(f"{kind}: {count} of {ROWS * COLUMNS} values differ")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
