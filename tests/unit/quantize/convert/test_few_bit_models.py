"""Whole models in low precision become GGUF files: their values, their grids, the memory that it takes."""

import json
import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from quantize.convert.checkpoint import Checkpoint, bf16_to_f32
from quantize.convert.families import model_recipe
from quantize.convert.folder import ConvertRequest, _encoded, convert, prepare
from quantize.convert.tensor_map import OutTensor
from quantize.errors import BadFile, UnsupportedModel
from quantize.ggml_types import GgmlType
from quantize.gptq.exact import ExactRequest, find_exact_types, pack_exactly
from quantize.job.execute import quantize
from quantize.job.request import QuantizeRequest
from quantize.native.source_weights import SourceWeights
from quantize.types import CALIBRATION, HELD_OUT, SizeTarget
from tests.support.models.few_bit_folders import BASE, Stored, bf16, nibbles, small_float, write

SPARK_HF = Path("tests/data/spark-hf")


def bundled(folder: Path) -> tuple[Stored, dict]:
    """The tensors of the bundled model and its configuration; everything else is copied."""
    shutil.copytree(SPARK_HF, folder)
    for shard in folder.glob("*.safetensors*"):
        shard.unlink()
    plain = Checkpoint(SPARK_HF)
    tensors: Stored = {}
    for name in plain.names:
        info = plain.info(name)
        rows = plain.rows(name, 0, info.num_values // info.shape[-1])
        tensors[name] = (info.dtype, rows.reshape(info.shape))
    return tensors, json.loads((folder / "config.json").read_text())


def in_shards(folder: Path, tensors: Stored, config: dict) -> None:
    """Every second tensor in a second file, with an index."""
    where = {name: f"model-{number % 2 + 1:05}-of-00002.safetensors" for number, name in enumerate(tensors)}
    for shard in sorted(set(where.values())):
        write(folder, {name: tensors[name] for name in tensors if where[name] == shard}, config)
        (folder / "model.safetensors").rename(folder / shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))


def int4_folder(folder: Path) -> Path:
    """The bundled model, its layers in compressed-tensors' 4 bits."""
    tensors, config = bundled(folder)
    for name, (_, values) in list(tensors.items()):
        if ".layers." not in name or values.ndim != 2:
            continue
        del tensors[name]
        blocks = values.astype(np.float32).reshape(len(values), -1, 32)
        scales = bf16(np.abs(blocks).max(axis=2) / 7)
        codes = np.clip(np.rint(blocks / bf16_to_f32(scales)[:, :, None]), -8, 7).reshape(values.shape) + 8
        base = name.removesuffix(".weight")
        tensors |= {f"{base}.weight_packed": ("I32", nibbles(codes)), f"{base}.weight_scale": ("BF16", scales)}
    weights = {"num_bits": 4, "group_size": 32}
    config["quantization_config"] = {"config_groups": {"group_0": {"weights": weights}}}
    return write(folder, tensors, config)


def test_a_tensor_without_a_rule_is_shown_with_its_quantization(tmp_path):
    tensors, config = bundled(tmp_path / "model")
    name = "model.layers.0.mlp.up_proj"
    del tensors[f"{name}.weight"]
    tensors[f"{name}.W_q"] = ("U8", np.zeros((8, 8), np.uint8))
    config["quantization_config"] = {"quant_method": "hqq"}
    source = Checkpoint(write(tmp_path / "model", tensors, config))
    with pytest.raises(UnsupportedModel, match=r"no rule for the tensor .*W_q' \(config.json .* with hqq\)"):
        model_recipe(source)


@pytest.mark.native
def test_a_folder_of_int4_becomes_a_file_whose_grid_is_kept(tmp_path):
    folder, out = int4_folder(tmp_path / "model"), tmp_path / "out.gguf"
    done = convert(ConvertRequest(folder=folder, out=out), lambda *_: None)
    assert done.float_type == "BF16"
    assert "4-bit integers: what that lost cannot be restored" in done.notes[0]
    exact = find_exact_types(ExactRequest(source=out), lambda *_: None).types
    layers = [n for n in SourceWeights(out).names if n.startswith("blk.") and "norm" not in n]
    assert layers
    assert {n for n in exact if n.startswith("blk.")} == set(layers)
    assert all(types[0] == "Q4_0" for types in exact.values())
    found = find_exact_types(ExactRequest(source=folder), lambda *_: None).types
    assert {n: types[0] for n, types in found.items()} == dict.fromkeys(exact, "Q4_0")


