"""BERT in plain numpy, from the formulas of Devlin et al. (2018) and Vaswani et al. (2017); slow, in float64."""

import json
import math
import struct
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

_ERF = np.vectorize(math.erf)


def embed(folder: Path, texts: list[str]) -> np.ndarray:
    """Mean-pooled, normalized rows (texts, hidden); each text is computed alone and without padding."""
    config = json.loads((folder / "config.json").read_text())
    weights = _safetensors(folder / "model.safetensors")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    rows = [_forward(weights, config, tokenizer.encode(text).ids).mean(axis=0) for text in texts]
    return np.stack([row / np.linalg.norm(row) for row in rows])


def score(folder: Path, query: str, texts: list[str]) -> np.ndarray:
    """The reranker head's score of each text."""
    config = json.loads((folder / "config.json").read_text())
    weights = {name.removeprefix("bert."): v for name, v in _safetensors(folder / "model.safetensors").items()}
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    found = []
    for text in texts:
        pair = tokenizer.encode(query, text)
        first = _forward(weights, config, pair.ids, pair.type_ids)[0]
        found.append(_linear(np.tanh(_linear(first, weights, "pooler.dense")), weights, "classifier")[0])
    return np.array(found)


def _safetensors(path: Path) -> dict[str, np.ndarray]:
    raw = path.read_bytes()
    (length,) = struct.unpack_from("<Q", raw)
    head = json.loads(raw[8 : 8 + length])
    found = {}
    for name, info in head.items():
        if name != "__metadata__" and info["dtype"] == "F32":
            begin, end = info["data_offsets"]
            values = np.frombuffer(raw[8 + length + begin : 8 + length + end], "<f4")
            found[name] = values.reshape(info["shape"]).astype(np.float64)
    return found


def _forward(w, config, ids, segments=None):
    """Hidden rows of the last layer, (tokens, hidden)."""
    x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][: len(ids)]
    x = _norm(
        x + w["embeddings.token_type_embeddings.weight"][segments or [0] * len(ids)],
        w,
        "embeddings.LayerNorm",
        config,
    )
    heads = config["num_attention_heads"]
    for layer in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{layer}."
        q, k, v = (_split(_linear(x, w, f"{at}attention.self.{n}"), heads) for n in ("query", "key", "value"))
        scores = q @ k.swapaxes(1, 2) / math.sqrt(q.shape[-1])
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed = (weights / weights.sum(axis=-1, keepdims=True)) @ v
        mixed = mixed.swapaxes(0, 1).reshape(len(ids), -1)
        x = _norm(
            x + _linear(mixed, w, f"{at}attention.output.dense"), w, f"{at}attention.output.LayerNorm", config
        )
        wide = _linear(x, w, f"{at}intermediate.dense")
        wide = wide * 0.5 * (1 + _ERF(wide / math.sqrt(2)))
        x = _norm(x + _linear(wide, w, f"{at}output.dense"), w, f"{at}output.LayerNorm", config)
    return x


def _split(x, heads):
    return x.reshape(len(x), heads, -1).swapaxes(0, 1)


def _linear(x, w, name):
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def _norm(x, w, name, config):
    centred = x - x.mean(axis=-1, keepdims=True)
    scale = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + config["layer_norm_eps"])
    return centred / scale * w[f"{name}.weight"] + w[f"{name}.bias"]
