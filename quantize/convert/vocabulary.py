"""Reads the tokenizer of a model: tokens, kinds, scores or merges, special tokens, chat template."""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

import gguf
import msgspec
from tokenizers import Tokenizer

from quantize.convert.checkpoint import Checkpoint
from quantize.convert.tensor_map import Metadata
from quantize.errors import BadFile, UnsupportedModel
from quantize.files.byte_source import FileSource
from quantize.files.gguf_file import ValueType
from quantize.files.gguf_write import array, scalar

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_LOOK_SPECIAL = frozenset({"<pad>", "<mask>", "<2mass>", "[@BOS@]"})
_ADDED_SCORE, _MISSING_SCORE = -1000.0, -10000.0  # Source: llama.cpp, conversion/base.py
_MAX_TEMPLATE_BYTES = 1024 * 1024


@dataclass
class Vocabulary:
    """Tokens ordered by id. `model` is GGUF's name: "gpt2" (BPE), "llama" (SentencePiece), "bert"."""

    model: str
    tokens: list[bytes] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)

    def set(self, number: int, text: bytes, kind: int, score: float = 0.0) -> None:
        self.tokens[number], self.kinds[number] = text, kind
        if self.scores:
            self.scores[number] = score


def read_vocabulary(source: Checkpoint, vocab_size: int, *, phi: bool = False, bert: bool = False) -> Vocabulary:
    """The vocabulary of a folder, padded to `vocab_size` tokens.

    `phi`: added tokens that are not marked special are user-defined even if they look special. `bert`: WordPiece is
    allowed. Raises: BadFile: no tokenizer, or an invalid one. UnsupportedModel: llama.cpp lacks the algorithm.
    """
    config = source.optional_json("tokenizer_config.json")
    model_file = source.folder / "tokenizer.model"
    if model_file.is_file() and config.get("tokenizer_class") != "GPT2Tokenizer" and _is_protobuf(model_file):
        return _from_sentencepiece(source, model_file, vocab_size, phi=phi)
    if not (source.folder / "tokenizer.json").is_file():
        raise BadFile(str(source.folder), "no tokenizer: neither tokenizer.json nor tokenizer.model is there")
    data = source.json_file("tokenizer.json")
    model = data.get("model")
    if bert and isinstance(model, dict) and model.get("type") == "WordPiece":
        return _from_wordpiece(source, data, vocab_size)
    if not isinstance(model, dict) or model.get("type") != "BPE":
        kind = model.get("type") if isinstance(model, dict) else None
        raise UnsupportedModel(
            str(source.folder),
            f"a tokenizer of type {kind!r} (BPE and SentencePiece are known, WordPiece for BERT)",
        )
    if model.get("byte_fallback"):
        return _from_merged_sentencepiece(data, vocab_size)
    return _from_bpe(source, vocab_size)


def vocabulary_size(source: Checkpoint, stated: int) -> int:
    """Real number of tokens in the tokenizer (Gemma 3 pads its embedding beyond them)."""
    model_file = source.folder / "tokenizer.model"
    if model_file.is_file() and _is_protobuf(model_file):
        return stated
    data = source.json_file("tokenizer.json")
    return min(stated, len(data["model"]["vocab"]) + len(data.get("added_tokens", [])))


def open_tokenizer(source: Checkpoint) -> Tokenizer:
    """The folder's Hugging Face tokenizer. Raises: BadFile: tokenizer.json is missing or invalid."""
    source.json_file("tokenizer.json")  # checks its size first
    try:
        return Tokenizer.from_file(str(source.folder / "tokenizer.json"))
    except Exception as error:  # the library raises no more specific type
        raise BadFile(str(source.folder / "tokenizer.json"), f"no tokenizer: {str(error)[:200]}") from error


def put_vocabulary(meta: Metadata, source: Checkpoint, vocab: Vocabulary, pre: str) -> None:
    """Write all tokenizer data into the metadata."""
    meta.put("tokenizer.ggml.model", vocab.model)
    meta.put("tokenizer.ggml.pre", pre)
    meta.put_array("tokenizer.ggml.tokens", vocab.tokens, ValueType.STRING)
    if vocab.scores:
        meta.put_array("tokenizer.ggml.scores", vocab.scores, ValueType.FLOAT32)
    meta.put_array("tokenizer.ggml.token_type", vocab.kinds, ValueType.INT32)
    _put_special(meta, source.folder, len(vocab.tokens), load_merges=vocab.model == "gpt2")


def _is_protobuf(path: Path) -> bool:
    try:
        read_pieces(path)
    except BadFile:
        return False
    return True


def looks_special(text: str) -> bool:
    """Whether a token looks like a control token. Some folders do not mark them.

    Source: llama.cpp, does_token_look_special.
    """
    bars = any(text.startswith(f"<{bar}") and text.endswith(f"{bar}>") for bar in ("|", "\uff5c"))
    return text in _LOOK_SPECIAL or bars or (text.startswith("<unused") and text.endswith(">"))


