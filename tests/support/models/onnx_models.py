"""The bundled model in other types, converted folders, and the logits of both runtimes."""

import os
from pathlib import Path

import gguf
import numpy as np

from quantize.files.gguf_file import read_gguf
from quantize.native.blocks import quantize_rows

os.environ["ORT_DISABLE_TELEMETRY"] = "1"


def requantize(
    source: Path, target: Path, qtype: str, extra: dict[str, np.ndarray] | None = None, scale: float = 0.0
) -> Path:
    """Copy an F16 model with its matrices stored as `qtype`; `extra` replaces or adds tensors.

    `scale` is the factor of linear RoPE scaling, if any.
    """
    reader = gguf.GGUFReader(str(source))
    writer = gguf.GGUFWriter(str(target), read_gguf(source).architecture)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], inner)
    if scale:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(scale)
    for tensor in reader.tensors:
        if extra and tensor.name in extra:
            continue
        if tensor.tensor_type == gguf.GGMLQuantizationType.F16 and qtype != "F16":
            values = np.asarray(tensor.data, np.float32)
            writer.add_tensor(tensor.name, quantize_rows(values, qtype), raw_dtype=gguf.GGMLQuantizationType[qtype])
        else:
            writer.add_tensor(tensor.name, np.asarray(tensor.data))
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def onnx_logits(folder: Path, tokens: list[int]) -> np.ndarray:
    """Logits after the last token, (n_vocab,), from ONNX Runtime on one thread with an empty cache."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"])
    feeds = {"input_ids": np.array([tokens], np.int64), "attention_mask": np.ones((1, len(tokens)), np.int64)}
    for given in session.get_inputs():
        if given.name.startswith("past"):
            feeds[given.name] = np.zeros((1, given.shape[1], 0, given.shape[3]), np.float32)
    return session.run(["logits"], feeds)[0][0, -1]


def llama_logits(path: Path, tokens: list[int]) -> np.ndarray:
    """Logits after the last token, (n_vocab,), from llama.cpp."""
    from quantize.native.reference import ReferenceModel

    keep = np.zeros(len(tokens), bool)
    keep[-1] = True
    with ReferenceModel(path, window=len(tokens), batch_windows=1, threads=1) as model:
        return model.run(np.array([tokens], np.int32), keep)[0, 0]


def distance(found: np.ndarray, wanted: np.ndarray) -> float:
    """Root mean square of the difference, relative to the expected values' standard deviation."""
    return float(np.sqrt(np.mean((found - wanted) ** 2)) / wanted.std())
