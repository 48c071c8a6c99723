"""A speech model that is created in a second: its words mean nothing, but every part of the real one runs."""

import numpy as np
import onnx
from onnx import TensorProto, helper

from quantize.onnx.speech import layer_weights, write_speech

EMBD, VOCAB, LAYERS = 64, 40, 2


def weights():
    """Random weights of a Moonshine model with two layers on each side."""
    rng = np.random.default_rng(5)

    def made(*shape, scale=None):
        return (rng.normal(size=shape) * (scale or shape[0] ** -0.5)).astype(np.float32)

    found = {
        "conv1": made(EMBD, 1, 127, scale=0.3),
        "conv2": made(2 * EMBD, EMBD, 7, scale=0.05),
        "conv2.bias": made(2 * EMBD, scale=0.1),
        "conv3": made(EMBD, 2 * EMBD, 3, scale=0.05),
        "conv3.bias": made(EMBD, scale=0.1),
        "embedding": made(VOCAB, EMBD, scale=1),
        "head": made(EMBD, VOCAB),
        "frequencies": (10000.0 ** -(np.arange(3) / 3)).astype(np.float32),
        "groupnorm": np.ones(EMBD, np.float32),
        "groupnorm.bias": np.zeros(EMBD, np.float32),
        "encoder.norm": np.ones(EMBD, np.float32),
        "decoder.norm": np.ones(EMBD, np.float32),
    }
    for name in layer_weights(LAYERS):
        wide = 2 * EMBD
        inner = 2 * wide if name.startswith("decoder") else wide
        shapes = {"fc1": (EMBD, inner), "fc1.bias": (inner,), "fc2": (wide, EMBD), "fc2.bias": (EMBD,)}
        found[name] = made(*shapes.get(".".join(name.split(".")[2:]), (EMBD, EMBD)))
    for layer in range(LAYERS):
        for side, norms in (
            ("encoder", ("input_layernorm", "post_attention_layernorm")),
            ("decoder", ("input_layernorm", "post_attention_layernorm", "final_layernorm")),
        ):
            found |= {f"{side}.{layer}.{norm}": np.ones(EMBD, np.float32) for norm in norms}
    return found


def tiny_speech(folder, seconds, tokens=20):
    """Write the model, with fixed shapes and words of three digits."""
    write_speech(weights(), folder, seconds=seconds, tokens=tokens)
    (folder / "tokenizer.bin").write_bytes(b"".join(bytes([3]) + f"{i:03}".encode() for i in range(VOCAB)))


def loudness_detector(path):
    """Write a detector with the inputs of Silero's, for which loud is speech."""
    sizes = {"input": [1, None], "state": [2, 1, 128], "output": [1, 1], "stateN": [2, 1, 128]}
    values = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, size) for name, size in sizes.items()}
    constants = [
        helper.make_tensor("axes", TensorProto.INT64, [1], [1]),
        helper.make_tensor("gain", TensorProto.FLOAT, [], [20.0]),
        helper.make_tensor("one", TensorProto.FLOAT, [], [1.0]),
    ]
    nodes = [
        helper.make_node("Abs", ["input"], ["size"]),
        helper.make_node("ReduceMean", ["size", "axes"], ["mean"], keepdims=1),
        helper.make_node("Mul", ["mean", "gain"], ["louder"]),
        helper.make_node("Min", ["louder", "one"], ["output"]),
        helper.make_node("Identity", ["state"], ["stateN"]),
    ]
    takes, gives = [values["input"], values["state"]], [values["output"], values["stateN"]]
    graph = helper.make_graph(nodes, "loudness", takes, gives, constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
