"""Text as windows of tokens."""

from pathlib import Path

import numpy as np

from quantize.errors import InputFault, Unreadable
from quantize.native.reference import ReferenceModel, Tokens

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

    A model that wants a BOS gets it at the start of every window. `spread` takes windows from the whole text
    instead of its beginning, where there are more than `max_tokens` allow.
    Raises: TextTooShort. Unreadable: it is not there, or not UTF-8.
    """
    try:
        content = text.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Unreadable(str(text), str(error)) from error
    tokens = model.tokenize(content)
    count = len(tokens) // window
    if count < _MIN_WINDOWS:
        raise TextTooShort(str(text), len(tokens), _MIN_WINDOWS * window)
    windows = tokens[: count * window].reshape(count, window)
    allowed = max(1, max_tokens // window)
    if count > allowed:
        picked = np.linspace(0, count - 1, allowed).round().astype(int) if spread else np.arange(allowed)
        windows = windows[picked]
    windows = windows.copy()
    if model.bos is not None:
        windows[:, 0] = model.bos
    return windows
