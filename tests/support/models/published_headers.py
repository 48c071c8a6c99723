"""GGUF headers of published models, without data: names and dimensions as llama.cpp's model code expects them.

Facts and their sources are in tests/data/shapes/published.json. The files are sparse: they take no disk, and
llama.cpp's dry run reads them like the real ones.
"""

import json
from pathlib import Path

import numpy as np

from engine.placement.shape import ModelShape, model_shape
from quantize.files.gguf_file import ValueType
from quantize.files.gguf_split import read_gguf_model
from quantize.files.gguf_write import GgufWriter, MetaValue, TensorSlot, array, file_bytes, header, scalar
from quantize.ggml_types import GgmlType as Type
from tests.support.models.architectures import values_of

FACTS = json.loads((Path(__file__).resolve().parents[2] / "data/shapes/published.json").read_text(encoding="utf-8"))


def shape(path: Path, name: str) -> ModelShape:
    """The program's reading of the file that is written to `path`."""
    return model_shape(read_gguf_model(write(path, name)))


def write(path: Path, name: str) -> Path:
    """Write the header of a model; the data after it are a hole."""
    fact = FACTS[name]
    made = Tensors(fact)
    meta = metadata(fact)
    head = header(meta, made.slots)
    with path.open("xb") as file:
        file.write(head)
        file.truncate(file_bytes(len(head), made.slots))
    return path


# Dimensions for files with random weights that can be computed quickly; what is not named stays as published.
_SMALL_DIMENSIONS = {
    "hidden": 256, "heads": 4, "head": 64, "head_swa": 32, "ffn": 256, "expert_ffn": 64, "shared_ffn": 64,
    "experts": 8, "used": 2, "vocabulary": 512, "window": 32, "context": 1024, "per_layer": 32, "laurel": 16,
    "linear_keys": 2, "linear_values": 4, "linear_head": 32, "stream_rank": 32, "query_rank": 64, "output_rank": 64,
    "output_groups": 2, "index_head": 64, "index_heads": 2, "index_top": 16, "table_rows": 160, "table_width": 16,
    "hash_layers": 2,
}  # fmt: skip
# Layers of such a file: two groups of those with full attention and without.
_SMALL_LAYERS = {"deepseek4": 6, "gemma4": 12, "gemma3n": 25, "gpt-oss": 4}


def write_small(path: Path, name: str) -> Path:
    """Write a small model of the same make, with random weights of 32 bits."""
    fact = {key: _SMALL_DIMENSIONS.get(key, value) for key, value in FACTS[name].items()}
    fact |= {"layers": _SMALL_LAYERS.get(fact["architecture"], 8), "kv_heads": min(2, fact["kv_heads"])}
    if "shared_layers" in fact:
        fact["shared_layers"] = fact["full_every"]
    if "compress" in fact:
        fact["compress"] = fact["compress"][: fact["layers"]]
    slots = [
        slot if slot.qtype is Type.I32 else TensorSlot(slot.name, slot.shape, Type.F32)
        for slot in Tensors(fact).slots
    ]
    writer, rng = GgufWriter(path, metadata(fact), slots), np.random.default_rng(0)
    for slot in slots:
        dims = tuple(reversed(slot.shape))
        is_index = slot.qtype is Type.I32
        values = (
            rng.integers(0, fact["experts"], dims, dtype=np.int32) if is_index else values_of(rng, slot.name, dims)
        )
        writer.write(slot.name, [values])
    writer.close()
    return path


