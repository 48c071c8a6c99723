"""What llama.cpp makes of text with the vocabulary of a GGUF file; to be used in child processes."""

import ctypes
from pathlib import Path

from quantize.native.libraries import llama


def tokenize(path: Path, texts: list[str]) -> list[list[int]] | None:
    """Token ids of each text, special tokens parsed, nothing added. None: llama.cpp refuses the vocabulary."""
    lib = llama()
    params = lib.llama_model_default_params()
    params.vocab_only = True
    model = lib.llama_model_load_from_file(str(path).encode(), params)
    if not model:
        return None
    try:
        vocab = lib.llama_model_get_vocab(model)
        return [_ids(lib, vocab, text) for text in texts]
    finally:
        lib.llama_model_free(model)


def _ids(lib: object, vocab: object, text: str) -> list[int]:
    raw = text.encode()
    size = len(raw) + 8
    out = (ctypes.c_int32 * size)()
    count = lib.llama_tokenize(vocab, raw, len(raw), out, size, False, True)  # type: ignore[attr-defined] # untyped
    return list(out[: max(0, count)])
