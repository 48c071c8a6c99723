"""Compares weights in low precision bit by bit with the libraries that define the formats.

Run in an environment with torch, transformers, compressed-tensors, bitsandbytes, nvidia-modelopt, torchao, mlx with
mlx-cpu, auto-gptq, gptqmodel, auto-round and autoawq besides Tessera's own packages. The last four can be installed
without most of what they need (`pip install --no-deps`): only their readers in torch are imported. GPTQModel's
needs pypcre, logbar, accelerate, threadpoolctl and device-smi.

    PYTHONPATH=. python tests/optin/low_precision.py [WORD IN THE NAME OF A FORMAT]
"""

import importlib
import importlib.util
import json
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from bitsandbytes import functional as bnb
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from modelopt.torch.quantization.qtensor import MXFP4QTensor, NVFP4QTensor
from safetensors.torch import save_file
from transformers.integrations.bitnet import unpack_weights
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

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
        if args.strategy == "tensor":
            scale = scale.max().reshape(1)
        elif name == "mxfp4-pack-quantized":
            scale = torch.exp2(torch.ceil(torch.log2(blocks.abs().amax(dim=2) / 6))).to(torch.bfloat16)
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


def reader(name: str, *packages: str) -> Any:
    """A module of an installed package, without the code of some packages around it, which imports kernels."""
    for package in packages:
        if package not in sys.modules:
            spec = importlib.util.find_spec(package)
            assert spec is not None
            bare = ModuleType(package)
            # What the readers of GPTQModel and AutoRound import from their packages.
            vars(bare).update(__path__=spec.submodule_search_locations, DEBUG_ON=False, get_packing_device=None)
            sys.modules[package] = bare
    return importlib.import_module(name)