@pytest.mark.native
@pytest.mark.process
def test_a_plan_of_a_folder_knows_its_grid_before_the_conversion(tmp_path):
    request = QuantizeRequest(
        source=int4_folder(tmp_path / "model"),
        out=tmp_path / "out.gguf",
        goal=SizeTarget(kind="bpw", bpw=8.0),
        calibration=CALIBRATION,
        held_out=HELD_OUT,
        cache_dir=tmp_path / "cache",
        tier="instant",
        plan_only=True,
    )
    report = quantize(request, lambda _: None, lambda: False)
    layers = [t for t in report.plan.tensors if t.name.startswith("blk.") and "norm" not in t.name]
    assert layers
    assert {(t.qtype, t.exact) for t in layers} == {("Q4_0", "Q4_0")}
    assert "weights are stored as 4-bit integers" in " ".join(report.warnings)
    assert report.formats == {"4-bit integers": len(layers)}


@pytest.mark.native
def test_a_folder_on_a_grid_is_found_by_the_rows_of_each_layer(tmp_path):
    """Floats trained for 4 bits: the heads of q and k are permuted, and one layer is on no grid."""
    tensors, config = bundled(tmp_path / "model")
    for name, (_, values) in list(tensors.items()):
        if ".layers." in name and values.ndim == 2 and ".layers.1." not in name:
            blocks = values.astype(np.float32).reshape(-1, 32)
            steps = bf16_to_f32(bf16(np.abs(blocks).max(axis=1, keepdims=True) / 7))
            trained = (np.clip(np.rint(blocks / steps), -7, 7) * steps).reshape(values.shape)
            tensors[name] = ("BF16", bf16(trained))
    write(tmp_path / "model", tensors, config)
    found = find_exact_types(ExactRequest(source=tmp_path / "model"), lambda *_: None).types
    planned = prepare(ConvertRequest(folder=tmp_path / "model", out=tmp_path / "out.gguf"), lambda *_: None)
    layers = [t.name for t in planned.spec.tensors if t.name.startswith("blk.") and "norm" not in t.name]
    assert sorted(found) == sorted(n for n in layers if not n.startswith("blk.1."))
    assert {types[0] for types in found.values()} == {"Q4_0"}


