"""Converts the bundled model's Hugging Face folder, and folders with every kind of damage we know."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from engine.core.errors import reason_for
from quantize.convert.checkpoint import bf16_to_f32, f32_to_bf16
from quantize.convert.folder import ConvertRequest, convert, prepare
from quantize.errors import BadFile, BadWeights, DiskFull, IncompleteFile, MissingParts, UnsupportedModel
from quantize.files.gguf_file import read_gguf
from quantize.native.source_weights import SourceWeights
from quantize.plan.speed import model_spec
from tests.support.models.small_folder import with_experts

SPARK_HF = Path("tests/data/spark-hf")
SPARK = Path("assets/models/spark-f16.gguf")


def run(folder: Path, out: Path, **options):
    return convert(ConvertRequest(folder=folder, out=out, **options), lambda _done, _total, _name: None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SPARK_HF, tmp_path / "model"))


def rewrite(folder: Path, change) -> None:
    """Load the safetensors file as {name: array}, change it, write it back."""
    path = folder / "model.safetensors"
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    head, data = json.loads(raw[8 : 8 + size]), raw[8 + size :]
    kinds = {"F16": np.float16, "F32": np.float32, "BF16": np.uint16}
    tensors = {}
    for name, row in head.items():
        if name != "__metadata__":
            begin, end = row["data_offsets"]
            tensors[name] = np.frombuffer(data[begin:end], kinds[row["dtype"]]).reshape(row["shape"]).copy()
    change(tensors)
    write(path, tensors)


def write(path: Path, tensors: dict[str, np.ndarray]) -> None:
    names = {np.dtype(np.float16): "F16", np.dtype(np.float32): "F32", np.dtype(np.uint16): "BF16"}
    head, blobs, at = {}, [], 0
    for name, values in tensors.items():
        blob = values.tobytes()
        head[name] = {
            "dtype": names[values.dtype],
            "shape": list(values.shape),
            "data_offsets": [at, at + len(blob)],
        }
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(head).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blobs))


@pytest.mark.native
def test_the_bundled_model_comes_out_as_its_own_gguf(tmp_path):
    out = tmp_path / "spark.gguf"
    done = run(SPARK_HF, out)
    assert done.pretokenizer == "gpt-2"  # found although its hash is in no list
    prepared = prepare(ConvertRequest(folder=SPARK_HF, out=out), lambda *_: None)
    assert done.file_bytes == out.stat().st_size == prepared.file_bytes
    assert prepared.spec == model_spec(read_gguf(out))
    ours, theirs = read_gguf(out), read_gguf(SPARK)
    tensors = {t.name: t for t in ours.tensors}
    assert set(tensors) == {t.name for t in theirs.tensors}
    for want in theirs.tensors:
        got = tensors[want.name]
        assert (got.shape, got.ggml_type) == (want.shape, want.ggml_type)
        a, b = ours.tensor_bytes(got), theirs.tensor_bytes(want)
        if want.ggml_type.name == "F32":  # norms: the folder stores them in half precision
            np.testing.assert_allclose(a.view(np.float32), b.view(np.float32), rtol=1e-3)
        else:
            assert np.array_equal(a, b), want.name
    for key in (
        "llama.block_count",
        "llama.rope.freq_base",
        "tokenizer.ggml.eos_token_id",
        "tokenizer.chat_template",
    ):
        assert ours.metadata[key] == theirs.metadata[key]
    tokens = "tokenizer.ggml.tokens"
    assert ours.metadata[tokens].strings() == theirs.metadata[tokens].strings()


@pytest.mark.native
def test_bf16_is_rounded_to_nearest(tmp_path, folder):
    def to_f32(tensors):
        for name in tensors:
            tensors[name] = tensors[name].astype(np.float32)

    rewrite(folder, to_f32)
    done = run(folder, tmp_path / "out.gguf", float_type="BF16")
    assert done.float_type == "BF16"
    ours, exact = read_gguf(tmp_path / "out.gguf"), read_gguf(SPARK)
    a = next(t for t in ours.tensors if t.name == "blk.0.ffn_up.weight")
    b = next(t for t in exact.tensors if t.name == "blk.0.ffn_up.weight")
    got = (ours.tensor_bytes(a).view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    want = exact.tensor_bytes(b).view(np.float16).astype(np.float32)
    assert np.abs(got - want).max() <= np.abs(want).max() * 2**-8


@pytest.mark.native
def test_values_beyond_f16_make_the_file_bf16(tmp_path, folder):
    def huge(tensors):
        tensors["model.layers.2.mlp.up_proj.weight"] = np.full((768, 256), 1e6, np.float32)

    rewrite(folder, huge)
    done = run(folder, tmp_path / "out.gguf")
    assert done.float_type == "BF16"
    assert "blk.2.ffn_up.weight" in done.notes[0]
    with pytest.raises(BadWeights, match=r"blk\.2\.ffn_up\.weight"):
        run(folder, tmp_path / "f16.gguf", float_type="F16")


@pytest.mark.native
def test_bf16_tensors_in_a_folder_of_f16_keep_values_that_f16_cannot_hold(tmp_path, folder):
    expected = {}

    def scaled(tensors):
        for name, factor in (("down_proj", 1e-6), ("up_proj", 1e6)):
            values = f32_to_bf16(tensors[f"model.layers.2.mlp.{name}.weight"].astype(np.float32) * factor)
            tensors[f"model.layers.2.mlp.{name}.weight"] = values
            expected[f"blk.2.ffn_{name.removesuffix('_proj')}.weight"] = bf16_to_f32(values)

    rewrite(folder, scaled)
    done = run(folder, tmp_path / "out.gguf")
    assert (done.float_type, done.notes) == ("F16", ())
    made = SourceWeights(tmp_path / "out.gguf")
    for name, values in expected.items():
        assert np.array_equal(made.rows(name), values), name
    assert made.source_qtype("blk.1.ffn_up.weight") == "F16"


@pytest.mark.native
def test_a_stack_of_experts_in_two_16_bit_types_is_written_in_f32(tmp_path):
    folder, expected = with_experts(tmp_path / "model"), []

    def second(tensors):
        for name in [n for n in tensors if n.startswith("model.layers.0.") and n.endswith("up_proj.weight")]:
            values = tensors[name].astype(np.float32)
            if ".experts.1." in name:
                tensors[name] = f32_to_bf16(values)
                values = bf16_to_f32(tensors[name])
            expected.append(values)

    rewrite(folder, second)
    run(folder, tmp_path / "out.gguf")
    made = SourceWeights(tmp_path / "out.gguf")
    assert made.source_qtype("blk.0.ffn_up_exps.weight") == "F32"
    assert made.source_qtype("blk.0.ffn_gate_exps.weight") == "F16"
    for expert, values in enumerate(expected):
        assert np.array_equal(made.rows("blk.0.ffn_up_exps.weight", expert), values)


@pytest.mark.native
def test_shards_are_read_as_one(tmp_path, folder):
    parts: list[dict] = [{}, {}]

    def split(tensors):
        for i, (name, values) in enumerate(tensors.items()):
            parts[i % 2][name] = values

    rewrite(folder, split)
    (folder / "model.safetensors").unlink()
    where = {}
    for i, part in enumerate(parts):
        file = f"model-0000{i + 1}-of-00002.safetensors"
        write(folder / file, part)
        where |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    run(folder, tmp_path / "sharded.gguf")
    run(SPARK_HF, tmp_path / "whole.gguf")
    a, b = read_gguf(tmp_path / "sharded.gguf"), read_gguf(tmp_path / "whole.gguf")
    assert [t.name for t in a.tensors] == [t.name for t in b.tensors]
    assert all(
        np.array_equal(a.tensor_bytes(x), b.tensor_bytes(y)) for x, y in zip(a.tensors, b.tensors, strict=True)
    )
    (folder / "model-00002-of-00002.safetensors").unlink()
    for _ in range(2):  # with the index, and without it by the number in the name
        with pytest.raises(MissingParts, match="parts missing: 1, the first is model-00002-of-00002") as caught:
            run(folder, tmp_path / "half.gguf")
        assert reason_for(caught.value).kind == "parts_missing"
        (folder / "model.safetensors.index.json").unlink(missing_ok=True)


def set_nan(tensors):
    tensors["model.layers.3.self_attn.v_proj.weight"][5, 7] = np.nan


def set_infinite(tensors):
    tensors["model.layers.3.self_attn.v_proj.weight"][5, 7] = np.inf


def drop_layer(tensors):
    del tensors["model.layers.4.mlp.down_proj.weight"]


def drop_gate(tensors):
    del tensors["model.layers.4.mlp.gate_proj.weight"]


def other_width(tensors):
    tensors["model.layers.4.mlp.down_proj.weight"] = np.zeros((256, 700), np.float16)


def no_values(tensors):
    for layer in range(8):
        tensors[f"model.layers.{layer}.self_attn.k_proj.weight"] = np.zeros((0, 256), np.float16)


def scalar(tensors):
    tensors["model.norm.weight"] = np.zeros((), np.float16)


def extra_layer(tensors):
    tensors["model.layers.9.mlp.down_proj.weight"] = tensors["model.layers.4.mlp.down_proj.weight"]


def unknown_tensor(tensors):
    tensors["model.layers.0.self_attn.sink"] = np.zeros(4, np.float16)


def odd_heads(tensors):
    tensors["model.layers.0.self_attn.q_proj.weight"] = np.zeros((257, 256), np.float16)


def narrow(tensors):
    tensors["model.layers.1.mlp.up_proj.weight"] = np.zeros((768, 255), np.float16)


@pytest.fixture
def errors_of_llama():
    """llama.cpp's errors are kept by `quantize`, as in its worker, and not by a runner's code of this process."""
    from engine.runner.llama.native import log
    from quantize.native import libraries

    api = libraries.llama()
    api.llama_log_set(libraries._LOG, None)
    yield
    if log._listening:
        api.llama_log_set(log._listening[0], None)


@pytest.mark.usefixtures("errors_of_llama")
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"intermediate_size": 512}, r"blk\.0\.ffn_gate\.weight"),
        ({"num_attention_heads": 8}, r"blk\.0\.attn_q\.weight"),
        ({"num_key_value_heads": 4}, r"blk\.0\.attn_k\.weight"),
    ],
)
@pytest.mark.native
def test_sizes_that_are_not_those_of_the_weights_are_found_before_anything_is_written(
    tmp_path, folder, changes, words
):
    edit_config(folder, **changes)
    with pytest.raises(BadFile, match=f"llama.cpp refuses config.json with these weights.*{words}"):
        run(folder, tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf").exists()


@pytest.mark.native
def test_a_full_disk_is_found_before_anything_is_written(tmp_path, folder, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=17_000_000))
    with pytest.raises(DiskFull) as caught:
        run(folder, tmp_path / "out.gguf")
    assert caught.value.needed_bytes > 16_000_000
    assert not (tmp_path / "out.gguf").exists()


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (set_nan, BadWeights, r"blk\.3\.attn_v\.weight: holds NaN"),
        (set_infinite, BadWeights, r"blk\.3\.attn_v\.weight: holds infinity"),
        (drop_layer, BadFile, "layer 4 lacks ffn_down"),
        (drop_gate, BadFile, r"layer 4 lacks ffn_gate\.weight, which other layers have"),
        (other_width, BadWeights, r"blk\.4\.ffn_down\.weight: shape \(700, 256\), other layers \(768, 256\)"),
        (no_values, BadWeights, "attn_k.weight: shape .*which contains no values"),
        (scalar, BadWeights, "output_norm.weight: shape .*which contains no values"),
        (extra_layer, BadFile, "beyond the 8 layers"),
        (unknown_tensor, UnsupportedModel, "self_attn.sink"),
        (odd_heads, BadWeights, "257 rows"),
        (narrow, BadWeights, "rows of 255, expected 256"),
    ],
)
@pytest.mark.native
def test_damaged_weights_are_named(tmp_path, folder, change, error, words):
    rewrite(folder, change)
    with pytest.raises(error, match=words):
        run(folder, tmp_path / "out.gguf")


def test_a_head_that_is_not_the_embedding_must_be_there(tmp_path, folder):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tie_word_embeddings": False}))
    with pytest.raises(BadFile, match=r"no tensor gives output\.weight"):
        run(folder, tmp_path / "out.gguf")


def test_cut_weights(tmp_path, folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(IncompleteFile):
        run(folder, tmp_path / "out.gguf")


def edit_config(folder: Path, **changes) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


def test_unknown_architectures_come_with_the_list_of_known_ones(tmp_path, folder):
    edit_config(folder, architectures=["RetNetForCausalLM"])
    with pytest.raises(UnsupportedModel, match=r"RetNetForCausalLM.*Qwen3ForCausalLM") as caught:
        run(folder, tmp_path / "out.gguf")
    assert "Gemma3ForCausalLM" in caught.value.supported


@pytest.mark.native
def test_floats_of_a_folder_that_states_a_quantization_are_taken_as_they_are(tmp_path, folder):
    plain = run(folder, tmp_path / "plain.gguf")
    edit_config(folder, quantization_config={"quant_method": "gptq"})
    assert run(folder, tmp_path / "out.gguf") == plain
    assert (tmp_path / "out.gguf").read_bytes() == (tmp_path / "plain.gguf").read_bytes()


@pytest.mark.parametrize("key", ["hidden_size", "num_attention_heads", "num_hidden_layers", "intermediate_size"])
def test_a_configuration_that_lacks_a_size(tmp_path, folder, key):
    edit_config(folder, **{key: None})
    with pytest.raises(BadFile):
        run(folder, tmp_path / "out.gguf")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_missing_and_broken_json(tmp_path, folder, name):
    (folder / name).write_text("{" * 100_000)
    with pytest.raises(BadFile, match=name):
        run(folder, tmp_path / "out.gguf")
    (folder / name).unlink()
    with pytest.raises(BadFile, match=name):
        run(folder, tmp_path / "out2.gguf")


@pytest.mark.native
def test_a_tokenizer_that_llama_cpp_cannot_follow_is_refused(tmp_path, folder):
    path = folder / "tokenizer.json"
    data = json.loads(path.read_text())
    data["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        ],
    }
    path.write_text(json.dumps(data))
    with pytest.raises(UnsupportedModel, match="token ids"):
        run(folder, tmp_path / "out.gguf")


def test_a_word_piece_tokenizer_is_refused(tmp_path, folder):
    path = folder / "tokenizer.json"
    data = json.loads(path.read_text())
    data["model"] = {"type": "WordPiece", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"}
    path.write_text(json.dumps(data))
    with pytest.raises(UnsupportedModel, match="WordPiece"):
        run(folder, tmp_path / "out.gguf")
