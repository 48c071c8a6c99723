"""Vectors of many texts in 8 bits by ONNX Runtime, as many texts at once as there are threads.

Each text is one run on one thread: threads that never wait for each other lose nothing where other programs run.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from engine.runner.onnx_libraries import onnxruntime, reason


class NotQuick(Exception):
    """This model or this computer cannot embed so; the message says why."""


class QuickTexts:
    """Owns the session."""

    def __init__(self, path: Path, threads: int) -> None:
        """Raises: NotQuick."""
        from quantize.onnx import int8_encoder as graphs  # noqa: PLC0415 - `onnx` takes .3 s to import

        self._from, self._to = graphs.INPUT, graphs.OUTPUT
        try:
            made = graphs.quick_encoder(path)
            ort = onnxruntime()
            options = ort.SessionOptions()
            options.intra_op_num_threads = 1
            # The graph has its fused operators already; the one more that would be found, SkipLayerNormalization,
            # takes ten times as long as the two it is for (docs/log.md, "Documents").
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
            self._session = ort.InferenceSession(made.graph, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # a file of another kind, or ONNX Runtime's, which has no narrower one
            raise NotQuick(reason(error)) from error
        self._encoder = replace(made, graph=b"")  # the session has its own
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="quick")

    def one(self, tokens: list[int]) -> Any:
        """The pooled row of one text, float64 of (embd,), on this thread."""
        return self._session.run([self._to], {self._from: self._encoder.rows(tokens)})[0][0].astype(np.float64)

    def many(self, texts: list[list[int]]) -> list[Any]:
        """The pooled rows of several texts. Raises: NotQuick."""
        try:
            return list(self._pool.map(self.one, texts))
        except Exception as error:  # as above
            raise NotQuick(reason(error)) from error