def fp8(kind: torch.dtype, scales: tuple[int, ...]) -> Made:
    """Every code that is a number, as transformers reads it."""
    codes = torch.arange(256, dtype=torch.uint8).repeat(ROWS * COLUMNS // 256).reshape(ROWS, COLUMNS)
    stored = codes.view(kind)
    stored = torch.where(torch.isfinite(stored.float()), stored.float(), 0.0).to(kind)
    scale = torch.rand(scales) / 50
    settings = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    tensors = {"weight": stored, "weight_scale_inv": scale}
    read = Fp8Dequantize(None).convert(tensors)["weight"]
    assert isinstance(read, torch.Tensor)
    return {f"{BASE}.{k}": v for k, v in tensors.items()}, settings, read.to(torch.bfloat16)


def cast(kind: torch.dtype) -> Made:
    """Every code that is a number, stored without scales, as torch reads it."""
    codes = torch.arange(256, dtype=torch.uint8).repeat(ROWS * COLUMNS // 256).reshape(ROWS, COLUMNS)
    is_number = torch.isfinite(codes.view(kind).float())
    stored = torch.where(is_number, codes, torch.zeros_like(codes)).view(kind)
    return {f"{BASE}.weight": stored}, {}, stored.to(torch.bfloat16)


def words(*shape: int) -> torch.Tensor:
    """Packed integers of every value."""
    return torch.randint(-(1 << 31), 1 << 31, shape, dtype=torch.int64).to(torch.int32)


def fp4(by: str) -> Made:
    """Every code, as ModelOpt (NVFP4, MXFP4) and transformers (MXFP4 of gpt-oss) read it.

    NVFP4 without minus zero: ModelOpt reads it as zero, compressed-tensors and Tessera as what it is.
    """
    codes = torch.randint(0, 15 if by == "NVFP4" else 16, (ROWS, COLUMNS), dtype=torch.uint8)
    if by == "NVFP4":
        codes += (codes >= 8).to(torch.uint8)
    packed = codes[:, 0::2] | codes[:, 1::2] << 4
    size = 16 if by == "NVFP4" else 32
    scale = torch.randint(100, 126, (ROWS, COLUMNS // size), dtype=torch.uint8)
    tensors = {"weight": packed, "weight_scale": scale}
    shape, blocks = torch.Size((ROWS, COLUMNS)), {-1: size}
    if by == "NVFP4":
        whole = torch.tensor(0.00371)
        tensors |= {"weight_scale": scale.view(torch.float8_e4m3fn), "weight_scale_2": whole}
        read = NVFP4QTensor(shape, torch.bfloat16, packed).dequantize(
            scale=tensors["weight_scale"], double_scale=whole, block_sizes=blocks
        )
    elif by == "MXFP4":
        read = MXFP4QTensor(shape, torch.bfloat16, packed).dequantize(scale=scale, block_sizes=blocks)
    else:
        grouped = packed.reshape(1, ROWS, COLUMNS // size, size // 2)
        read = convert_moe_packed_tensors(grouped, scale[None])[0].T
    return {f"{BASE}.{k}": v for k, v in tensors.items()}, {"quant_method": "modelopt"}, read


def half_of_range(groups: int) -> torch.Tensor:
    """Zeros of 3 bits that are half of the range, less one, in words."""
    fields = sum(3 << 3 * i for i in range(32))
    parts = [fields >> 32 * i & 0xFFFFFFFF for i in range(3)]
    return torch.tensor([parts * (ROWS // 32)] * groups, dtype=torch.int64).to(torch.int32)


def gptq(
    version: str,
    bits: int,
    *,
    is_sorted: bool = False,
    of: str = "gptqmodel",
    settings: dict[str, Any] | None = None,
) -> Made:
    """Every code and zero. GPTQModel adds one to every field of a word at once, the others field by field.

    All agree if no stored zero has its highest bit set, so the others get no such zeros. Of 3 bits in the first
    version, only zeros that are half of the range can be read. AutoGPTQ also stores biases of zeros.
    """
    size, groups = 128, COLUMNS // 128
    zeros = words(groups, ROWS * bits // 32)
    if bits == 3 and version == "gptq":
        zeros = half_of_range(groups)
    elif of != "gptqmodel" and version == "gptq":
        zeros &= 0x77777777
    scales = (torch.rand(groups, ROWS) / 50).to(torch.float16)
    order = (torch.randperm(COLUMNS) if is_sorted else torch.arange(COLUMNS)).to(torch.int32) // size
    tensors = {"qweight": words(COLUMNS * bits // 32, ROWS), "qzeros": zeros, "scales": scales, "g_idx": order}
    read = _read_gptq(of, version, bits, size, tensors)
    if settings is None:
        settings = {"quant_method": "gptq", "checkpoint_format": version, "desc_act": is_sorted}
    if of == "auto_gptq":
        tensors["bias"] = torch.zeros(ROWS, dtype=torch.float16)
    stated = {"bits": bits, "group_size": size, **settings}
    return {f"{BASE}.{k}": v for k, v in tensors.items()}, stated, read


def _read_gptq(of: str, version: str, bits: int, size: int, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    if of == "auto_gptq":
        layer = reader("auto_gptq.nn_modules.qlinear.qlinear_cuda", "auto_gptq").QuantLinear(
            bits, size, COLUMNS, ROWS, bias=False
        )
        layer.load_state_dict(tensors)
        found: torch.Tensor = layer(torch.eye(COLUMNS, dtype=torch.float16)).T
        return found
    if of == "auto_round":
        name = f"auto_round_extension.torch.qlinear_torch{'_zp' if version == 'gptq' else ''}"
        packages = ("auto_round", "auto_round.utils", "auto_round_extension", "auto_round_extension.torch")
        layer = reader(name, *packages).QuantLinear(bits, size, COLUMNS, ROWS, bias=False, g_idx=True)
        layer.load_state_dict(tensors)
        values_of_identity: torch.Tensor = layer(torch.eye(COLUMNS, dtype=torch.float16)).T
        return values_of_identity
    layer = reader("gptqmodel.nn_modules.qlinear.torch", "gptqmodel", "gptqmodel.models").TorchLinear(
        bits=bits, group_size=size, sym=False, desc_act=False, in_features=COLUMNS, out_features=ROWS, bias=False
    )
    layer.load_state_dict(tensors)
    if version == "gptq":
        reader("gptqmodel.utils.model").convert_gptq_v1_to_v2_format_module(layer, bits, torch.int32)
    layer.post_init()
    values: torch.Tensor = layer.dequantize_weight().T
    return values


def awq() -> Made:
    """Every code and every zero, as AutoAWQ reads them."""
    size, groups = 128, COLUMNS // 128
    scales = (torch.rand(groups, ROWS) / 50).to(torch.float16)
    tensors = {"qweight": words(COLUMNS, ROWS // 8), "qzeros": words(groups, ROWS // 8), "scales": scales}
    read = reader("awq.utils.packing_utils", "awq").dequantize_gemm(*tensors.values(), 4, size).T
    settings = {"quant_method": "awq", "bits": 4, "group_size": size, "version": "gemm", "zero_point": True}
    return {f"{BASE}.{k}": v for k, v in tensors.items()}, settings, read


def awq_by_rows() -> Made:
    """Every code and zero in the layout "gemv", as AutoAWQ writes them; it reads them on GPUs only."""
    size, groups = 128, COLUMNS // 128
    codes, zeros = torch.randint(0, 16, (ROWS, COLUMNS)), torch.randint(0, 16, (ROWS, groups))
    scales = (torch.rand(ROWS, groups) / 50 + 0.001).to(torch.float16)
    steps, less = scales.repeat_interleave(size, dim=1).float(), zeros.repeat_interleave(size, dim=1)
    linear = torch.nn.Linear(COLUMNS, ROWS, bias=False)
    linear.weight.data = (codes - less) * steps
    module = reader("awq.modules.linear.gemv", "awq", "awq.modules", "awq.modules.linear")
    layer = module.WQLinear_GEMV.from_linear(linear, 4, size, scales=scales, zeros=zeros)
    settings = {"quant_method": "awq", "bits": 4, "group_size": size, "version": "gemv", "zero_point": True}
    tensors = {f"{BASE}.{k}": getattr(layer, k) for k in ("qweight", "qzeros", "scales")}
    return tensors, settings, ((codes - less) * steps).to(torch.float16)


def mlx(bits: int) -> Made:
    """Every code, as MLX reads it in float32; in bfloat16 its CPU code rounds twice, unlike its GPU products."""
    core = importlib.import_module("mlx.core")
    size, packed = 64, words(ROWS, COLUMNS * bits // 32)
    scales, lows = ((torch.rand(ROWS, COLUMNS // size) - at).to(torch.bfloat16) / 50 for at in (0, 0.5))
    floats = [core.array(part.float().numpy()) for part in (scales, lows)]
    read = core.dequantize(core.array(packed.numpy().view("u4")), *floats, group_size=size, bits=bits)
    tensors = {"weight": packed.view(torch.uint32), "scales": scales, "biases": lows}
    values = torch.from_numpy(np.array(read)).to(torch.bfloat16)
    return {f"{BASE}.{k}": v for k, v in tensors.items()}, {"group_size": size, "bits": bits}, values


def bitnet() -> Made:
    """Ternary codes, as transformers unpacks them; its layers divide the products by the scale."""
    quarters = torch.randint(0, 3, (4, ROWS // 4, COLUMNS), dtype=torch.uint8)
    packed = sum(quarters[i] << 2 * i for i in range(4))
    assert isinstance(packed, torch.Tensor)
    scale = torch.tensor([71.5], dtype=torch.bfloat16)
    read = (unpack_weights(packed, torch.float32) / scale.float()).to(torch.bfloat16)
    tensors = {f"{BASE}.weight": packed, f"{BASE}.weight_scale": scale}
    return tensors, {"quant_method": "bitnet", "linear_class": "bitlinear"}, read


def torchao(kind: str) -> Made:
    """What a tensor of torchao stores in safetensors, and its own floats."""
    library = importlib.import_module("torchao.quantization")
    if kind == "groups":
        made = library.IntxUnpackedToInt8Tensor.from_hp(
            weights(), (1, 32), torch.int4, mapping_type=library.MappingType.ASYMMETRIC
        )
    else:
        made = getattr(library, kind).from_hp(weights(), granularity=library.PerRow())
    names = [*made.tensor_data_names, *getattr(made, "optional_tensor_data_names", ())]
    stored = {name: getattr(made, name) for name in names}
    tensors = {f"{BASE}._weight_{name}": part for name, part in stored.items() if part is not None}
    return tensors, {"quant_method": "torchao"}, made.dequantize().to(torch.bfloat16)


def pairs_of_rows() -> Made:
    """Signed 4 bits with factors of the inputs, as ModelOpt exports them; TensorRT reads them."""
    codes = torch.randint(-8, 8, (ROWS, COLUMNS))
    scales, factors = torch.rand(ROWS, COLUMNS // 128) / 50 + 0.001, torch.rand(COLUMNS).to(torch.bfloat16) + 0.5
    values = codes * scales.repeat_interleave(128, dim=1)
    pack = importlib.import_module("modelopt.torch.export.quant_utils").pack_int4_in_uint8
    tensors = {"weight": pack(values, scales, 128), "weight_scale": scales, "pre_quant_scale": factors}
    settings = {"quant_method": "modelopt", "quant_algo": "W4A16_AWQ"}
    return {f"{BASE}.{k}": v for k, v in tensors.items()}, settings, (values * factors.float()).to(torch.bfloat16)


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


AUTO_ROUND = {"quant_method": "auto-round", "packing_format": "auto_round:gptqmodel"}
KINDS: dict[str, Callable[[], Made]] = {
    "pack-quantized, 4 bits": lambda: compressed("pack-quantized", _integers(4)),
    "pack-quantized, 4 bits, 32": lambda: compressed("pack-quantized", _integers(4, group_size=32)),
    "pack-quantized, 8 bits": lambda: compressed("pack-quantized", _integers(8)),
    "pack-quantized, zero points": lambda: compressed(
        "pack-quantized", _integers(4, symmetric=False), zero_points=True
    ),
    "pack-quantized, 3 bits": lambda: compressed("pack-quantized", _integers(3)),
    "pack-quantized, 5 bits, zero points": lambda: compressed(
        "pack-quantized", _integers(5, symmetric=False), zero_points=True
    ),
    "pack-quantized, 6 bits": lambda: compressed("pack-quantized", _integers(6)),
    "pack-quantized, 7 bits": lambda: compressed("pack-quantized", _integers(7)),
    "int-quantized": lambda: compressed("int-quantized", _integers(8, strategy="channel", group_size=None)),
    "float-quantized": lambda: compressed(
        "float-quantized", _integers(8, type="float", strategy="channel", group_size=None)
    ),
    "nvfp4-pack-quantized": lambda: compressed(
        "nvfp4-pack-quantized", _integers(4, type="float", strategy="tensor_group", group_size=16)
    ),
    "float-quantized, one scale": lambda: compressed(
        "float-quantized", _integers(8, type="float", strategy="tensor", group_size=None)
    ),
    "mxfp4-pack-quantized": lambda: compressed("mxfp4-pack-quantized", _integers(4, type="float", group_size=32)),
    "NVFP4 of ModelOpt": lambda: fp4("NVFP4"),
    "MXFP4 of ModelOpt": lambda: fp4("MXFP4"),
    "MXFP4 as in gpt-oss": lambda: fp4("gpt-oss"),
    "FP8 E4M3, blocks": lambda: fp8(torch.float8_e4m3fn, (ROWS // 128, COLUMNS // 128)),
    "FP8 E5M2, blocks": lambda: fp8(torch.float8_e5m2, (ROWS // 128, COLUMNS // 128)),
    "FP8 E4M3, one scale": lambda: fp8(torch.float8_e4m3fn, ()),
    "FP8 E4M3, rows": lambda: fp8(torch.float8_e4m3fn, (ROWS, 1)),
    "FP8 E4M3, cast": lambda: cast(torch.float8_e4m3fn),
    "FP8 E5M2, cast": lambda: cast(torch.float8_e5m2),
    "FP8 E4M3FNUZ, cast": lambda: cast(torch.float8_e4m3fnuz),
    "FP8 E5M2FNUZ, cast": lambda: cast(torch.float8_e5m2fnuz),
    "GPTQ, 4 bits": lambda: gptq("gptq", 4),
    "GPTQ, 4 bits, sorted columns": lambda: gptq("gptq", 4, is_sorted=True),
    "GPTQ, 8 bits": lambda: gptq("gptq", 8),
    "GPTQ, 2 bits": lambda: gptq("gptq", 2),
    "GPTQ, 4 bits, second version, sorted columns": lambda: gptq("gptq_v2", 4, is_sorted=True),
    "GPTQ, 4 bits, sorted columns, by AutoGPTQ": lambda: gptq("gptq", 4, is_sorted=True, of="auto_gptq"),
    "GPTQ, 3 bits, second version": lambda: gptq("gptq_v2", 3),
    "GPTQ, 3 bits": lambda: gptq("gptq", 3),
    "GPTQ, 3 bits, by AutoGPTQ": lambda: gptq("gptq", 3, of="auto_gptq"),
    "AutoRound, 4 bits": lambda: gptq("gptq_v2", 4, of="auto_round", settings=AUTO_ROUND),
    "AutoRound, 2 bits": lambda: gptq("gptq_v2", 2, of="auto_round", settings=AUTO_ROUND),
    "AutoRound, 3 bits": lambda: gptq("gptq_v2", 3, of="auto_round", settings=AUTO_ROUND),
    "AutoRound, 4 bits, as AutoGPTQ": lambda: gptq(
        "gptq", 4, of="auto_round", settings={**AUTO_ROUND, "packing_format": "auto_round:auto_gptq"}
    ),
    "AutoRound, 3 bits, as AutoGPTQ": lambda: gptq(
        "gptq", 3, of="auto_round", settings={**AUTO_ROUND, "packing_format": "auto_round:auto_gptq"}
    ),
    "AWQ": awq,
    "AWQ, by rows": awq_by_rows,
    **{f"MLX, {bits} bits": partial(mlx, bits) for bits in (2, 3, 4, 5, 6, 8)},
    "BitNet": bitnet,
    "FP8 of torchao, rows": lambda: torchao("Float8Tensor"),
    "8 bits of torchao, rows": lambda: torchao("Int8Tensor"),
    "4 bits of torchao in bytes, groups with zero points": lambda: torchao("groups"),
    "4 bits of ModelOpt, factors of inputs": pairs_of_rows,
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
        assert source.names == (f"{BASE}.weight",)
        found = torch.from_numpy(source.rows(f"{BASE}.weight", 0, ROWS).copy().view("i2"))
    return int((found != wanted.contiguous().view(torch.int16)).sum())


def main() -> int:
    """Print the number of differing values for each format; 1 if there are any."""
    wrong = 0
    for kind, make in KINDS.items():
        if not all(word in kind for word in sys.argv[1:]):
            continue
        count = differing(make())
        wrong += count
        print(f"{kind}: {count} of {ROWS * COLUMNS} values differ")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
