"""What one sequence of llama.cpp's memory holds."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from engine.runner.llama.cache.checkpoints import Checkpoint
from engine.runner.llama.cache.prefix_index import Key, shared_length
from engine.runner.load_limits import STEADY_ROWS


@dataclass(eq=False)  # two of them are the same only if they are one
class CachedSequence:
    """One llama.cpp sequence: `tokens` are those whose keys and values are in the cache.

    `shared` of them came by `seq_cp` from another sequence, so they cost no cells of their own. `key` keeps
    prefixes of different adapters and owners apart. Of models whose state cannot be truncated, `checkpoints` are
    the copies to rewind to, and `planned` the lengths at which the next ones are due; the last `rollback_tokens`
    tokens can be rolled back at once, and `rolled_back` says that some were, which no copy by `seq_cp` knows of.
    The first `num_steady` tokens lie in the first cells and were computed in steps at fixed places
    (`steady_length`): computing them again gives the same bits. An answer behind them was computed row by row;
    while nothing runs it is computed again in such steps, with the adapters `unsettled` (None: it is not).
    """

    seq_id: int
    key: Key = ()
    tokens: list[int] = field(default_factory=list)
    shared: int = 0
    in_use: bool = False
    last_used: int = 0
    checkpoints: list[Checkpoint] = field(default_factory=list)
    planned: list[int] = field(default_factory=list)
    rollback_tokens: int = 0
    rolled_back: bool = False
    num_steady: int = 0
    unsettled: Key | None = None

    def until_checkpoint(self, take: int) -> int:
        """How many of the next `take` prompt tokens to compute before a checkpoint is due."""
        ahead = self.planned[0] - len(self.tokens) if self.planned else 0
        return min(take, ahead) if ahead > 0 else take

    def plan_checkpoint(self, length: int) -> None:
        """Let a checkpoint be taken at that length, unless it is past."""
        if length > len(self.tokens) and length not in self.planned:
            self.planned = sorted((*self.planned, length))


def steady_length(tokens: Any, length: int) -> int:
    """Where the last steady step within the first `length` of a text's tokens (n,) int32 ends.

    Steps have STEADY_ROWS rows, counted from the beginning or from the last image, whose tokens are negative.
    An image is whole or not at all.
    """
    images = np.flatnonzero(np.asarray(tokens[: length + 1]) < 0)
    if not len(images):
        return length // STEADY_ROWS * STEADY_ROWS
    last = int(images[-1])
    if last < length:
        return last + 1 + (length - last - 1) // STEADY_ROWS * STEADY_ROWS
    gaps = np.flatnonzero(np.diff(images) > 1)  # `length` is inside: back to where it begins
    return int(images[gaps[-1] + 1]) if len(gaps) else int(images[0])


def rebase(gone: CachedSequence, sequences: Iterable[CachedSequence]) -> None:
    """Cells that others still share with a dropped owner are from now on counted at one of them."""
    for other in sequences:
        if other is not gone and other.shared > gone.shared and other.key == gone.key:
            length = common_prefix(other.tokens, gone.tokens)
            if length > gone.shared:
                other.shared = min(other.shared, gone.shared)
                return


def common_prefix(a: list[int], b: list[int]) -> int:
    """Number of equal leading tokens."""
    n = min(len(a), len(b))
    if n == 0 or a[0] != b[0]:
        return 0
    if a[:n] == b[:n]:
        return n
    return shared_length(np.asarray(a[:n]), np.asarray(b[:n]))
