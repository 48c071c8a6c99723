"""Copies of a GGUF file with one realistic defect each."""

from pathlib import Path
from typing import Any

from quantize.files.gguf_file import read_gguf
from quantize.files.gguf_write import GgufWriter, TensorSlot, copied_metadata, scalar

# Kind of defect, and part of llama.cpp's error message. The last two end its process.
BROKEN = {
    "architecture": "unknown model architecture: 'llamaX'",
    "no-merges": "cannot find tokenizer merges in model file",
    "wrong-type": "llama.context_length has wrong type str",
    "no-tensor": "tensor 'output_norm.weight' not found",
    "renamed": "tensor 'output_norm.weight' not found",
    "too-many-layers": "GGML_ASSERT(hparams.n_layer_all > 0",
    "no-bos": "GGML_ASSERT(special_bos_id",
}
NORM = "output_norm.weight"


def write_broken(source_path: Path, path: Path, kind: str) -> Path:
    """Write a copy of the source with this defect, and return its path."""
    source = read_gguf(source_path)
    said: dict[str, Any] = dict(copied_metadata(source))
    tensors = list(source.tensors)
    if kind == "architecture":
        said["general.architecture"] = scalar("llamaX")
    elif kind == "no-merges":
        del said["tokenizer.ggml.merges"]
    elif kind == "wrong-type":
        said["llama.context_length"] = scalar("2048")
    elif kind == "no-tensor":
        tensors = [tensor for tensor in tensors if tensor.name != NORM]
    elif kind == "too-many-layers":
        said["llama.block_count"] = scalar(100_000)
    elif kind == "no-bos":
        said["tokenizer.ggml.model"] = scalar("t5")
        del said["tokenizer.ggml.bos_token_id"]
        said["tokenizer.ggml.add_bos_token"] = scalar(True)
    names = {
        tensor.name: "norm.weight" if kind == "renamed" and tensor.name == NORM else tensor.name
        for tensor in tensors
    }
    writer = GgufWriter(path, said, [TensorSlot(names[t.name], t.shape, t.ggml_type) for t in tensors])
    for tensor in tensors:
        writer.write(names[tensor.name], [source.tensor_bytes(tensor)])
    writer.close()
    return path
