"""Tokens to bytes and back. A token's piece is asked for once: no detokenizing call per generated token."""

import ctypes
import re
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property
from itertools import compress, repeat
from typing import Any, Final, overload

from engine.runner.generation.vocabulary import Vocabulary
from engine.runner.text_limits import SLICE_BYTES, SLICE_LOSS, Stopped, TooManyTokens

# llama.h, enum llama_vocab_type: those whose tokens together spell every byte of the text.
_SPELLING_TYPES: Final = frozenset({1, 2})  # SPM, BPE
# llama.h, enum llama_token_attr: tokens that are looked for in a text before anything else.
_UNKNOWN, _CONTROL, _USER_DEFINED = 1, 8, 16
# llama_tokenize takes a time that grows with the square of the control tokens in a text (1 MiB of <|im_start|>:
# 24 s), so a text is given to it in parts. Measured: docs/log.md, abuse.
PART_BYTES: Final = 16 << 10
# No published vocabulary has a token of half the length (OpenAI's and Llama 3's: 128). The server goes by this, the
# runner by the vocabulary itself, once a long text makes it go over it.
LONGEST_TOKEN_BYTES: Final = 512


class Pieces(Sequence[bytes]):
    """The bytes of each token with control tokens spelled out; asked for when first used. Safe from any thread."""

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
            piece = self._cached[token] = self._ask(token % len(self))
        return piece

    def _ask(self, token: int) -> bytes:
        length = 256
        while True:
            buffer = ctypes.create_string_buffer(length)
            n = self._to_piece(self._vocab, token, buffer, length, 0, True)
            if n >= 0:
                return buffer.raw[:n]
            length = -n


class TokenSet(AbstractSet[int]):
    """The tokens of which llama.cpp says yes. One is asked for by itself; all only when somebody goes over them."""

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
        """The bytes of a text that one token spells at most; 0: there is no such bound."""
        if not self.spells:
            return 0
        texts = map(self._api.llama_vocab_get_text, repeat(self._vocab), range(self.size))
        return max(map(len, texts), default=0)

    @cached_property
    def _named(self) -> dict[bool, tuple[re.Pattern[bytes], int] | None]:
        """What finds a token that is looked for before anything else, with and without control tokens."""
        api, vocab = self._api, self._vocab
        # With an end token of its own at the end of each part, parts would not be the whole.
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
        """Raises: TooManyTokens: the text has more than `limit` tokens, as its length alone tells."""
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
        """The text, cut where a control token begins: what is on both sides is tokenized apart anyway."""
        named = self._named[parse_special] if len(data) > PART_BYTES else None
        begin = 0
        while named is not None and len(data) - begin > PART_BYTES:
            end = _cut(named, data, begin + PART_BYTES)
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
            while end < len(part) and part[end] & 0xC0 == 0x80:  # noqa: PLR2004 - within a UTF-8 character
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
    """What finds any of `pieces`, longer ones first, and the length of the longest."""
    longest_first = sorted(set(pieces), key=len, reverse=True)
    if not longest_first:
        return None
    return re.compile(b"|".join(map(re.escape, longest_first))), len(longest_first[0])


def _cut(named: tuple[re.Pattern[bytes], int], data: bytes, begin: int) -> int | None:
    """The first place from `begin` on where a named token begins, none reaches across, and no space precedes."""
    pattern, longest = named
    while (found := pattern.search(data, begin)) is not None:
        at = found.start()
        # A token that takes the space before it would not find it in the part before.
        if not data[at - 1 : at].isspace() and not any(
            (across := pattern.match(data, start)) is not None and across.end() > at
            for start in range(max(at - longest + 1, 0), at)
        ):
            return at
        begin = at + 1
    return None
