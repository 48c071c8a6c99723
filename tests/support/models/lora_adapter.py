"""LoRA adapters with random weights for the bundled model."""

import gguf
import numpy as np

QUERIES = {"attn_q": (256, 256)}


def write_adapter(path, strength, seed=0, parts=QUERIES, layers=8):
    """Write a random rank-4 LoRA adapter for matrices, as (columns, rows), of each layer of the bundled model."""
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 4.0)
    for layer in range(layers):
        for part, (columns, rows) in parts.items():
            name = f"blk.{layer}.{part}.weight"
            writer.add_tensor(f"{name}.lora_a", rng.normal(0, strength, (4, columns)).astype(np.float32))
            writer.add_tensor(f"{name}.lora_b", rng.normal(0, strength, (rows, 4)).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)
