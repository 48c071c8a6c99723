"""Compares attention by Tessera's CPU kernels with llama.cpp's for all architectures, in a separate process.

    python -m tests.support.models.attended_models FOLDER

Prints one JSON line per architecture: how much the logits differ from plain attention with a 32-bit cache, with
Tessera's kernels and with llama.cpp's fused attention, and whether these two differ in any bit (which proves that
Tessera's kernels were used). The difference is the largest root mean square divided by the spread, over a prompt
and over tokens after 600 others. Then one line per type of a mixture's weights: the same with Tessera's kernels for
its products, and llama.cpp's attention.
"""

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from devices.backends.cpu_kernels import take, tiles_library
from engine.runner.llama.native.llama_api import library_folder, start_backends
from engine.runner.llama.native.self_check import difference
from quantize.ggml_types import GgmlType
from tests.support.models.architectures import ARCHITECTURES, write_architecture
from tests.support.models.shapes import Q, scaled, write_shape

PROMPT, DEPTH, STEPS, CELLS = 150, 600, 3, 1024


def logits(api: Any, model: Any, *, fused: bool) -> np.ndarray:
    """Logits as (1 + STEPS, vocabulary): after a prompt, then of single tokens after a long text."""
    params = api.llama_context_default_params()
    params.n_ctx = params.n_batch = CELLS
    params.n_ubatch = 96
    params.flash_attn_type = int(fused)
    params.type_k = params.type_v = int(fused)  # F16, else F32
    params.n_threads = params.n_threads_batch = 1
    context = api.llama_init_from_model(model, params)
    if not context:
        raise SystemExit("no context")
    vocabulary = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))
    tokens = [(7 * i + 13) % (vocabulary - 20) + 5 for i in range(DEPTH + STEPS)]
    rows = []
    for begin, end in ((0, PROMPT), (PROMPT, DEPTH), *((DEPTH + i, DEPTH + i + 1) for i in range(STEPS))):
        array = (ctypes.c_int32 * (end - begin))(*tokens[begin:end])
        if api.llama_decode(context, api.llama_batch_get_one(array, end - begin)) != 0:
            raise SystemExit("llama_decode failed")
        rows.append(np.ctypeslib.as_array(api.llama_get_logits_ith(context, -1), (vocabulary,)).copy())
    api.llama_free(context)
    return np.stack([rows[0], *rows[2:]])


def off(exact: np.ndarray, rows: np.ndarray) -> float:
    """The largest difference between two sets of rows (n, vocabulary)."""
    return max(difference(one, other) for one, other in zip(exact, rows, strict=True))


def compare(api: Any, library: Path, name: str, path: Path, types: tuple[int, ...], *, attention: bool) -> None:
    """Print how far Tessera's kernels and llama.cpp's are off, and whether they differ at all."""
    print(name, file=sys.stderr, flush=True)
    model = api.llama_model_load_from_file(str(path).encode(), api.llama_model_default_params())
    take(library, (), attention=False)
    exact, theirs = logits(api, model, fused=False), logits(api, model, fused=True)
    take(library, types, attention=attention)
    ours = logits(api, model, fused=True)
    print(json.dumps([name, off(exact, ours), off(exact, theirs), not np.array_equal(theirs, ours)]), flush=True)
    api.llama_model_free(model)


def main() -> None:
    """Check all architectures that generate from tokens alone."""
    api = start_backends(tiles=("attention",))
    library = tiles_library(library_folder())
    assert library is not None
    for name, architecture in ARCHITECTURES.items():
        if architecture.encoder or architecture.arch == "t5":
            continue
        path = write_architecture(Path(sys.argv[1]) / "m.gguf", architecture)
        compare(api, library, name, path, (), attention=True)
    for kind in (Q.Q8_0, Q.Q4_0):  # the file's blocks, and llama.cpp's copy
        path = write_shape(Path(sys.argv[1]) / "m.gguf", scaled("qwen3moe", layers=2, qtype=kind))
        compare(api, library, kind.name, path, (GgmlType[kind.name],), attention=False)


if __name__ == "__main__":
    main()
