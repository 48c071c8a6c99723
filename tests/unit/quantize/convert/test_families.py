"""The conversion of each family's configuration, and refusals of what the runtime would compute differently."""

import json
from pathlib import Path

import numpy as np
import pytest

from quantize.convert.checkpoint import Checkpoint
from quantize.convert.families import SUPPORTED, model_recipe
from quantize.convert.row_numbers import CheckpointRows
from quantize.errors import UnsupportedModel
from quantize.files.safetensors_file import read_safetensors

HIDDEN, FFN, HEADS, KV, HEAD, LAYERS, VOCAB = 64, 96, 4, 2, 16, 2, 40


def checkpoint(folder: Path, architecture: str, extra: dict, more=None, skip=()) -> Checkpoint:
    config = {
        "architectures": [architecture],
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV,
        "head_dim": HEAD,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "vocab_size": VOCAB,
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config | extra))
    shapes = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    shapes["lm_head.weight"] = (VOCAB, HIDDEN)
    for i in range(LAYERS):
        p = f"model.layers.{i}."
        shapes |= {
            p + "input_layernorm.weight": (HIDDEN,),
            p + "post_attention_layernorm.weight": (HIDDEN,),
            p + "self_attn.q_proj.weight": (HEADS * HEAD, HIDDEN),
            p + "self_attn.k_proj.weight": (KV * HEAD, HIDDEN),
            p + "self_attn.v_proj.weight": (KV * HEAD, HIDDEN),
            p + "self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD),
            p + "mlp.gate_proj.weight": (FFN, HIDDEN),
            p + "mlp.up_proj.weight": (FFN, HIDDEN),
            p + "mlp.down_proj.weight": (HIDDEN, FFN),
        }
        shapes |= {p + name: shape for name, shape in (more or {}).items()}
    shapes = {n: s for n, s in shapes.items() if not any(part in n for part in skip)}
    rng = np.random.default_rng(0)
    head, data, at = {}, b"", 0
    for name, shape in shapes.items():
        blob = rng.standard_normal(shape).astype(np.float32).tobytes()
        head[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + len(blob)]}
        data, at = data + blob, at + len(blob)
    text = json.dumps(head).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    return Checkpoint(folder)


def values(recipe, name):
    tensor = next(t for t in recipe.tensors if t.name == name)
    return np.concatenate([p.reshape(-1, p.shape[-1]) for p in tensor.chunks()])