def _from_sentencepiece(source: Checkpoint, path: Path, vocab_size: int, *, phi: bool) -> Vocabulary:
    vocab = _padded("llama", vocab_size)
    for number, (text, score, kind) in enumerate(read_pieces(path)):
        if number < vocab_size:
            # llama.cpp's converter takes user-defined tokens only from the folder's JSON files.
            vocab.set(number, text, TokenType.NORMAL if kind is TokenType.USER_DEFINED else kind, score)
    for name, number in source.optional_json("added_tokens.json").items():
        if isinstance(number, int) and 0 <= number < vocab_size:
            vocab.set(number, name.encode(), TokenType.USER_DEFINED, _ADDED_SCORE)
    added = source.optional_json("tokenizer_config.json").get("added_tokens_decoder", {})
    rows = [(int(number), token) for number, token in added.items()]
    if phi:
        rows += [(int(t["id"]), t) for t in source.optional_json("tokenizer.json").get("added_tokens", [])]
    for number, token in rows:
        if 0 <= number < vocab_size:
            raw, added_kind = _added(token["content"], special=bool(token.get("special")), trust_looks=not phi)
            vocab.set(number, raw, added_kind, _ADDED_SCORE)
    return vocab


def _added(text: str, *, special: bool, trust_looks: bool = True) -> tuple[bytes, int]:
    if special or (trust_looks and looks_special(text)):
        return text.encode(), TokenType.CONTROL
    # llama.cpp compares user-defined tokens with text that contains normal spaces.
    return (text.replace("\u2581", " ") if trust_looks else text).encode(), TokenType.USER_DEFINED


def _from_merged_sentencepiece(data: dict[str, Any], vocab_size: int) -> Vocabulary:
    """A SentencePiece vocabulary that is stored only as merges.

    llama.cpp joins the pair with the highest score, Hugging Face the pair with the earliest merge. A token's score
    is therefore the negated rank of the merge that creates it.
    """
    rank: dict[str, int] = {}
    for number, merge in enumerate(data["model"].get("merges", [])):
        pair = merge.split(" ") if isinstance(merge, str) else merge
        rank.setdefault("".join(pair), number)
    vocab = _padded("llama", vocab_size)
    unknown = data["model"].get("unk_token")
    for text, number in data["model"]["vocab"].items():
        if not 0 <= number < vocab_size:
            raise BadFile("tokenizer.json", f"token {number} is beyond the vocabulary of {vocab_size}")
        kind = TokenType.BYTE if _BYTE_TOKEN.fullmatch(text) else TokenType.NORMAL
        if text == unknown:
            kind = TokenType.UNKNOWN
        vocab.set(number, text.encode(), kind, -float(rank[text]) if text in rank else _ADDED_SCORE)
    for token in data.get("added_tokens", []):
        if token["content"] != unknown:
            raw, added_kind = _added(token["content"], special=bool(token.get("special")))
            vocab.set(int(token["id"]), raw, added_kind, _ADDED_SCORE)
    return vocab


def _from_bpe(source: Checkpoint, vocab_size: int) -> Vocabulary:
    tokenizer = open_tokenizer(source)
    vocab = _padded("gpt2", vocab_size)
    for text, number in tokenizer.get_vocab(with_added_tokens=True).items():
        if not 0 <= number < vocab_size:
            raise BadFile(str(source.folder), f"token {number} is beyond the vocabulary of {vocab_size}")
        vocab.set(number, text.encode(), TokenType.NORMAL)
    for number, token in tokenizer.get_added_tokens_decoder().items():
        text = token.content
        if not token.normalized:
            text = tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids, skip_special_tokens=False)
        encoded, kind = _added(text, special=token.special)
        vocab.set(number, encoded, kind)
    return vocab


def _from_wordpiece(source: Checkpoint, data: dict[str, Any], vocab_size: int) -> Vocabulary:
    """BERT's pieces: GGUF marks word beginnings, WordPiece marks continuations.

    Raises: UnsupportedModel: text is not lowercased in the way of llama.cpp's tokenizer.
    """
    normalizer = data.get("normalizer") or {}
    if not normalizer.get("lowercase") or normalizer.get("strip_accents") is False:
        raise UnsupportedModel(str(source.folder), "a cased BERT tokenizer; llama.cpp's lowers every text")
    special = {token["content"] for token in data.get("added_tokens", []) if token.get("special")}
    vocab = _padded("bert", vocab_size)
    for text, number in data["model"]["vocab"].items():
        if not 0 <= number < vocab_size:
            raise BadFile(str(source.folder), f"token {number} is beyond the vocabulary of {vocab_size}")
        if text in special:
            kind = TokenType.UNKNOWN if text == data["model"].get("unk_token") else TokenType.CONTROL
            vocab.set(number, text.encode(), kind)
        else:
            marked = text.removeprefix("##") if text.startswith("##") else f"\u2581{text}"
            vocab.set(number, marked.encode(), TokenType.NORMAL)
    return vocab


