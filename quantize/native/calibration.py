"""Splits a text into windows of tokens."""

import os
from contextlib import suppress
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from devices.errors import InputFault
from quantize.errors import CannotRead, DiskFull
from quantize.files.measurement_cache import TOKENS
from quantize.files.measurement_folder import writing_whole
from quantize.native.eval_context import Tokens
from quantize.native.reference import ReferenceModel

WINDOW = 512  # tokens. Source: llama-imatrix and llama-perplexity, default context
_MIN_WINDOWS = 4


class TextTooShort(InputFault):
    """A text has too few tokens for measuring; holds both counts."""

    code = "text_too_short"

    def __init__(self, path: str, tokens: int, needed: int) -> None:
        super().__init__(f"{path} has {tokens} tokens; measuring needs {needed}")
        self.path = path
        self.tokens = tokens
        self.needed = needed


def read_windows(
    model: ReferenceModel,
    text: Path,
    max_tokens: int,
    window: int = WINDOW,
    *,
    spread: bool = False,
    cache_dir: Path | None = None,
) -> Tokens:
    """A text as windows of tokens, (count, window).

    Every second window parses special tokens in the text as such, as in a chat. The others treat them as plain
    characters, as in a quotation. A file must be good at both; llama.cpp's tools only evaluate the second. If the
    model uses a BOS token, every window starts with it. `spread` takes windows from the whole text instead of its
    start, if there are more than `max_tokens` allow. With `cache_dir` the text is tokenized once for all steps of a
    job and all models with the same vocabulary.

    Raises: TextTooShort. Unreadable: the file is missing or not UTF-8.
    """
    try:
        content = text.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CannotRead(str(text), str(error)) from error
    variants = _spelled(model, content) if cache_dir is None else _spelled_once(model, content, cache_dir)
    tokens = min(len(v) for v in variants)
    count = tokens // window
    if count < _MIN_WINDOWS:
        raise TextTooShort(str(text), tokens, _MIN_WINDOWS * window)
    windows = np.stack([variants[i % 2][i * window : (i + 1) * window] for i in range(count)])
    allowed = max(1, max_tokens // window)
    if count > allowed:
        picked = np.linspace(0, count - 1, allowed).round().astype(int) if spread else np.arange(allowed)
        windows = windows[picked]
    windows = windows.copy()
    if model.bos is not None:
        windows[:, 0] = model.bos
    return windows


def _spelled(model: ReferenceModel, content: str) -> list[Tokens]:
    """The tokens of a text, with special tokens parsed and with special tokens as plain characters."""
    return [model.tokenize(content, parse_special=special) for special in (True, False)]


def _spelled_once(model: ReferenceModel, content: str, cache_dir: Path) -> list[Tokens]:
    """Like `_spelled`, cached by text, vocabulary and llama.cpp version."""
    path = cache_dir / TOKENS / f"{sha256(f'{model.vocabulary} {content}'.encode()).hexdigest()[:32]}.npz"
    with (
        suppress(OSError, ValueError, KeyError, EOFError, BadZipFile),
        np.load(BytesIO(path.read_bytes())) as stored,
    ):
        token_lists = [stored["special"], stored["plain"]]
        os.utime(path)  # the cache is pruned by time of use
        return token_lists
    special, plain = _spelled(model, content)
    with suppress(OSError, DiskFull):  # otherwise it is tokenized again next time
        path.parent.mkdir(parents=True, exist_ok=True)
        with writing_whole(path) as partial, partial.open("wb") as file:
            np.savez(file, special=special, plain=plain)
    return [special, plain]
