"""What one sequence of llama.cpp's memory holds."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from engine.runner.llama.cache.checkpoints import Checkpoint
from engine.runner.llama.cache.prefix_index import Key, shared_length


@dataclass(eq=False)  # two of them are the same only if they are one
class CachedSequence:
    """One llama.cpp sequence: `tokens` are those whose keys and values are in the cache.

    `shared` of them came by `seq_cp` from another sequence, so they cost no cells of their own. `key` keeps
    prefixes made under different adapters apart. Of models whose state cannot be cut, `checkpoints` are the copies
    to go back to, and `wanted` the lengths at which the next ones are to be taken; `retractable` of the last tokens
    can be taken back at once, and `rewound` says that some were, which no copy by `seq_cp` knows of.
    """

    seq_id: int
    key: Key = ()
    tokens: list[int] = field(default_factory=list)
    shared: int = 0
    in_use: bool = False
    last_used: int = 0
    checkpoints: list[Checkpoint] = field(default_factory=list)
    wanted: list[int] = field(default_factory=list)
    retractable: int = 0
    rewound: bool = False

    def until_checkpoint(self, take: int) -> int:
        """How many of the next `take` prompt tokens to compute before a checkpoint is due."""
        ahead = self.wanted[0] - len(self.tokens) if self.wanted else 0
        return min(take, ahead) if ahead > 0 else take

    def want_checkpoint(self, length: int) -> None:
        """Let the state at that length be kept, unless it is behind already."""
        if length > len(self.tokens) and length not in self.wanted:
            self.wanted = sorted((*self.wanted, length))


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
