"""Text as windows of tokens."""

from pathlib import Path

import numpy as np

from quantize.errors import InputFault, Unreadable
from quantize.native.lane import Tokens
from quantize.native.reference import ReferenceModel

WINDOW = 512  # tokens. Source: llama-imatrix and llama-perplexity, default context
_MIN_WINDOWS = 4


class TextTooShort(InputFault):
    """A text has too few tokens to measure with; both counts."""

    code = "text_too_short"

    def __init__(self, path: str, tokens: int, needed: int) -> None:
        super().__init__(f"{path} has {tokens} tokens; measuring needs {needed}")
        self.path = path
        self.tokens = tokens
        self.needed = needed


def read_windows(
    model: ReferenceModel, text: Path, max_tokens: int, window: int = WINDOW, *, spread: bool = False
) -> Tokens:
    """A text cut into windows of tokens, (count, window).

    Special tokens written in the text are such tokens in every second window, as in a chat, and plain characters in
    the others, as in a quotation: a file must be good at both, and llama.cpp's tools judge it by the second.
    A model that wants a BOS gets it at the start of every window. `spread` takes windows from the whole text
    instead of its beginning, where there are more than `max_tokens` allow.
    Raises: TextTooShort. Unreadable: it is not there, or not UTF-8.
    """
    try:
        content = text.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Unreadable(str(text), str(error)) from error
    variants = [model.tokenize(content, parse_special=special) for special in (True, False)]
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
