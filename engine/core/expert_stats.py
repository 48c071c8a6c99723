"""Statistics of how often each expert of an MoE model is used, stored on disk to predict cache hits."""

import contextlib
import hashlib
from pathlib import Path
from typing import Annotated, Final

import msgspec

from engine.core.json_store import JsonStore

# Tokens after which a count has half its weight: usage changes over time, single texts should not dominate.
HALF_LIFE_TOKENS: Final = 4096
# Maximum number of models with stored statistics; each file has about 40 kB.
_KEPT: Final = 32
# Fewer tokens are not enough for a prediction.
ENOUGH_TOKENS: Final = 256
# Number of equal parts into which the ranking of all experts is divided.
RANKS: Final = 64
_Count = Annotated[float, msgspec.Meta(ge=0, lt=1e12)]


class ExpertUse(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of each expert's uses, per layer, over `tokens` steps.

    Older choices count less. A prompt chunk is one step. `ranks` is a histogram of the rank that each requested
    expert had just before the request, most used first. It therefore estimates the hit rate of a cache of the most
    used experts on new tokens.
    """

    tokens: _Count = 0.0
    layers: dict[int, list[_Count]] = {}
    ranks: list[_Count] = []

    @property
    def is_meaningful(self) -> bool:
        """Whether there are enough samples for a prediction."""
        return self.tokens >= ENOUGH_TOKENS and len(self.ranks) == RANKS and sum(self.ranks) > 0

    def hit_rate(self, part: float) -> float:
        """Fraction of expert requests that a cache of the most used `part` (0 to 1) of all experts would serve."""
        whole, rest = divmod(min(1.0, max(0.0, part)) * RANKS, 1)
        hits = sum(self.ranks[: int(whole)])
        hits += rest * self.ranks[int(whole)] if rest else 0.0
        return hits / sum(self.ranks)


def use_store(folder: Path, model: Path) -> JsonStore[ExpertUse]:
    """Return the store for this file's statistics.

    The key is name and size: statistics survive a move, and a changed file gets its own.
    """
    try:
        size = model.stat().st_size
    except OSError:
        size = 0
    name = hashlib.sha256(f"{model.name}\0{size}".encode()).hexdigest()[:24]
    return JsonStore(folder / f"{name}.json", ExpertUse, ExpertUse, durable=False)


def folder_of(cache_dir: str | None) -> Path | None:
    """Return the folder for statistics, next to the one for prefixes; None if nothing is cached on disk."""
    return Path(cache_dir).parent / "experts" if cache_dir else None


def keep(store: JsonStore[ExpertUse], use: ExpertUse) -> None:
    """Write statistics and delete the oldest files above the limit. Write errors are ignored."""
    rounded = {layer: [float(f"{count:.4g}") for count in counts] for layer, counts in use.layers.items()}
    with contextlib.suppress(OSError):
        ranks = [float(f"{count:.4g}") for count in use.ranks]
        store.put(ExpertUse(tokens=round(use.tokens, 1), layers=rounded, ranks=ranks))
        if store.path is not None:
            files = sorted(store.path.parent.glob("*.json"), key=lambda path: path.stat().st_mtime)
            for old in files[:-_KEPT]:
                old.unlink(missing_ok=True)
