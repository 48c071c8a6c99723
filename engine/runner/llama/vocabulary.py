"""Tokens to bytes and back. The piece table is made once: no detokenizing call per generated token."""

import ctypes
from typing import Any


class Vocabulary:
    """The loaded model's vocabulary. Tokenizing is safe from any thread.

    `pieces[token]` are the bytes of each token with control tokens spelled out; `control` holds the tokens
    that are not shown by default; `ends` those that end a generation.
    """

    def __init__(self, api: Any, vocab: Any) -> None:
        self._api = api
        self._vocab = vocab
        self.size = int(api.llama_vocab_n_tokens(vocab))
        self.pieces = self._piece_table()
        is_eog, is_control = api.llama_vocab_is_eog, api.llama_vocab_is_control
        self.ends = frozenset(t for t in range(self.size) if is_eog(vocab, t))
        self.control = frozenset(t for t in range(self.size) if is_control(vocab, t))

    def _piece_table(self) -> list[bytes]:
        to_piece, vocab = self._api.llama_token_to_piece, self._vocab
        length = 256
        buffer = ctypes.create_string_buffer(length)
        pieces = []
        for token in range(self.size):
            n = to_piece(vocab, token, buffer, length, 0, True)
            if n < 0:
                length = -n
                buffer = ctypes.create_string_buffer(length)
                n = to_piece(vocab, token, buffer, length, 0, True)
            pieces.append(buffer.raw[: max(n, 0)])
        return pieces

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of `text`; `add_special` adds what the model wants at the start (BOS)."""
        data = text.encode("utf-8", "surrogatepass")
        capacity = len(data) + 8
        tokens = (ctypes.c_int32 * capacity)()
        n = self._api.llama_tokenize(self._vocab, data, len(data), tokens, capacity, add_special, parse_special)
        if n < 0:
            tokens = (ctypes.c_int32 * -n)()
            n = self._api.llama_tokenize(self._vocab, data, len(data), tokens, -n, add_special, parse_special)
        return tokens[: max(n, 0)]
