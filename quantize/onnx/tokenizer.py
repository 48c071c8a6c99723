"""Converts a GGUF vocabulary to `tokenizer.json`, so that a text gets the same ids in both runtimes."""

from typing import Any, Final

import numpy as np

from quantize.errors import BadFile, UnsupportedModel
from quantize.files.gguf_header import GgufFile, LazyArray

# llama.cpp's splitting of text before merging. Source: llama.cpp, llama-vocab.cpp (regex_exprs), as one pattern
# each.
_GPT4_STYLE: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLITS: Final[dict[str, str | None]] = {
    "gpt-2": None,  # the byte-level pre-tokenizer's default
    "smollm": None,  # the same after splitting single digits
    "qwen2": _GPT4_STYLE.format(digits=r"\p{N}"),
    "deepseek-r1-qwen": _GPT4_STYLE.format(digits=r"\p{N}"),
    "llama-bpe": _GPT4_STYLE.format(digits=r"\p{N}{1,3}"),
    "llama3": _GPT4_STYLE.format(digits=r"\p{N}{1,3}"),
}
# Token types. Source: llama.h, enum llama_token_type.
_CONTROL, _USER_DEFINED = 3, 4
_MERGE_IGNORED: Final = ("llama-bpe", "llama3")


def tokenizer_json(head: GgufFile) -> dict[str, Any]:
    """The content of `tokenizer.json`.

    Raises: UnsupportedModel: not a byte-level BPE vocabulary with a known splitting.
    """
    meta = head.metadata
    kind, pre = meta.get("tokenizer.ggml.model"), str(meta.get("tokenizer.ggml.pre", "gpt-2"))
    if kind != "gpt2" or pre not in _SPLITS:
        supported = ", ".join(_SPLITS)
        raise UnsupportedModel(
            head.name, f"the tokenizer {kind}/{pre} cannot be converted to ONNX (known: gpt2 with {supported})"
        )
    tokens = texts(head, "tokenizer.ggml.tokens")
    types = token_types(head, len(tokens))
    added = [
        {
            "id": i,
            "content": tokens[i],
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": bool(types[i] == _CONTROL),
        }
        for i in np.flatnonzero((types == _CONTROL) | (types == _USER_DEFINED)).tolist()
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": _pre_tokenizer(_SPLITS[pre], digits=pre == "smollm"),
        "post_processor": _begin(head, tokens),
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre in _MERGE_IGNORED,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [merge.split(" ", 1) for merge in texts(head, "tokenizer.ggml.merges")],
        },
    }


def tokenizer_config(head: GgufFile) -> dict[str, Any]:
    """The content of `tokenizer_config.json`: special tokens by name, including those for fill-in-the-middle."""
    tokens = texts(head, "tokenizer.ggml.tokens")
    keys = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding"}
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": adds_bos(head)}
    for key, name in keys.items():
        at = head.metadata.get(f"tokenizer.ggml.{name}_token_id")
        if isinstance(at, int) and 0 <= at < len(tokens):
            config[key] = tokens[at]
    template = head.metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        config["chat_template"] = template
    fim = {
        name: tokens[at]
        for name in ("pre", "suf", "mid", "pad", "rep", "sep")
        if isinstance(at := head.metadata.get(f"tokenizer.ggml.fim_{name}_token_id"), int) and 0 <= at < len(tokens)
    }
    if fim:
        config["fim_tokens"] = fim
    return config


def adds_bos(head: GgufFile) -> bool:
    """Whether a text starts with the BOS token."""
    default = head.metadata.get("tokenizer.ggml.pre") in _MERGE_IGNORED
    return bool(head.metadata.get("tokenizer.ggml.add_bos_token", default))


def end_tokens(head: GgufFile) -> list[int]:
    """Tokens that end a response."""
    keys = ("eos", "eot", "eom")
    ids = [head.metadata.get(f"tokenizer.ggml.{key}_token_id") for key in keys]
    tokens = texts(head, "tokenizer.ggml.tokens")
    # As in llama.cpp: these end a turn regardless of the header. Source: llama-vocab.cpp, special_eog_ids.
    marks = {"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>", "<|end_of_text|>"}
    marked = [i for i, token in enumerate(tokens) if token in marks]
    return list(dict.fromkeys([t for t in ids if isinstance(t, int) and 0 <= t < len(tokens)] + marked))


def token_types(head: GgufFile, count: int) -> np.ndarray[Any, Any]:
    """The type of each token, shape (count,). Raises: BadFile: their number differs from the tokens'."""
    value = head.metadata.get("tokenizer.ggml.token_type")
    types = (
        value.numbers() if isinstance(value, LazyArray) else np.array(value if value is not None else [1] * count)
    )
    if len(types) != count:
        raise BadFile(head.name, f"{len(types)} token types for {count} tokens")
    return types


def texts(head: GgufFile, key: str) -> list[str]:
    """The strings of an array. Raises: UnsupportedModel: the key is missing."""
    value = head.metadata.get(key)
    if isinstance(value, LazyArray):
        return [text.decode("utf-8", "replace") for text in value.strings()]
    if isinstance(value, tuple):
        return [str(text) for text in value]
    raise UnsupportedModel(head.name, f"it has no {key}")


def _pre_tokenizer(pattern: str | None, *, digits: bool) -> dict[str, Any]:
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": pattern is None}
    if digits:
        return {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, level]}
    if pattern is None:
        return level
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, level]}


def _begin(head: GgufFile, tokens: list[str]) -> dict[str, Any] | None:
    """A post-processor that adds the BOS token, or None if the model uses none."""
    at = head.metadata.get("tokenizer.ggml.bos_token_id")
    if not adds_bos(head) or not isinstance(at, int) or not 0 <= at < len(tokens):
        return None
    first = {"SpecialToken": {"id": tokens[at], "type_id": 0}}
    body = [{"Sequence": {"id": name, "type_id": 0}} for name in ("A", "B")]
    marks = {tokens[at]: {"id": tokens[at], "ids": [at], "tokens": [tokens[at]]}}
    return {
        "type": "TemplateProcessing",
        "single": [first, body[0]],
        "pair": [first, *body],
        "special_tokens": marks,
    }
