"""Child process: converts a speech model to a folder of fixed shapes for NPUs.

Usage: python -m engine.runner.onnx.speech.convert FOLDER OUT SECONDS; prints one JSON object.
"""

import math
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from devices.atomic_file import unfinished
from devices.child_command import write_answer
from engine.runner.onnx.speech.moonshine import SPARE_TOKENS, TOKENS_A_SECOND, BadSpeechModel
from engine.runner.onnx_libraries import onnxruntime, reason
from quantize.onnx.request import SPEECH_FACTS as FACTS
from quantize.onnx.speech import DATA, write_speech

_BESIDE: Final = ("tokenizer.bin", "silero_vad.onnx")


def convert(folder: Path, out: Path, seconds: float) -> dict[str, Any]:
    """Write the folder atomically, or use an existing one that has its facts."""
    notice = f"At most {seconds:g} s of sound at once; longer speech is split at pauses."
    done = {"folder": str(out), "architecture": "moonshine", "notices": [notice], "cached": False}
    if (out / FACTS).is_file():
        return {**done, "cached": True, "data_bytes": (out / DATA).stat().st_size}
    with unfinished(out) as partial:
        partial.mkdir()
        tokens = math.ceil(seconds * TOKENS_A_SECOND) + SPARE_TOKENS
        write_speech(read_weights(folder), partial, seconds=seconds, tokens=tokens)
        for name in _BESIDE:
            shutil.copyfile(folder / name, partial / name)
        partial.rename(out)
    return {**done, "data_bytes": (out / DATA).stat().st_size}


Floats = npt.NDArray[np.float32]
# Input indices of matrix, scale, zero point and bias, by operator. Source: ONNX Runtime, ContribOperators.md.
_PRODUCTS: Final = {"MatMulIntegerToFloat": (1, 3, 5, 6), "DynamicQuantizeMatMul": (1, 2, 3, 4)}
_LAYER: Final = re.compile(r"layers\.(\d+)/(?:(self_attn|encoder_attn)/)?(?:mlp/)?(\w+)/")


def read_weights(folder: Path) -> dict[str, Floats]:
    """Return weights by the names of quantize.onnx.speech; matrices are (inputs, outputs) in float32.

    Raises: BadSpeechModel: these are not the files of a Moonshine model. Any exception of ONNX Runtime.
    """
    weights: dict[str, Floats] = {}
    _take(_unpacked(folder / "encoder_model.ort"), "encoder", weights)
    decoder = _unpacked(folder / "decoder_model_merged.ort")
    branches = {a.name: a.g for node in decoder.node if node.op_type == "If" for a in node.attribute}
    if "else_branch" not in branches:
        raise BadSpeechModel("the decoder has no branch for a first token")
    _take(branches["else_branch"], "decoder", weights)
    if "embedding.codes" not in weights:
        raise BadSpeechModel("the decoder has no embedding")
    codes, scale, zero = (weights.pop(f"embedding.{n}") for n in ("codes", "scale", "zero"))
    return {**weights, "embedding": _floats(codes, scale, zero)}


def _unpacked(path: Path) -> Any:
    """Return the graph of an ONNX Runtime file, which ONNX Runtime converts to ONNX."""
    import onnx

    ort = onnxruntime()
    with tempfile.TemporaryDirectory() as work:
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.optimized_model_filepath = str(Path(work) / "model.onnx")
        options.add_session_config_entry("session.save_model_format", "ONNX")
        ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        return onnx.load(Path(work) / "model.onnx").graph


def _take(graph: Any, side: str, weights: dict[str, Floats]) -> None:
    from onnx import numpy_helper

    stored = {one.name: one for one in graph.initializer}

    def value(name: str) -> Any:
        if name not in stored:
            raise BadSpeechModel(f"{name} is not a constant of the {side}")
        return numpy_helper.to_array(stored[name])

    for node in graph.node:
        for name, matrix in _of_node(node, side, value):
            weights[name] = np.ascontiguousarray(matrix, np.float32)
    for name in stored:
        if side == "encoder" and (match := re.fullmatch(r"(conv[123])\.(weight|bias)", name)):
            weights[match[1] + ("" if match[2] == "weight" else ".bias")] = value(name)


def _of_node(node: Any, side: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield this node's weights by name."""
    layer = _LAYER.search(node.name)
    if node.op_type in _PRODUCTS:
        at = _PRODUCTS[node.op_type]
        names = [node.input[i] if i < len(node.input) else "" for i in at]
        matrix = _floats(value(names[0]), value(names[1]), value(names[2]) if names[2] else 0)
        name = f"{side}.{layer[1]}.{f'{layer[2]}.' if layer[2] else ''}{layer[3]}" if layer else "head"
        yield name, matrix
        if names[3]:
            yield f"{name}.bias", value(names[3])
    elif node.op_type == "LayerNormalization":
        if np.any(value(node.input[2])):
            raise BadSpeechModel("a norm has an offset")
        yield f"{side}.{layer[1]}.{layer[3]}" if layer else f"{side}.norm", value(node.input[1])
    elif side == "encoder" and node.name in {"/groupnorm/Mul", "/groupnorm/Add"}:
        yield "groupnorm" + (".bias" if node.op_type == "Add" else ""), value(node.input[1]).reshape(-1)
    elif side == "encoder" and node.op_type == "Expand" and "rotary_emb" in node.name:
        yield "frequencies", value(node.input[0]).reshape(-1)
    elif side == "decoder" and node.op_type == "Gather" and node.name.endswith("embed_tokens/Gather"):
        yield "embedding.codes", value(node.input[0])
    elif side == "decoder" and node.op_type == "DequantizeLinear" and "embed_tokens" in node.input[1]:
        yield "embedding.scale", value(node.input[1])
        yield "embedding.zero", value(node.input[2])


def _floats(codes: Any, scale: Any, zero: Any) -> Floats:
    values: Floats = (codes.astype(np.float32) - np.asarray(zero, np.float32)) * np.asarray(scale, np.float32)
    return values


if __name__ == "__main__":
    try:
        write_answer(convert(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])))
    except Exception as error:
        write_answer({"error": reason(error)})
        sys.exit(1)
