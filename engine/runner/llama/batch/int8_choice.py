"""Whether many texts are embedded in 8 bits instead of by llama.cpp: measured once, when the first many come."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from engine.runner.int8_embedder import NotQuick, QuickTexts
from engine.runner.protocol import LoadSettings

# Building the graph and trying it takes half a second of processor, which fewer texts would not earn back.
MIN_TEXTS: Final = 16
# The weights are in memory a second time, in 8 bits, and this is in no estimate.
MAX_BYTES: Final = 128 << 20
# With the vector that llama.cpp makes. Rows on disk are rounded to 8 bits as well (docs/log.md, "Documents").
MIN_COSINE: Final = 0.98
# It must take less than this share of llama.cpp's processor time.
WORTH: Final = 0.8
ROUNDS: Final = 3
# Texts of one step for each thread: a chat that begins waits for no more.
_TEXTS: Final = 2


class QuickChoice:
    """Embeds many texts in 8 bits where that is faster here and says the same."""

    def __init__(self, settings: LoadSettings, threads: int) -> None:
        self._path = Path(settings.path)
        self._threads = threads
        self._untried = (
            settings.embeddings
            and settings.repack
            and not (settings.devices or settings.n_gpu_layers or settings.lora)
            and self._path.is_file()
            and self._path.stat().st_size <= MAX_BYTES
        )
        self._texts: QuickTexts | None = None

    def wanted(self, left: int) -> bool:
        """Whether so many texts are embedded so, or it is to be found out with the first of them."""
        return self._texts is not None or (self._untried and left >= MIN_TEXTS)

    @property
    def texts_a_step(self) -> int:
        """How many are embedded in one step."""
        return _TEXTS * self._threads

    def rows(self, texts: list[list[int]], exact: Callable[[list[int]], Any]) -> list[Any] | None:
        """Pooled rows, float64 of (embd,) each; None: llama.cpp is to do it, now and from now on.

        `exact` gives llama.cpp's row of a text.
        """
        try:
            if self._untried:
                self._untried = False
                self._texts = self._measured(max(texts, key=len), exact)
            return None if self._texts is None else self._texts.many(texts)
        except NotQuick as error:
            self._texts = None
            sys.stderr.write(f"texts are embedded by llama.cpp: {error}\n")
            return None

    def _measured(self, text: list[int], exact: Callable[[list[int]], Any]) -> QuickTexts:
        """Raises: NotQuick: it is not faster, or says something else."""
        texts = QuickTexts(self._path, self._threads)
        row, slow_s = _least(lambda: exact(text))
        quick, quick_s = _least(lambda: texts.many([text])[0])
        if row.shape != quick.shape:
            raise NotQuick(f"in 8 bits their vectors have {quick.size} numbers, not {row.size}")
        cosine = float(row @ quick / max(float(np.linalg.norm(row) * np.linalg.norm(quick)), 1e-12))
        took = f"{len(text)} tokens: {quick_s * 1000:.1f} ms of processor in 8 bits, {slow_s * 1000:.1f} without"
        if not cosine >= MIN_COSINE:  # a NaN neither
            raise NotQuick(f"in 8 bits their vectors differ (cosine {cosine:.3f})")
        if quick_s > WORTH * slow_s:
            raise NotQuick(took)
        sys.stderr.write(f"many texts are embedded by ONNX Runtime: {took}, cosine {cosine:.4f}\n")
        return texts


def _least(work: Callable[[], Any]) -> tuple[Any, float]:
    """What it gave, and the least processor time of some rounds, the first of which warms up."""
    found, seconds = work(), []
    for _ in range(ROUNDS):
        began = time.process_time()
        found = work()
        seconds.append(time.process_time() - began)
    return found, min(seconds)
