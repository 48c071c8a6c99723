"""A GGUF BERT as the ONNX folder that sentence-transformers would export: same weights, same tokens."""

import json
from pathlib import Path

import gguf
import numpy as np

from quantize.onnx.graph import GraphWriter


def write_onnx_bert(source: Path, folder: Path, heads: int = 4, *, rank: bool = False) -> Path:
    folder.mkdir()
    reader = gguf.GGUFReader(str(source))
    w = {t.name: np.asarray(t.data, np.float32) for t in reader.tensors}
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    embd, layers = w["token_embd.weight"].shape[1], sum(n.endswith("ffn_up.weight") for n in w)
    with (folder / "model.onnx.data").open("wb") as data:
        _graph(GraphWriter(data, "model.onnx.data"), folder, w, (embd, layers, heads), rank=rank)
    head = "BertForSequenceClassification" if rank else "BertModel"
    context = w["position_embd.weight"].shape[0]
    sizes = {"hidden_size": embd, "num_hidden_layers": layers, "vocab_size": len(tokens)}
    config = {"model_type": "bert", "architectures": [head], "max_position_embeddings": context, **sizes}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer(tokens)))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    return folder


def _graph(g, folder, w, shape, *, rank):
    embd, layers, heads = shape
    ids = g.input("input_ids", "int64", ("batch", "tokens"))
    mask = g.input("attention_mask", "int64", ("batch", "tokens"))
    kinds = g.input("token_type_ids", "int64", ("batch", "tokens"))

    def const(name, values=None):
        return g.constant(name, w[name] if values is None else values)

    def norm(x, name):
        weights = [x, const(f"{name}.weight"), const(f"{name}.bias")]
        return g.node("LayerNormalization", weights, axis=-1, epsilon=1e-12)

    def linear(x, name, act=None):
        made = g.node("MatMul", [x, const(f"{name}.weight", np.ascontiguousarray(w[f"{name}.weight"].T))])
        made = g.node("Add", [made, const(f"{name}.bias")])
        return g.node(act, [made]) if act else made

    one, zero = (g.constant(n, np.array([v], np.int64)) for n, v in (("one", 1), ("zero", 0)))
    length = g.node("Gather", [g.node("Shape", [ids]), one])
    positions = g.node("Slice", [const("position_embd.weight"), zero, length, zero])
    x = g.node("Gather", [const("token_embd.weight"), ids])
    x = g.node("Add", [x, g.node("Gather", [const("token_types.weight"), kinds])])
    x = g.node("Add", [x, positions])
    x = norm(x, "token_embd_norm")
    valid = g.node("Cast", [mask], to=6)
    for i in range(layers):
        at = f"blk.{i}."
        q, k, v = (linear(x, f"{at}attn_{n}") for n in "qkv")
        mixed = g.node("MultiHeadAttention", [q, k, v, "", valid], domain="com.microsoft", num_heads=heads)
        x = norm(g.node("Add", [x, linear(mixed, f"{at}attn_output")]), f"{at}attn_output_norm")
        wide = g.node("FastGelu", [linear(x, f"{at}ffn_up")], domain="com.microsoft")
        x = norm(g.node("Add", [x, linear(wide, f"{at}ffn_down")]), f"{at}layer_output_norm")
    if rank:
        first = g.node("Gather", [x, g.constant("first", np.array(0, np.int64))], axis=1)
        score = linear(linear(first, "cls", "Tanh"), "cls.output")
        g.node("Identity", [score], out=g.output("logits", "float32", ("batch", 1)))
    else:
        g.node("Identity", [x], out=g.output("last_hidden_state", "float32", ("batch", "tokens", embd)))
    g._data.flush()
    g.save(folder / "model.onnx")


def _tokenizer(tokens):
    """A WordPiece tokenizer in Hugging Face's notation: GGUF marks word starts, WordPiece marks continuations."""
    plain = [t if t.startswith("[") else t[1:] if t.startswith("\u2581") else f"##{t}" for t in tokens]
    special = {t: i for i, t in enumerate(plain) if t.startswith("[")}
    marks = {"id": 0, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    cls, sep = ({"SpecialToken": {"id": t, "type_id": 0}} for t in ("[CLS]", "[SEP]"))
    one, two = ({"Sequence": {"id": n, "type_id": t}} for n, t in (("A", 0), ("B", 0)))
    named = {t: {"id": t, "ids": [special[t]], "tokens": [t]} for t in ("[CLS]", "[SEP]")}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{**marks, "id": i, "content": t} for t, i in special.items()],
        "normalizer": {
            "type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing", "single": [cls, one, sep], "pair": [cls, one, sep, two],
            "special_tokens": named,
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": {t: i for i, t in enumerate(plain)},
        },
    }  # fmt: skip
