"""How often each expert of a mixture was chosen here: what is kept in memory, and what is expected of that."""

import contextlib
import hashlib
from pathlib import Path
from typing import Annotated, Final

import msgspec

from engine.core.json_store import JsonStore

# Of the newest tokens, so many count half as much as the newest: habits change, single texts do not matter.
HALF_LIFE_TOKENS: Final = 4096
# Models whose use is kept; a file of one has 40 kB.
_KEPT: Final = 32
# Fewer tokens say little about what will be asked.
ENOUGH_TOKENS: Final = 256
# Ranks are counted in so many equal parts of all experts.
RANKS: Final = 64
_Count = Annotated[float, msgspec.Meta(ge=0, lt=1e12)]


class ExpertUse(msgspec.Struct, frozen=True, kw_only=True):
    """Choices of each expert by layer, of `tokens` steps; older ones count less. A piece of a prompt is one step.

    `ranks`: where the experts that tokens asked for stood among all a moment before, the most used first. So they
    tell what a memory for the most used ones would have held of what came, not of what the counts were made from.
    """

    tokens: _Count = 0.0
    layers: dict[int, list[_Count]] = {}
    ranks: list[_Count] = []

    @property
    def is_meaningful(self) -> bool:
        """Whether enough was seen to expect the same again."""
        return self.tokens >= ENOUGH_TOKENS and len(self.ranks) == RANKS and sum(self.ranks) > 0

    def hit_rate(self, part: float) -> float:
        """Of what tokens asked for, how much was among that part of all experts, the most used ones."""
        whole, rest = divmod(min(1.0, max(0.0, part)) * RANKS, 1)
        found = sum(self.ranks[: int(whole)])
        found += rest * self.ranks[int(whole)] if rest else 0.0
        return found / sum(self.ranks)


def use_store(folder: Path, model: Path) -> JsonStore[ExpertUse]:
    """Where the use of this file is kept: by name and size, so that a moved file keeps it and another does not."""
    try:
        size = model.stat().st_size
    except OSError:
        size = 0
    name = hashlib.sha256(f"{model.name}\0{size}".encode()).hexdigest()[:24]
    return JsonStore(folder / f"{name}.json", ExpertUse, ExpertUse)


def folder_of(cache_dir: str | None) -> Path | None:
    """The folder for models' use, beside the one for prefixes; None where nothing is kept."""
    return Path(cache_dir).parent / "experts" if cache_dir else None


def keep(store: JsonStore[ExpertUse], use: ExpertUse) -> None:
    """Write what was seen, and drop the oldest files beyond a few dozen. What cannot be written is lost."""
    rounded = {layer: [float(f"{count:.4g}") for count in counts] for layer, counts in use.layers.items()}
    with contextlib.suppress(OSError):
        ranks = [float(f"{count:.4g}") for count in use.ranks]
        store.put(ExpertUse(tokens=round(use.tokens, 1), layers=rounded, ranks=ranks))
        if store.path is not None:
            files = sorted(store.path.parent.glob("*.json"), key=lambda path: path.stat().st_mtime)
            for old in files[:-_KEPT]:
                old.unlink(missing_ok=True)
