"""Embeds many texts in int8 with ONNX Runtime, as many concurrently as there are threads.

Each text is one run on one thread. Such threads never wait for each other, so other programs on the machine slow
them less.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from engine.runner.onnx_libraries import onnxruntime, reason


class NotQuick(Exception):
    """This model or this computer cannot embed in int8; the message says why."""


class QuickTexts:
    """Holds the ONNX Runtime session and its threads."""

    def __init__(self, path: Path, threads: int) -> None:
        """Load the model. Raises: NotQuick."""
        from quantize.onnx import int8_encoder as graphs

        self._from, self._to = graphs.INPUT, graphs.OUTPUT
        try:
            encoder = graphs.quick_encoder(path)
            ort = onnxruntime()
            options = ort.SessionOptions()
            options.intra_op_num_threads = 1
            # The graph already has its fused operators. The only other fusion, SkipLayerNormalization, takes ten
            # times as long as the two operators that it replaces (log-archive.md, "Documents").
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
            self._session = ort.InferenceSession(encoder.graph, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # an unsupported file, or an ONNX Runtime error, which has no narrower class
            raise NotQuick(reason(error)) from error
        self._encoder = replace(encoder, graph=b"")  # the session has its own copy
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="quick")

    def one(self, tokens: list[int]) -> Any:
        """Return the pooled row of one text, float64 of (embd,), computed on this thread."""
        return self._session.run([self._to], {self._from: self._encoder.rows(tokens)})[0][0].astype(np.float64)

    def many(self, texts: list[list[int]]) -> list[Any]:
        """Return the pooled rows of several texts. Raises: NotQuick."""
        try:
            return list(self._pool.map(self.one, texts))
        except Exception as error:  # same reason as above
            raise NotQuick(reason(error)) from error
