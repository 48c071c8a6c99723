"""Converts tokens to bytes and back with a folder's `tokenizer.json`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer

from engine.runner.generation.vocabulary import Vocabulary
from engine.runner.onnx.errors import LoadFailed
from engine.runner.text_limits import SLICE_BYTES, SLICE_LOSS, Stopped, TooManyTokens

MAX_TOKENIZER_BYTES: Final = 64 << 20
_SPACE: Final = "\u2581"  # SentencePiece's character for spaces


class FolderVocabulary(Vocabulary):
    """The vocabulary of an ONNX folder; see `Vocabulary` for the fields. Tokenizing is safe from any thread."""

    spells = False  # normalizers may remove or join any characters

    def __init__(self, path: Path, ends: list[int], num_logits: int) -> None:
        """`num_logits` is the width of the model's output, which may be padded beyond the tokens.

        Raises: LoadFailed: the file is missing, too large or not a tokenizer.
        """
        text = _read(path)
        try:
            self._parsing = Tokenizer.from_str(text)
            self._plain = Tokenizer.from_str(text)
            described = json.loads(text)
        except Exception as error:  # the library has no narrower exception
            raise LoadFailed(f"{path.name} is not a tokenizer: {str(error)[:200]}") from error
        for tokenizer in (self._parsing, self._plain):
            tokenizer.no_truncation()
            tokenizer.no_padding()
        self._plain.encode_special_tokens = True
        added = self._parsing.get_added_tokens_decoder()
        self.size = num_logits or self._parsing.get_vocab_size(with_added_tokens=True)
        to_bytes = _piece_bytes(described.get("decoder"))
        pieces = [b""] * self.size
        for token, i in self._parsing.get_vocab(with_added_tokens=True).items():
            if 0 <= i < self.size:
                pieces[i] = token.encode("utf-8", "replace") if i in added else to_bytes(token)
        self.pieces = pieces
        self.control = frozenset(i for i, token in added.items() if token.special and i < self.size)
        self.ends = frozenset(i for i in ends if 0 <= i < self.size)

    def tokenize(
        self,
        text: str,
        *,
        add_special: bool,
        parse_special: bool,
        limit: int | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> list[int]:
        """Token ids of `text`; see `Vocabulary.tokenize`."""
        tokenizer = self._parsing if parse_special else self._plain
        whole = text.encode("utf-8", "replace").decode()  # the library does not accept lone surrogates
        if limit is not None and len(whole) > SLICE_BYTES:
            count = 0
            for begin in range(0, len(whole), SLICE_BYTES):
                if stopped():
                    raise Stopped
                part = tokenizer.encode(whole[begin : begin + SLICE_BYTES], add_special_tokens=False)
                count += max(len(part.ids) - SLICE_LOSS, 0)
                if count > limit:
                    raise TooManyTokens(count)
        return list(tokenizer.encode(whole, add_special_tokens=add_special).ids)

    def pair(self, query: str, document: str) -> Any:
        """Encode a query and a document for a reranker: ids and type ids."""
        return self._parsing.encode(query, document)

    def encoding(self, text: str) -> Any:
        return self._parsing.encode(text)


def _read(path: Path) -> str:
    try:
        size = path.stat().st_size
        if size > MAX_TOKENIZER_BYTES:
            raise LoadFailed(f"{path.name} has {size} bytes, at most {MAX_TOKENIZER_BYTES} are read")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LoadFailed(f"{path.name} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _piece_bytes(decoder: Any) -> Any:
    """Return the function from a token's text to its bytes for this tokenizer's decoder."""
    if "ByteLevel" in json.dumps(decoder):
        table = _byte_characters()
        return lambda token: b"".join(table.get(c, c.encode()) for c in token)
    if "WordPiece" in json.dumps(decoder):
        return lambda token: token[2:].encode() if token.startswith("##") else b" " + token.encode()

    def sentencepiece(token: str) -> bytes:
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            try:
                return bytes([int(token[3:5], 16)])
            except ValueError:
                pass
        return token.replace(_SPACE, " ").encode()

    return sentencepiece


def _byte_characters() -> dict[str, bytes]:
    """Return the character for each byte in byte-level BPE. Source: GPT-2's published table."""
    shown = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(b): bytes([b]) for b in shown}
    hidden = (b for b in range(256) if b not in set(shown))
    return table | {chr(256 + n): bytes([b]) for n, b in enumerate(hidden)}
