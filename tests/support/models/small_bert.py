"""A BERT folder with random weights in sentence-transformers' layout, small enough to write in a test."""

import json
import struct
from pathlib import Path

import numpy as np

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "tile", "fits", "small", "model", "##s", "##er", "."]
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}


def write_bert_folder(
    folder: Path, *, seed: int = 0, pooling: str = "mean", ranks: bool = False, **changed
) -> Path:
    """Write the folder; `changed` are entries of config.json."""
    rng = np.random.default_rng(seed)
    folder.mkdir()
    config = {
        "model_type": "bert", "architectures": ["BertForSequenceClassification" if ranks else "BertModel"],
        "hidden_act": "gelu", "layer_norm_eps": 1e-12, "max_position_embeddings": 64, "type_vocab_size": 2,
        "vocab_size": len(WORDS), "position_embedding_type": "absolute", **SIZES, **changed,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "1_Pooling").mkdir()
    said = {"pooling_mode_cls_token": pooling == "cls", "pooling_mode_mean_tokens": pooling == "mean"}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(said))
    named = {"cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]", "pad_token": "[PAD]"}
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True, **named}))
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer()))
    _write(folder / "model.safetensors", _weights(rng, config, "bert." if ranks else "", ranks=ranks))
    return folder


def _weights(rng, config, prefix, *, ranks):
    hidden, wide = config["hidden_size"], config["intermediate_size"]
    made = {}

    def linear(name, out, width):
        made[f"{name}.weight"], made[f"{name}.bias"] = rng.normal(0, 0.4, (out, width)), rng.normal(0, 0.2, out)

    def norm(name):
        made[f"{name}.weight"], made[f"{name}.bias"] = rng.normal(1, 0.1, hidden), rng.normal(0, 0.1, hidden)

    for name, rows in (("word", len(WORDS)), ("position", 64), ("token_type", 2)):
        made[f"{prefix}embeddings.{name}_embeddings.weight"] = rng.normal(0, 0.5, (rows, hidden))
    norm(f"{prefix}embeddings.LayerNorm")
    for layer in range(config["num_hidden_layers"]):
        at = f"{prefix}encoder.layer.{layer}."
        for part in (
            "attention.self.query",
            "attention.self.key",
            "attention.self.value",
            "attention.output.dense",
        ):
            linear(at + part, hidden, hidden)
        norm(f"{at}attention.output.LayerNorm")
        linear(f"{at}intermediate.dense", wide, hidden)
        linear(f"{at}output.dense", hidden, wide)
        norm(f"{at}output.LayerNorm")
    linear(f"{prefix}pooler.dense", hidden, hidden)
    if ranks:
        linear("classifier", 1, hidden)
    return made


def _write(path, weights):
    head, data = {}, b""
    for name, values in weights.items():
        raw = values.astype("<f4").tobytes()
        head[name] = {"dtype": "F32", "shape": values.shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(head).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def _tokenizer():
    cls, sep = ({"SpecialToken": {"id": t, "type_id": 0}} for t in ("[CLS]", "[SEP]"))
    one, two = ({"Sequence": {"id": n, "type_id": t}} for n, t in (("A", 0), ("B", 1)))
    last = {"SpecialToken": {"id": "[SEP]", "type_id": 1}}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": w, **flags} for i, w in enumerate(WORDS) if w.startswith("[")],
        "normalizer": {
            "type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing", "single": [cls, one, sep], "pair": [cls, one, sep, two, last],
            "special_tokens": {t: {"id": t, "ids": [WORDS.index(t)], "tokens": [t]} for t in ("[CLS]", "[SEP]")},
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": {w: i for i, w in enumerate(WORDS)},
        },
    }  # fmt: skip
