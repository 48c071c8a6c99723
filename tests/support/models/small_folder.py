"""Models that are measured and rounded in seconds: part of the bundled model, and a model with experts."""

import json
import shutil
from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np

from quantize.convert.folder import ConvertRequest, convert
from quantize.files.gguf_file import read_gguf
from quantize.files.gguf_write import GgufWriter, TensorSlot, copied_metadata
from quantize.native.source_weights import SourceWeights
from tests.support.models.measured_model import CALIBRATION, ROOT

SPARK_HF = ROOT / "tests/data/spark-hf"
# Number of tokens, of 8192: the full table would be two thirds of a one-layer model and of its run time.
VOCAB = 1024
FFN = 768  # feed-forward channels of the bundled model
NARROW = 256  # feed-forward channels for tests with a dozen measurements: a third of a layer's weights
LAYERS, HIDDEN, EXPERTS, EXPERT_FFN, HEAD_DIM = 1, 256, 4, 256, 64
Tensors = dict[str, np.ndarray]


def first_layers(folder: Path, layers: int, ffn: int = FFN) -> Path:
    """The bundled model's first layers, tokens and channels: trained weights, but worse text."""
    raw = (SPARK_HF / "model.safetensors").read_bytes()
    size = int.from_bytes(raw[:8], "little")
    rows = json.loads(raw[8 : 8 + size])
    rows.pop("__metadata__", None)
    tensors = {}
    for name, row in rows.items():
        parts = name.split(".")
        if parts[1] != "layers" or int(parts[2]) < layers:
            begin, end = row["data_offsets"]
            values = np.frombuffer(raw, np.float16, (end - begin) // 2, 8 + size + begin)
            values = values.reshape(row["shape"])
            tensors[name] = _first_rows(name, values, ffn)
    return _write(folder, {"num_hidden_layers": layers, "intermediate_size": ffn}, tensors)


def _first_rows(name: str, values: np.ndarray, ffn: int) -> np.ndarray:
    if name == "model.embed_tokens.weight":
        return values[:VOCAB]
    if name.endswith(("gate_proj.weight", "up_proj.weight")):
        return values[:ffn]
    return np.ascontiguousarray(values[:, :ffn]) if name.endswith("down_proj.weight") else values


def small_file(path: Path, layers: int, ffn: int = FFN) -> Path:
    """The same model as a GGUF file, converted by Tessera."""
    convert(ConvertRequest(folder=first_layers(path.with_suffix(""), layers, ffn), out=path), lambda *_: None)
    return path


def changed_copy(
    source: Path, path: Path, change: Callable[[str, np.ndarray], np.ndarray], without: Collection[str] = ()
) -> Path:
    """A model file with other values and without some tensors: `change` takes a tensor's name and values."""
    weights = SourceWeights(source)
    infos = [weights.info(name) for name in weights.names if name not in without]
    slots = [TensorSlot(i.name, i.shape, i.ggml_type) for i in infos]
    writer = GgufWriter(path, copied_metadata(read_gguf(source)), slots)
    for info in infos:
        dtype = {"F16": np.float16, "F32": np.float32}[info.ggml_type.name]
        writer.write(info.name, [change(info.name, weights.rows(info.name)).astype(dtype)])
    writer.close()
    return path


def with_experts(folder: Path) -> Path:
    """A random Qwen3 with four experts, two of them active per token."""
    rng = np.random.default_rng(7)

    def random(rows: int, width: int) -> np.ndarray:
        # A few columns weigh more, as in trained models; otherwise knowing the inputs would not help.
        scale = np.exp(rng.standard_normal(width)) / np.sqrt(width)
        return (rng.standard_normal((rows, width)) * scale).astype(np.float16)

    tensors: Tensors = {"model.embed_tokens.weight": random(VOCAB, HIDDEN), "lm_head.weight": random(VOCAB, HIDDEN)}
    tensors["model.norm.weight"] = np.ones(HIDDEN, np.float16)
    for layer in range(LAYERS):
        p = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{p}{norm}.weight"] = np.exp(rng.standard_normal(HIDDEN) / 2).astype(np.float16)
        for part, rows in (("q", 4), ("k", 2), ("v", 2)):
            tensors[f"{p}self_attn.{part}_proj.weight"] = random(rows * HEAD_DIM, HIDDEN)
        tensors[f"{p}self_attn.o_proj.weight"] = random(HIDDEN, 4 * HEAD_DIM)
        for part in ("q", "k"):
            tensors[f"{p}self_attn.{part}_norm.weight"] = np.ones(HEAD_DIM, np.float16)
        tensors[f"{p}mlp.gate.weight"] = random(EXPERTS, HIDDEN)
        for expert in range(EXPERTS):
            q = f"{p}mlp.experts.{expert}."
            tensors[f"{q}gate_proj.weight"] = random(EXPERT_FFN, HIDDEN)
            tensors[f"{q}up_proj.weight"] = random(EXPERT_FFN, HIDDEN)
            tensors[f"{q}down_proj.weight"] = random(HIDDEN, EXPERT_FFN)
    changes = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_hidden_layers": LAYERS,
        "num_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": EXPERT_FFN,
        "norm_topk_prob": True,
        "tie_word_embeddings": False,
    }
    return _write(folder, changes, tensors)


def short_text(path: Path, characters: int = 10_000) -> Path:
    """The start of the calibration text: about 5,000 tokens."""
    path.write_text(CALIBRATION.read_text(encoding="utf-8")[:characters], encoding="utf-8")
    return path


def _first_tokens() -> dict[str, object]:
    """The bundled tokenizer with the tokens that were merged first: token numbers follow the order of merges."""
    told = json.loads((SPARK_HF / "tokenizer.json").read_text(encoding="utf-8"))
    model = told["model"]
    known = {token: number for token, number in model["vocab"].items() if number < VOCAB}
    merges = [pair for pair in model["merges"] if "".join(pair) in known]
    return told | {"model": model | {"vocab": known, "merges": merges}}


def _write(folder: Path, changes: dict[str, object], tensors: Tensors) -> Path:
    folder.mkdir()
    for name in ("tokenizer_config.json", "generation_config.json"):
        shutil.copy(SPARK_HF / name, folder / name)
    (folder / "tokenizer.json").write_text(json.dumps(_first_tokens()), encoding="utf-8")
    config = json.loads((SPARK_HF / "config.json").read_text()) | {"vocab_size": VOCAB} | changes
    (folder / "config.json").write_text(json.dumps(config))
    head, at = {}, 0
    for name, values in tensors.items():
        head[name] = {"dtype": "F16", "shape": list(values.shape), "data_offsets": [at, at + values.nbytes]}
        at += values.nbytes
    text = json.dumps(head).encode()
    data = b"".join(values.tobytes() for values in tensors.values())
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    return folder