def test_llama_interleaves_the_halves_of_each_head(tmp_path):
    source = checkpoint(tmp_path, "LlamaForCausalLM", {})
    recipe = model_recipe(source)
    stored = source.rows("model.layers.0.self_attn.q_proj.weight", 0, HEADS * HEAD)
    got = values(recipe, "blk.0.attn_q.weight")
    for head in range(HEADS):
        for i in range(HEAD // 2):
            base = head * HEAD
            assert np.array_equal(got[base + 2 * i], stored[base + i])
            assert np.array_equal(got[base + 2 * i + 1], stored[base + HEAD // 2 + i])
    v = source.rows("model.layers.0.self_attn.v_proj.weight", 0, KV * HEAD)
    assert np.array_equal(values(recipe, "blk.0.attn_v.weight"), v)


def test_rows_are_found_by_headers_alone(tmp_path):
    experts = {f"mlp.experts.{e}.{p}_proj.weight": s for e in range(12) for p, s in EXPERT.items()}
    routed = {"num_experts": 12, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
    dense = ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
    for name, extra, more, skip in (
        ("LlamaForCausalLM", {}, {}, []),
        ("Qwen3MoeForCausalLM", routed, experts | {"mlp.gate.weight": (12, HIDDEN)}, dense),
    ):
        folder = tmp_path / name
        folder.mkdir()
        recipe = model_recipe(checkpoint(folder, name, extra, more, skip))
        weights = folder / "model.safetensors"
        raw = weights.read_bytes()
        found = CheckpointRows(folder, [read_safetensors(weights)])
        weights.unlink()  # only the headers count
        assert found.shapes() == {tensor.name: tensor.shape for tensor in recipe.tensors}
        for tensor in recipe.tensors:
            if len(tensor.shape) > 1:
                count = int(np.prod(tensor.shape[1:]))
                picked = [row for row in (0, 3, 7, 8, 20, 2000) if row < count]
                qtype, rows = found.find(tensor.name, picked)
                assert (qtype, {row.part for row in rows}) == ("F32", {0})
                got = [np.frombuffer(raw[row.offset :][: row.nbytes], np.float32) for row in rows]
                weights.write_bytes(raw)
                assert np.array_equal(got, values(recipe, tensor.name)[picked]), tensor.name
                weights.unlink()


def test_smollm3_is_llama_under_its_own_name(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    extra = {"no_rope_layers": [1, 1], "use_sliding_window": False}
    recipe = model_recipe(checkpoint(tmp_path / "a", "SmolLM3ForCausalLM", extra))
    llama = model_recipe(checkpoint(tmp_path / "b", "LlamaForCausalLM", {}))
    assert "smollm3.block_count" in recipe.metadata
    assert {t.name: t.shape for t in recipe.tensors} == {t.name: t.shape for t in llama.tensors}
    for name in ("blk.1.attn_q.weight", "blk.1.attn_k.weight", "blk.1.attn_v.weight"):
        assert np.array_equal(values(recipe, name), values(llama, name))


@pytest.mark.parametrize("extra", [{"no_rope_layers": [0, 1]}, {"use_sliding_window": True}])
def test_smollm3_that_the_runtime_would_compute_otherwise_is_refused(tmp_path, extra):
    with pytest.raises(UnsupportedModel, match=r"for granted|leaves out"):
        model_recipe(checkpoint(tmp_path, "SmolLM3ForCausalLM", extra))


def test_llama3_gets_its_frequency_factors(tmp_path):
    scaling = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64}
    recipe = model_recipe(
        checkpoint(tmp_path, "LlamaForCausalLM", {"rope_scaling": scaling, "rope_theta": 10000.0})
    )
    factors = values(recipe, "rope_freqs.weight").ravel()
    assert factors[0] == 1
    assert factors[-1] == 8
    assert (np.diff(factors) >= 0).all()


def test_experts_are_stacked_in_order(tmp_path):
    experts = {f"mlp.experts.{e}.{p}_proj.weight": s for e in range(12) for p, s in EXPERT.items()}
    more = experts | {
        "mlp.gate.weight": (12, HIDDEN),
        "self_attn.q_norm.weight": (HEAD,),
        "self_attn.k_norm.weight": (HEAD,),
    }
    extra = {"num_experts": 12, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
    source = checkpoint(
        tmp_path, "Qwen3MoeForCausalLM", extra, more, ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
    )
    recipe = model_recipe(source)
    tensor = next(t for t in recipe.tensors if t.name == "blk.1.ffn_down_exps.weight")
    assert tensor.shape == (32, HIDDEN, 12)
    got = values(recipe, tensor.name).reshape(12, HIDDEN, 32)
    for e in (0, 2, 10, 11):  # 10 must not come after 1
        want = source.rows(f"model.layers.1.mlp.experts.{e}.down_proj.weight", 0, HIDDEN)
        assert np.array_equal(got[e], want)
    assert next(t for t in recipe.tensors if t.name == "blk.0.ffn_gate_inp.weight").keep_f32


EXPERT = {"gate": (32, HIDDEN), "up": (32, HIDDEN), "down": (HIDDEN, 32)}


@pytest.mark.parametrize(
    "extra",
    [
        {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 32},
        {
            "num_experts": 2,
            "num_experts_per_tok": 1,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
            "mlp_only_layers": [0],
        },
    ],
)
def test_routing_the_runtime_does_not_do_is_refused(tmp_path, extra):
    with pytest.raises(UnsupportedModel):
        model_recipe(checkpoint(tmp_path, "Qwen3MoeForCausalLM", extra))


GEMMA = {"pre_feedforward_layernorm.weight": (HIDDEN,), "post_feedforward_layernorm.weight": (HIDDEN,)}


def test_gemma_norms_are_stored_less_one(tmp_path):
    source = checkpoint(tmp_path, "Gemma2ForCausalLM", {"query_pre_attn_scalar": HEAD}, GEMMA)
    recipe = model_recipe(source)
    stored = source.rows("model.layers.0.pre_feedforward_layernorm.weight", 0, 1)
    assert np.array_equal(values(recipe, "blk.0.ffn_norm.weight"), stored + np.float32(1))
    assert "output.weight" not in {t.name for t in recipe.tensors}


def test_gemma_with_another_attention_scale_is_refused(tmp_path):
    with pytest.raises(UnsupportedModel, match="query_pre_attn_scalar is 256"):
        model_recipe(checkpoint(tmp_path, "Gemma2ForCausalLM", {}, GEMMA))


def test_what_the_runtime_ignores_is_told(tmp_path):
    recipe = model_recipe(checkpoint(tmp_path, "MistralForCausalLM", {"sliding_window": 128}))
    assert any("sliding window of 128" in note for note in recipe.notes)


def test_an_unknown_kind_of_rope_scaling_is_refused(tmp_path):
    with pytest.raises(UnsupportedModel, match="spiral"):
        model_recipe(
            checkpoint(tmp_path, "LlamaForCausalLM", {"rope_scaling": {"rope_type": "spiral", "factor": 2}})
        )


def test_the_supported_list_has_every_family():
    families = ("Llama", "Mistral", "Mixtral", "Qwen2", "Qwen3", "Qwen3Moe", "Gemma2", "Gemma3", "Phi3")
    assert {f"{name}ForCausalLM" for name in families} <= set(SUPPORTED)