def _padded(model: str, size: int) -> Vocabulary:
    tokens = [f"[PAD{i}]".encode() for i in range(size)]
    scores = [_MISSING_SCORE] * size if model == "llama" else []
    return Vocabulary(model, tokens, [int(TokenType.UNUSED)] * size, scores)


def _put_special(meta: Metadata, folder: Path, num_tokens: int, *, load_merges: bool) -> None:
    for name in ("chat_template.jinja", "chat_template.json"):
        path = folder / name
        if path.is_file() and path.stat().st_size > _MAX_TEMPLATE_BYTES:
            raise BadFile(str(path), f"{path.stat().st_size} bytes; at most {_MAX_TEMPLATE_BYTES} are read")
    try:
        special = gguf.SpecialVocab(folder, load_merges=load_merges, n_vocab=None if load_merges else num_tokens)
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise BadFile(str(folder), f"the tokenizer's files are broken: {str(error)[:200]}") from error
    writer = gguf.GGUFWriter(None, meta.architecture)
    special.add_to_gguf(writer, quiet=True)
    put_written(meta, writer)


def put_written(meta: Metadata, writer: Any) -> None:
    """Copy the metadata collected by the gguf library's GGUFWriter."""
    for key, value in writer.kv_data[0].items():
        if key == "general.architecture":
            continue
        kind = ValueType(int(value.type))
        if kind is ValueType.ARRAY:
            items = list(value.value)
            element = ValueType(int(value.sub_type)) if value.sub_type is not None else _element(items)
            meta[key] = array(items, element)
        else:
            meta[key] = scalar(value.value, kind)


def _element(items: list[Any]) -> ValueType:
    """The element type that the gguf library uses for a list."""
    if not items:
        raise msgspec.ValidationError("an empty list has no type")
    kinds = {str: ValueType.STRING, bytes: ValueType.STRING, bool: ValueType.BOOL, float: ValueType.FLOAT32}
    return kinds.get(type(items[0]), ValueType.INT32)


# Reads the vocabulary of a SentencePiece model file without the sentencepiece library.
#
# Source of the field numbers: sentencepiece_model.proto (ModelProto.pieces = 1; piece = 1, score = 2, type = 3).

_MAX_BYTES = 64 * 1024 * 1024
_MAX_PIECES = 1_000_000
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class TokenType(IntEnum):
    """Kinds of tokens; SentencePiece and GGUF use the same numbers."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


Piece = tuple[bytes, float, TokenType]


def read_pieces(path: Path) -> list[Piece]:
    """Text, score and kind of every piece. Raises: BadFile: not a SentencePiece model. Unreadable."""
    with FileSource(path) as source:
        if source.size > _MAX_BYTES:
            raise BadFile(str(path), f"{source.size} bytes; at most {_MAX_BYTES} are read")
        raw = source.read_at(0, source.size)
    pieces: list[Piece] = []
    try:
        for number, kind, value in _fields(raw):
            if number == 1 and kind == _BYTES:
                pieces.append(_piece(value))
            if len(pieces) > _MAX_PIECES:
                raise BadFile(str(path), f"more than {_MAX_PIECES} pieces")
    except (ValueError, IndexError, struct.error) as error:
        raise BadFile(str(path), "not a SentencePiece model") from error
    if not pieces:
        raise BadFile(str(path), "not a SentencePiece model")
    return pieces


def _piece(raw: bytes) -> Piece:
    text, score, kind = b"", 0.0, TokenType.NORMAL
    for number, wire, value in _fields(raw):
        if number == 1 and wire == _BYTES:
            text = value
        elif number == 2 and wire == _FIXED32:
            (score,) = struct.unpack("<f", value)
        elif number == 3 and wire == _VARINT:
            kind = TokenType(int.from_bytes(value, "little"))
    text.decode()
    return text, score, kind


def _fields(raw: bytes) -> Iterator[tuple[int, int, bytes]]:
    """(field number, wire type, value) of a message; numbers are returned as little-endian bytes."""
    at, end = 0, len(raw)
    while at < end:
        tag, at = _varint(raw, at)
        wire = tag & 7
        if wire == _VARINT:
            number, at = _varint(raw, at)
            value = number.to_bytes(8, "little")
        elif wire == _BYTES:
            size, at = _varint(raw, at)
            value, at = raw[at : at + size], at + size
        elif wire in {_FIXED32, _FIXED64}:
            size = 4 if wire == _FIXED32 else 8
            value, at = raw[at : at + size], at + size
        else:
            raise ValueError(f"wire type {wire}")
        if at > end:
            raise ValueError("a field beyond the end")
        yield tag >> 3, wire, value


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        byte = raw[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return result & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