@pytest.mark.native
def test_a_gptq_folder_with_added_biases_becomes_a_file(tmp_path):
    """As AutoGPTQ stored Qwen2: every weight has a bias of zeros, for which llama.cpp's Qwen2 has no tensor."""
    tensors, config = bundled(tmp_path / "model")
    values: dict[str, np.ndarray] = {}
    for name, (_, stored) in list(tensors.items()):
        if ".layers." not in name or stored.ndim != 2:
            continue
        del tensors[name]
        rows, base = len(stored), name.removesuffix(".weight")
        blocks = stored.astype(np.float32).reshape(rows, -1, 32)
        scales = (np.abs(blocks).max(axis=2) / 7).astype(np.float16)
        codes = np.clip(np.rint(blocks / scales.astype(np.float32)[:, :, None]), -8, 7)
        values[name] = (codes * scales.astype(np.float32)[:, :, None]).astype(np.float16).reshape(stored.shape)
        tensors |= {
            f"{base}.qweight": ("I32", np.ascontiguousarray(nibbles(codes.reshape(stored.shape) + 8).T)),
            f"{base}.qzeros": ("I32", nibbles(np.full(scales.T.shape, 7))),
            f"{base}.scales": ("F16", np.ascontiguousarray(scales.T)),
            f"{base}.g_idx": ("I32", (np.arange(stored.shape[1]) // 32).astype(np.int32)),
            f"{base}.bias": ("F16", np.zeros(rows, np.float16)),
        }
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True}
    config |= {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
    out = tmp_path / "out.gguf"
    convert(ConvertRequest(folder=write(tmp_path / "model", tensors, config), out=out), lambda *_: None)
    made = SourceWeights(out)
    assert [name for name in made.names if name.endswith("bias")] == []
    expected = values["model.layers.1.mlp.up_proj.weight"].astype(np.float32)
    assert np.array_equal(made.rows("blk.1.ffn_up.weight"), expected)


@pytest.mark.native
@pytest.mark.parametrize("sharded", [False, True])
def test_a_folder_cast_to_fp8_becomes_a_file_of_its_values(sharded, tmp_path):
    """Norms included, with the head tied to the embedding, as many uploads are."""
    tensors, config = bundled(tmp_path / "model")
    assert "lm_head.weight" not in tensors
    values = np.array([small_float(c, 4, 7) for c in range(127)], np.float32)
    for name, (_, stored) in tensors.items():
        sizes = np.abs(stored.astype(np.float32))
        nearest = np.searchsorted((values[1:] + values[:-1]) / 2, sizes).astype(np.uint8)
        tensors[name] = ("F8_E4M3", nearest | (np.signbit(stored).astype(np.uint8) << np.uint8(7)))
    (in_shards if sharded else write)(tmp_path / "model", tensors, config)
    out = tmp_path / "out.gguf"
    done = convert(ConvertRequest(folder=tmp_path / "model", out=out), lambda *_: None)
    assert f"{len(tensors)} weights are stored as FP8" in done.notes[0]
    made = SourceWeights(out)
    for theirs, ours in (
        ("model.embed_tokens.weight", "token_embd.weight"),
        ("model.norm.weight", "output_norm.weight"),
        ("model.layers.1.mlp.up_proj.weight", "blk.1.ffn_up.weight"),
    ):
        codes = tensors[theirs][1]
        expected = values[codes & 127] * np.where(codes & 128, -1, 1)
        assert np.array_equal(made.rows(ours), expected.reshape(-1, codes.shape[-1])), theirs


@pytest.mark.native
@pytest.mark.parametrize("requested", ["auto", "BF16"])
def test_each_tensor_keeps_its_16_bit_type(requested, tmp_path):
    """Integers with F16 scales in a folder of BF16: BF16 would round them, and a step in F16 would be lost."""
    tensors, config = bundled(tmp_path / "model")
    steps = {}
    for name, (_, stored) in list(tensors.items()):
        tensors[name] = ("BF16", bf16(stored))
        if name.endswith("mlp.up_proj.weight"):
            blocks = stored.astype(np.float32).reshape(len(stored), -1, 32)
            scales = (np.abs(blocks).max(axis=2) / 7).astype(np.float16)
            steps[name] = scales.astype(np.float32)
            codes = np.clip(np.rint(blocks / steps[name][:, :, None]), -8, 7).reshape(stored.shape) + 8
            base = tensors.pop(name) and name.removesuffix(".weight")
            tensors |= {f"{base}.weight_packed": ("I32", nibbles(codes)), f"{base}.weight_scale": ("F16", scales)}
    weights = {"num_bits": 4, "group_size": 32}
    config["quantization_config"] = {"config_groups": {"group_0": {"weights": weights}}}
    config["torch_dtype"] = config["dtype"] = "bfloat16"
    write(tmp_path / "model", tensors, config)
    out = tmp_path / "out.gguf"
    request = ConvertRequest(folder=tmp_path / "model", out=out, float_type=requested)
    assert convert(request, lambda *_: None).float_type == "BF16"
    planned = prepare(request, lambda *_: None)
    made, plain = SourceWeights(out), Checkpoint(tmp_path / "model")
    assert planned.file_bytes == out.stat().st_size
    assert {t.name: t.qtype for t in planned.spec.tensors} == {n: made.source_qtype(n) for n in made.names}
    assert steps
    for name, step in steps.items():
        ours = f"blk.{name.split('.')[2]}.ffn_up.weight"
        expected = plain.rows(name, 0, len(step))
        assert expected.dtype == np.float16
        stored = made.source_qtype(ours)
        assert stored == ("F16" if requested == "auto" else "BF16")
        assert np.array_equal(made.rows(ours), expected.astype(np.float32)) == (requested == "auto")
        packed = pack_exactly(made.rows(ours), "Q4_0", GgmlType[stored]).reshape(len(step), -1, 18)
        found = np.abs(packed[:, :, :2].copy().view(np.float16)[:, :, 0].astype(np.float32))
        assert ((found == step).mean() > 0.8) == (requested == "auto")
    assert made.source_qtype("token_embd.weight") == "BF16"


def wide(kind: str) -> tuple[Stored, dict]:
    """16 million values in one matrix: as they are, or in 4 bits."""
    if kind == "BF16":
        return {f"{BASE}.weight": ("BF16", np.zeros((4096, 4096), np.uint16))}, {}
    tensors: Stored = {
        f"{BASE}.qweight": ("I32", np.zeros((512, 4096), np.int32)),
        f"{BASE}.qzeros": ("I32", np.zeros((32, 512), np.int32)),
        f"{BASE}.scales": ("F16", np.ones((32, 4096), np.float16)),
    }
    return tensors, {"quant_method": "gptq", "bits": 4, "group_size": 128}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["BF16", "GPTQ"])
def test_memory_of_a_conversion_does_not_grow_with_the_tensors(kind, tmp_path):
    tensors, settings = wide(kind)
    source = Checkpoint(write(tmp_path / "model", tensors, {"quantization_config": settings}))
    name, num_bytes = f"{BASE}.weight", 0
    tensor = OutTensor("blk.0.attn_q.weight", (4096, 4096), lambda: source.chunks(name, 4096))
    tracemalloc.start()
    try:
        for chunk in _encoded(source, tensor, GgmlType.BF16):
            num_bytes += len(chunk.tobytes())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert num_bytes == 2 * 4096 * 4096
    assert peak < 96 << 20


def test_wide_floats_are_named_as_such(tmp_path):
    source = Checkpoint(write(tmp_path / "model", {f"{BASE}.weight": ("F64", np.ones((4, 4)))}, {}))
    with pytest.raises(UnsupportedModel, match="is stored as F64"):
        source.rows(f"{BASE}.weight", 0, 4)


def test_a_folder_of_a_gguf_model_is_pointed_to_its_file(tmp_path):
    (tmp_path / "model-00001-of-00002.gguf").write_bytes(b"GGUF")
    with pytest.raises(BadFile, match=r"config.json is missing; .*model-00001-of-00002.gguf"):
        Checkpoint(tmp_path)