def metadata(fact: dict) -> dict[str, MetaValue]:
    layers, arch, full = fact["layers"], fact["architecture"], fact.get("full_every", 1)
    keys: dict[str, object] = {
        "block_count": layers, "context_length": fact["context"], "embedding_length": fact["hidden"],
        "attention.head_count": fact["heads"], "attention.head_count_kv": fact["kv_heads"],
        "attention.key_length": fact["head"], "attention.value_length": fact["head"],
        "attention.layer_norm_rms_epsilon": 1e-6, "vocab_size": fact["vocabulary"],
    }  # fmt: skip
    if "ffn" in fact:
        keys["feed_forward_length"] = fact["ffn"]
    if "experts" in fact:
        keys |= {"expert_count": fact["experts"], "expert_used_count": fact["used"]}
        keys["expert_feed_forward_length"] = fact["expert_ffn"]
        if "shared_ffn" in fact:
            keys["expert_shared_feed_forward_length"] = fact["shared_ffn"]
    if "window" in fact:
        keys["attention.sliding_window"] = fact["window"]
    if "linear_head" in fact:
        values = fact["linear_values"]
        keys |= {
            "ssm.conv_kernel": fact["conv"], "ssm.state_size": fact["linear_head"],
            "ssm.group_count": fact["linear_keys"], "ssm.time_step_rank": values,
            "ssm.inner_size": values * fact["linear_head"], "full_attention_interval": full,
            "rope.dimension_sections": [11, 11, 10, 0], "rope.dimension_count": 64,
        }  # fmt: skip
    if arch == "gemma3n":
        keys |= {"altup.num_inputs": fact["altup"], "altup.active_idx": 0}
        keys["embedding_length_per_layer_input"] = fact["per_layer"]
    if arch == "gemma4":
        keys |= {
            "attention.key_length_swa": fact["head_swa"], "attention.value_length_swa": fact["head_swa"],
            "rope.dimension_count_swa": fact["head_swa"], "attention.shared_kv_layers": fact["shared_layers"],
            "attention.sliding_window_pattern": [i % full != full - 1 for i in range(layers)],
            "embedding_length_per_layer_input": fact["per_layer"],
        }  # fmt: skip
    if arch == "qwen4exp":
        rows = fact["table_rows"] // 16
        keys |= {
            "hyper_connection.count": fact["streams"], "hyper_connection.low_rank": fact["stream_rank"],
            "attention.indexer.head_count": fact["index_heads"],
            "attention.indexer.key_length": fact["index_head"], "attention.indexer.top_k": 2048,
            "attention.compress_ratios": [4 if i % full == full - 1 else 0 for i in range(layers)],
            "attention.recurrent_layers": [i % full != full - 1 for i in range(layers)],
            "embedding_length_per_layer_input": fact["table_width"],
            "ple.layers": [1], "ple.ngram_size": 3, "ple.heads_per_ngram": 8, "ple.conv_kernel": 4,
            "ple.eos_token_id": 1, "ple.layer_multipliers": [3, 5, 7],
            "ple.head_offsets": [rows * i for i in range(16)], "ple.head_vocab_sizes": [rows] * 16,
        }  # fmt: skip
    if "compress" in fact:
        keys |= {
            "attention.q_lora_rank": fact["query_rank"], "attention.output_lora_rank": fact["output_rank"],
            "attention.output_group_count": fact["output_groups"], "attention.compress_ratios": fact["compress"],
            "attention.compress_rope_freq_base": 160000.0, "attention.indexer.head_count": fact["index_heads"],
            "attention.indexer.key_length": fact["index_head"], "attention.indexer.top_k": fact["index_top"],
            "hyper_connection.count": fact["connections"], "hyper_connection.sinkhorn_iterations": 20,
            "hyper_connection.epsilon": 1e-6, "hash_layer_count": fact["hash_layers"], "expert_shared_count": 1,
            "expert_weights_scale": 1.5, "expert_weights_norm": True, "expert_gating_func": 4,
            "swiglu_clamp_exp": 10.0, "rope.dimension_count": fact["head"] // 8,
        }  # fmt: skip
    made = {f"{arch}.{key}": _value(key, value) for key, value in keys.items()}
    return {"general.architecture": scalar(arch), **_words(fact["vocabulary"]), **made}


def _words(count: int) -> dict[str, MetaValue]:
    """A vocabulary of this size: three special tokens, all bytes, and made-up words."""
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{n:02X}>" for n in range(256))]
    kinds = [2, 3, 3, *[6] * 256]
    texts += [f"w{n}" for n in range(count - len(texts))]
    return {
        "tokenizer.ggml.model": scalar("llama"),
        "tokenizer.ggml.tokens": array(texts, ValueType.STRING),
        "tokenizer.ggml.scores": array(np.zeros(count, np.float32), ValueType.FLOAT32),
        "tokenizer.ggml.token_type": array(np.array(kinds + [1] * (count - len(kinds)), np.int32), ValueType.INT32),
    }


def _value(key: str, value) -> MetaValue:
    if isinstance(value, list):
        wide = key.startswith(("ple.layer_m", "ple.head"))
        kind = ValueType.BOOL if isinstance(value[0], bool) else ValueType.UINT64 if wide else ValueType.UINT32
        return array(value, kind)
    return scalar(value)


