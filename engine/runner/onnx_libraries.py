"""The only module that imports ONNX Runtime: it disables telemetry first and removes colours from errors."""

import os
import re
from typing import Any, Final

# The official wheels send data to Microsoft and store a device id unless this is set before the import.
# Source: ONNX Runtime, docs/Privacy.md; tests/faults/test_onnx_telemetry.py checks files and connections.
QUIET: Final = {"ORT_DISABLE_TELEMETRY": "1"}
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
# ONNX Runtime's messages may quote whole graphs.
_LONGEST: Final = 600


def onnxruntime() -> Any:
    """Return the onnxruntime module. Raises: ImportError, OSError: it is missing or broken."""
    os.environ.update(QUIET)
    import onnxruntime as ort

    ort.set_default_logger_severity(3)
    return ort


def genai() -> Any:
    """Return the onnxruntime_genai module. Raises: ImportError, OSError."""
    os.environ.update(QUIET)
    import onnxruntime_genai as og

    return og


def reason(error: BaseException) -> str:
    """Return an ONNX Runtime error as one line without colours, limited in length."""
    text = " ".join(_COLOUR.sub("", str(error)).split())
    return text[:_LONGEST] or type(error).__name__
