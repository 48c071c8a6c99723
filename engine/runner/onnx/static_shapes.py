"""Chaining fixed-shape graphs: pieces of a prompt, then one token a step, over a cache that the caller keeps.

Graphs of an NPU have no open sizes: a prompt goes through `prefill` in pieces of the same length, the last one
filled up and masked; the last token and every further one go through `decode`. Keys and values are 8-bit codes.
"""

import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from devices.msgspec_lock import learned
from engine.runner.onnx.errors import LoadFailed
from quantize.onnx.fixed_folder import FACTS, GRAPHS, FixedFacts
from quantize.onnx.static_shapes import MASKED

_MAX_FACTS_BYTES: Final = 8 << 20


def read_facts(folder: Path) -> FixedFacts:
    """The folder's facts. Raises: LoadFailed."""
    try:
        with (folder / FACTS).open("rb") as file:
            found = msgspec.json.decode(file.read(_MAX_FACTS_BYTES), type=learned(FixedFacts))
    except (OSError, ValueError, RecursionError) as error:
        raise LoadFailed(f"{FACTS} cannot be read: {error}") from error
    sizes = (found.piece, found.past, found.layers, found.embd, found.vocab, found.kv_heads, found.head_dim)
    if min(sizes) < 1 or max(sizes) > 1 << 24 or not 0 <= found.begin < found.vocab:
        raise LoadFailed(f"{FACTS} has impossible sizes {sizes}")
    return found


class FixedDecoder:
    """One sequence. `sessions` are those of GRAPHS; `room` tokens fit in all, the first of them the model's own."""

    def __init__(self, folder: Path, facts: FixedFacts, sessions: Sequence[Any]) -> None:
        """Raises: LoadFailed: a file is missing or has another size than the facts say."""
        self._facts = f = facts
        self._sessions = dict(zip(GRAPHS, sessions, strict=True))
        self._names = {g: [o.name for o in s.get_outputs()] for g, s in self._sessions.items()}
        self._table = _mapped(folder / "embedding.bin", np.float16, (f.vocab, f.embd))
        first = _mapped(folder / "first.bin", np.uint8, (f.layers, 2, f.kv_heads * f.head_dim))
        self._cache: dict[str, Any] = {}
        for layer in range(f.layers):
            for at, which in enumerate(("key", "value")):
                name = f"past.{layer}.{which}"
                dims = (f.kv_heads, f.head_dim, f.past) if which == "key" else (f.kv_heads, f.past, f.head_dim)
                cells = np.full((1, *dims), f.scales[name].zero, np.uint8)
                codes = first[layer, at].reshape(f.kv_heads, f.head_dim)
                if which == "key":
                    cells[0, :, :, 0] = codes
                else:
                    cells[0, :, 0, :] = codes
                self._cache[name] = cells
        self.length = 1

    @property
    def room(self) -> int:
        """Tokens that still fit behind what is there."""
        return self._facts.past - self.length

    def rewind(self, length: int) -> None:
        """Keep the first `length` tokens; the model's own first one always stays."""
        self.length = max(1, min(length, self.length))

    def read(self, ids: Sequence[int]) -> None:
        """Take tokens into the cache. At most `room`."""
        piece = self._facts.piece
        for at in range(0, len(ids), piece):
            self._run("prefill", ids[at : at + piece], piece)

    def step(self, token: int) -> Any:
        """Take one token; returns the logits behind it, (vocabulary,) float32."""
        return self._facts.scales["logits"].values(self._run("decode", [token], 1)["logits"][0, 0])

    def _run(self, graph: str, ids: Sequence[int], width: int) -> dict[str, Any]:
        f, n, past = self._facts, len(ids), self.length
        hidden = np.zeros((1, width, f.embd), np.float32)
        hidden[0, :n] = self._table[list(ids)]
        mask = np.full((width, f.past + width), MASKED, np.float32)
        mask[:, :past] = 0
        mask[:, f.past :] = np.triu(np.full((width, width), MASKED, np.float32), 1)
        feeds = {
            "hidden": f.scales["hidden"].codes(hidden),
            "mask": f.scales["mask"].codes(np.tile(mask, (f.group, 1))[None, None]),
            "positions": np.minimum(np.arange(past, past + width), f.past - 1).astype(np.int32),
            **self._cache,
        }
        found = dict(zip(self._names[graph], self._sessions[graph].run(self._names[graph], feeds), strict=True))
        for layer in range(f.layers):
            self._cache[f"past.{layer}.key"][..., past : past + n] = found[f"new.{layer}.key"][..., :n]
            self._cache[f"past.{layer}.value"][:, :, past : past + n] = found[f"new.{layer}.value"][:, :, :n]
        self.length += n
        return found


def _mapped(path: Path, kind: Any, shape: tuple[int, ...]) -> Any:
    """A file as an array of this shape. Raises: LoadFailed."""
    try:
        with path.open("rb") as file:
            held = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return np.frombuffer(held, kind).reshape(shape)
    except (OSError, ValueError) as error:
        raise LoadFailed(f"{path.name} is not what {FACTS} says: {error}") from error