class Tensors:
    """All tensors of a model, with the types of a file of 4 bits: where its blocks do not fit, of 5."""

    def __init__(self, fact: dict) -> None:
        self._fact = fact
        self.slots: list[TensorSlot] = []
        hidden, vocabulary = fact["hidden"], fact["vocabulary"]
        plain = Type[fact["plain_type"]] if "plain_type" in fact else Type.Q6_K
        self._add("token_embd", hidden, vocabulary, kind=Type.Q6_K if fact["tied"] else None)
        if not fact["tied"]:
            self._add("output", hidden, vocabulary, kind=plain)
        if fact["architecture"] != "qwen4exp":
            self._norm("output_norm", hidden)
        self._top()
        for layer in range(fact["layers"]):
            self._prefix = f"blk.{layer}."
            self._layer(layer)

    _prefix = ""

    def _add(self, name: str, row: int, *rows: int, kind: Type | None = None) -> None:
        if kind is None and "plain_type" in self._fact:
            kind = Type[self._fact["plain_type"]]
        if kind is None:
            kind = Type.Q4_K if row % 256 == 0 else Type.Q5_0 if row % 32 == 0 else Type.F32
        self.slots.append(TensorSlot(f"{self._prefix}{name}.weight", (row, *rows), kind))

    def _norm(self, name: str, *dims: int) -> None:
        self._add(name, *dims, kind=Type.F32)

    def _top(self) -> None:
        fact, hidden = self._fact, self._fact["hidden"]
        if "per_layer" in fact:
            wide = fact["per_layer"] * fact["layers"]
            self._add("per_layer_token_embd", wide, fact["vocabulary"])
            self._add("per_layer_model_proj", hidden, wide)
            self._norm("per_layer_proj_norm", fact["per_layer"])
        if "altup" in fact:
            for name in ("altup_proj", "altup_unembd_proj"):
                self._add(name, hidden, hidden, fact["altup"] - 1)
        if fact["architecture"] == "gemma4":
            self._norm("rope_freqs", fact["head"] // 2)
        if "compress" in fact:
            count = fact["connections"]
            self._norm("output_hc_fn", count * hidden, count)
            self._norm("output_hc_base", count)
            self._norm("output_hc_scale", 1)
        if "streams" in fact:
            wide, rank = fact["streams"] * hidden, fact["stream_rank"]
            self._norm("output_hc_norm", hidden, fact["streams"])
            self._add("output_hc_down", wide, rank)
            self._add("output_hc_up", rank, wide)
            self._add("per_layer_token_embd", fact["table_width"], fact["table_rows"], kind=Type.IQ4_NL)

    def _layer(self, layer: int) -> None:
        fact, hidden, full = self._fact, self._fact["hidden"], self._fact.get("full_every", 1)
        is_full = layer % full == full - 1
        if "streams" not in fact:
            self._norm("attn_norm", hidden)
            post = "linear_head" in fact or fact["architecture"] == "gpt-oss"
            self._norm("post_attention_norm" if post else "ffn_norm", hidden)
        if "compress" in fact:
            self._compressed(layer)
        elif "linear_head" in fact and not is_full:
            self._linear()
        else:
            self._attention(layer, fact["head"] if is_full else fact.get("head_swa", fact["head"]))
        self._feed()
        if "streams" in fact:
            self._streams(layer, is_full=is_full)
        if "per_layer" in fact:
            self._add("inp_gate", hidden, fact["per_layer"])
            self._add("proj", fact["per_layer"], hidden)
            for name in ("post_norm", "post_attention_norm", "post_ffw_norm"):
                self._norm(name, hidden)
        if "altup" in fact:
            self._add("laurel_l", hidden, fact["laurel"])
            self._add("laurel_r", fact["laurel"], hidden)
            for name in ("laurel_post_norm", "altup_correct_scale", "altup_router_norm"):
                self._norm(name, hidden)
            count = fact["altup"]
            self._norm("altup_correct_coef", count, count)
            self._norm("altup_predict_coef", count, count * count)
            self._norm("altup_router", hidden, count)

    def _attention(self, layer: int, head: int) -> None:
        fact, hidden = self._fact, self._fact["hidden"]
        queries, keys = fact["heads"] * head, fact["kv_heads"] * head
        self._add("attn_q", hidden, queries * (2 if "linear_head" in fact else 1))
        if layer < fact["layers"] - fact.get("shared_layers", 0):
            self._add("attn_k", hidden, keys)
            self._add("attn_v", hidden, keys)
            if fact["architecture"] != "gpt-oss":
                self._norm("attn_k_norm", head)
        self._add("attn_output", queries, hidden)
        if fact["architecture"] == "gpt-oss":
            self._norm("attn_sinks", fact["heads"])
            for name, size in (("q", queries), ("k", keys), ("v", keys), ("output", hidden)):
                self.slots.append(TensorSlot(f"{self._prefix}attn_{name}.bias", (size,), Type.F32))
        else:
            self._norm("attn_q_norm", head)
        if "index_head" in fact:
            self._add("indexer.q_proj", hidden, fact["index_heads"] * fact["index_head"])
            self._add("indexer.k_proj", hidden, fact["index_head"])
            self._norm("indexer.q_norm", fact["index_head"])
            self._norm("indexer.k_norm", fact["index_head"])

    def _compressed(self, layer: int) -> None:
        fact, hidden, head = self._fact, self._fact["hidden"], self._fact["head"]
        queries, rank, groups = fact["heads"] * head, fact["query_rank"], fact["output_groups"]
        self._add("attn_q_a", hidden, rank)
        self._norm("attn_q_a_norm", rank)
        self._add("attn_q_b", rank, queries)
        self._add("attn_kv", hidden, head)
        self._norm("attn_kv_a_norm", head)
        self._norm("attn_sinks", fact["heads"])
        self._add("attn_output_a", queries // groups, groups * fact["output_rank"])
        self._add("attn_output_b", groups * fact["output_rank"], hidden)
        count = fact["connections"]
        for module in ("attn", "ffn"):
            self._norm(f"hc_{module}_fn", count * hidden, (2 + count) * count)
            self._norm(f"hc_{module}_base", (2 + count) * count)
            self._norm(f"hc_{module}_scale", 3)
        tokens = fact["compress"][layer]
        if tokens:
            self._compressor("attn_compressor", head, tokens)
        if tokens == 4:
            self._add("indexer.proj", hidden, fact["index_heads"])
            self._add("indexer.attn_q_b", rank, fact["index_heads"] * fact["index_head"])
            self._compressor("indexer_compressor", fact["index_head"], tokens)
        if layer < fact["hash_layers"]:
            self._add("ffn_gate_tid2eid", fact["used"], fact["vocabulary"], kind=Type.I32)
        else:
            self.slots.append(TensorSlot(f"{self._prefix}exp_probs_b.bias", (fact["experts"],), Type.F32))

    def _compressor(self, name: str, head: int, tokens: int) -> None:
        wide = 2 * head if tokens == 4 else head
        self._add(f"{name}_kv", self._fact["hidden"], wide)
        self._add(f"{name}_gate", self._fact["hidden"], wide)
        self._norm(f"{name}_ape", wide, tokens)
        self._norm(f"{name}_norm", head)

    def _linear(self) -> None:
        fact, hidden, head = self._fact, self._fact["hidden"], self._fact["linear_head"]
        heads, values = fact["linear_values"], fact["linear_values"] * head
        both = 2 * fact["linear_keys"] * head + values
        self._add("attn_qkv", hidden, both)
        self._add("attn_gate", hidden, values)
        self._norm("ssm_conv1d", fact["conv"], both)
        self.slots.append(TensorSlot(f"{self._prefix}ssm_dt.bias", (heads,), Type.F32))
        self.slots.append(TensorSlot(f"{self._prefix}ssm_a", (heads,), Type.F32))
        self._add("ssm_beta", hidden, heads)
        self._add("ssm_alpha", hidden, heads)
        self._norm("ssm_norm", head)
        self._add("ssm_out", values, hidden)

    def _feed(self) -> None:
        fact, hidden = self._fact, self._fact["hidden"]
        if "experts" not in fact:
            self._gated("", hidden, fact["ffn"])
            return
        self._norm("ffn_gate_inp", hidden, fact["experts"])
        kind = Type[fact["experts_type"]] if "experts_type" in fact else None
        self._gated("_exps", hidden, fact["expert_ffn"], fact["experts"], kind=kind)
        if fact["architecture"] == "gpt-oss":
            count = fact["experts"]
            self.slots.append(TensorSlot(f"{self._prefix}ffn_gate_inp.bias", (count,), Type.F32))
            for name, size in (("gate", fact["expert_ffn"]), ("up", fact["expert_ffn"]), ("down", hidden)):
                self.slots.append(TensorSlot(f"{self._prefix}ffn_{name}_exps.bias", (size, count), Type.F32))
        if "shared_ffn" in fact:
            if "compress" not in fact:
                self._norm("ffn_gate_inp_shexp", hidden)
            self._gated("_shexp", hidden, fact["shared_ffn"])

    def _gated(self, suffix: str, hidden: int, ffn: int, *count: int, kind: Type | None = None) -> None:
        self._add(f"ffn_gate{suffix}", hidden, ffn, *count, kind=kind)
        self._add(f"ffn_up{suffix}", hidden, ffn, *count, kind=kind)
        self._add(f"ffn_down{suffix}", ffn, hidden, *count, kind=kind)

    def _streams(self, layer: int, *, is_full: bool) -> None:
        fact, hidden = self._fact, self._fact["hidden"]
        count, rank, wide = fact["streams"], fact["stream_rank"], fact["streams"] * hidden
        for module in ("attn", "ffn"):
            self._norm(f"hc_{module}_norm", hidden, count)
            self._add(f"hc_{module}_down", wide, rank)
            self._add(f"hc_{module}_up", rank, wide)
            self._add(f"hc_{module}_inject", wide, count)
        if layer == 1:
            self._add("ple_key", hidden, wide)
            self._add("ple_value", hidden, hidden)
            for name in ("ple_norm_key", "ple_norm_query", "ple_norm_conv"):
                self._norm(name, hidden, count)
            self._norm("ple_conv1d", 4, wide)
