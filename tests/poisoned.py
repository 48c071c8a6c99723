"""A copy of the bundled model in which one token's embedding is not a number: its prompts fail, all others work."""

from pathlib import Path

import gguf
import numpy as np


def write_poisoned(source: Path, target: Path, token: int) -> None:
    """Untie the head, so that only prompts with `token` are affected."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, str(reader.fields["general.architecture"].contents()))
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, inner)
    for tensor in reader.tensors:
        data = np.array(tensor.data)
        if tensor.name == "token_embd.weight":
            writer.add_tensor("output.weight", data.copy(), raw_dtype=tensor.tensor_type)
            data[token] = np.nan
        writer.add_tensor(tensor.name, data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
