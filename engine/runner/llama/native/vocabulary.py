"""Converts tokens to bytes and back. A token's piece is requested once, not for every generated token."""

import ctypes
import re
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property
from itertools import compress, repeat
from typing import Any, Final, overload

from engine.runner.generation.vocabulary import Vocabulary
from engine.runner.text_limits import SLICE_BYTES, SLICE_LOSS, Stopped, TooManyTokens

# llama.h, enum llama_vocab_type: types whose tokens together contain every byte of the text.
_SPELLING_TYPES: Final = frozenset({1, 2})  # SPM, BPE
# llama.h, enum llama_token_attr: tokens that are searched in a text before all others.
_UNKNOWN, _CONTROL, _USER_DEFINED = 1, 8, 16
# The time of llama_tokenize grows with the square of the number of control tokens in a text (1 MiB of <|im_start|>:
# 24 s), so a text is tokenized in parts. Measured: log-archive.md, abuse.
PART_BYTES: Final = 16 << 10
# No published vocabulary has a token of half this length (OpenAI's and Llama 3's: 128). The server uses this limit;
# the runner uses the vocabulary itself, once a long text makes it scan all tokens.
LONGEST_TOKEN_BYTES: Final = 512


class Pieces(Sequence[bytes]):
    """The bytes of each token, with control tokens as text, requested at first use. Safe from any thread."""

    def __init__(self, api: Any, vocab: Any, size: int) -> None:
        self._to_piece = api.llama_token_to_piece
        self._vocab = vocab
        self._cached: list[bytes | None] = [None] * size

    def __len__(self) -> int:
        return len(self._cached)

    @overload
    def __getitem__(self, token: int) -> bytes: ...
    @overload
    def __getitem__(self, token: slice) -> list[bytes]: ...
    def __getitem__(self, token: int | slice) -> bytes | list[bytes]:
        if isinstance(token, slice):
            return [self[t] for t in range(*token.indices(len(self)))]
        piece = self._cached[token]
        if piece is None:
            piece = self._cached[token] = self._token_bytes(token % len(self))
        return piece

    def _token_bytes(self, token: int) -> bytes:
        length = 256
        while True:
            buffer = ctypes.create_string_buffer(length)
            n = self._to_piece(self._vocab, token, buffer, length, 0, True)
            if n >= 0:
                return buffer.raw[:n]
            length = -n


class TokenSet(AbstractSet[int]):
    """The tokens for which llama.cpp returns true.

    Single tokens are checked directly; only iteration checks all.
    """

    def __init__(self, holds: Callable[[Any, int], bool], vocab: Any, size: int) -> None:
        self._holds = holds
        self._vocab = vocab
        self._size = size
        self._all: frozenset[int] | None = None

    def __contains__(self, token: object) -> bool:
        if self._all is not None:
            return token in self._all
        return isinstance(token, int) and 0 <= token < self._size and bool(self._holds(self._vocab, token))

    def __iter__(self) -> Iterator[int]:
        return iter(self._every())

    def __len__(self) -> int:
        return len(self._every())

    @classmethod
    def _from_iterable(cls, it: Any) -> frozenset[int]:  # type: ignore[override]  # what & and | make is a plain set
        return frozenset(it)

    def _every(self) -> frozenset[int]:
        if self._all is None:
            tokens = range(self._size)
            self._all = frozenset(compress(tokens, map(self._holds, repeat(self._vocab), tokens)))
        return self._all


class LlamaVocabulary(Vocabulary):
    """The vocabulary of a loaded model."""

    def __init__(self, api: Any, vocab: Any) -> None:
        self._api = api
        self._vocab = vocab
        self.size = int(api.llama_vocab_n_tokens(vocab))
        self.pieces: Sequence[bytes] = Pieces(api, vocab, self.size)
        self.ends: AbstractSet[int] = TokenSet(api.llama_vocab_is_eog, vocab, self.size)
        self.control: AbstractSet[int] = TokenSet(api.llama_vocab_is_control, vocab, self.size)
        self.spells = int(api.llama_vocab_type(vocab)) in _SPELLING_TYPES

    @cached_property
    def longest(self) -> int:
        """The maximum bytes of a text in one token; 0: there is no such limit."""
        if not self.spells:
            return 0
        texts = map(self._api.llama_vocab_get_text, repeat(self._vocab), range(self.size))
        return max(map(len, texts), default=0)

    @cached_property
    def _searched_first(self) -> dict[bool, tuple[re.Pattern[bytes], int] | None]:
        """Patterns of the tokens that are searched before all others, with and without control tokens."""
        api, vocab = self._api, self._vocab
        # If each part got its own end token, the parts would not equal the whole text.
        cut = self.spells and not api.llama_vocab_get_add_eos(vocab)
        attributes = map(api.llama_vocab_get_attr, repeat(vocab), range(self.size if cut else 0))
        special = [(t, a) for t, a in enumerate(attributes) if a & (_UNKNOWN | _CONTROL | _USER_DEFINED)]
        return {
            parse: _alternatives(
                text for t, a in special if a & kinds and (text := api.llama_vocab_get_text(vocab, t))
            )
            for parse, kinds in ((True, _UNKNOWN | _CONTROL | _USER_DEFINED), (False, _USER_DEFINED))
        }

    def refuse_impossible(self, text: str, limit: int | None) -> None:
        """Raises: TooManyTokens: the length alone shows that the text has more than `limit` tokens."""
        if limit is not None and len(text) > PART_BYTES and self.longest and len(text) > limit * self.longest:
            raise TooManyTokens(-(-len(text) // self.longest))

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
        self.refuse_impossible(text, limit)
        data = text.encode("utf-8", "surrogatepass")
        tokens: list[int] = []
        for part in self._parts(data, parse_special):
            if limit is not None and len(part) > SLICE_BYTES:
                self._count_slices(part, limit - len(tokens), parse_special, stopped)
            if stopped():
                raise Stopped
            tokens += self._tokens(part, add_special and not tokens, parse_special)
            if limit is not None and len(tokens) > limit:
                raise TooManyTokens(len(tokens))
        return tokens

    def _parts(self, data: bytes, parse_special: bool) -> Iterator[bytes]:
        """Yield the text split at starts of control tokens: llama.cpp tokenizes both sides separately anyway."""
        special = self._searched_first[parse_special] if len(data) > PART_BYTES else None
        begin = 0
        while special is not None and len(data) - begin > PART_BYTES:
            end = _cut(special, data, begin + PART_BYTES)
            if end is None:
                break
            yield data[begin:end]
            begin = end
        if begin < len(data) or begin == 0:
            yield data[begin:]

    def _count_slices(self, part: bytes, limit: int, parse_special: bool, stopped: Callable[[], bool]) -> None:
        count = begin = 0
        while begin < len(part):
            if stopped():
                raise Stopped
            end = begin + SLICE_BYTES
            while end < len(part) and part[end] & 0xC0 == 0x80:
                end += 1
            count += max(len(self._tokens(part[begin:end], False, parse_special)) - SLICE_LOSS, 0)
            if count > limit:
                raise TooManyTokens(count)
            begin = end

    def _tokens(self, data: bytes, add_special: bool, parse_special: bool) -> list[int]:
        capacity = len(data) + 8
        tokens = (ctypes.c_int32 * capacity)()
        n = self._api.llama_tokenize(self._vocab, data, len(data), tokens, capacity, add_special, parse_special)
        if n < 0:
            tokens = (ctypes.c_int32 * -n)()
            n = self._api.llama_tokenize(self._vocab, data, len(data), tokens, -n, add_special, parse_special)
        return tokens[: max(n, 0)]


def _alternatives(pieces: Iterator[bytes]) -> tuple[re.Pattern[bytes], int] | None:
    """Return a pattern that finds any of `pieces`, longer ones first, and the length of the longest."""
    longest_first = sorted(set(pieces), key=len, reverse=True)
    if not longest_first:
        return None
    return re.compile(b"|".join(map(re.escape, longest_first))), len(longest_first[0])


def _cut(special: tuple[re.Pattern[bytes], int], data: bytes, begin: int) -> int | None:
    """Return the first position from `begin` on at which a named token starts, with no overlap or space before."""
    pattern, longest = special
    while (match := pattern.search(data, begin)) is not None:
        at = match.start()
        # A token that absorbs the space before it would not find it in the previous part.
        if not data[at - 1 : at].isspace() and not any(
            (across := pattern.match(data, start)) is not None and across.end() > at
            for start in range(max(at - longest + 1, 0), at)
        ):
            return at
        begin = at + 1
    return None
