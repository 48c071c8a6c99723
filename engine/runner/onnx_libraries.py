"""The only door to ONNX Runtime: telemetry is off before the first import, and errors lose their colours."""

import os
import re
from typing import Any, Final

# The official wheels report to Microsoft and keep a device id unless this is set before the import.
# Source: ONNX Runtime, docs/Privacy.md; tests/faults/test_onnx_telemetry.py watches files and connections.
QUIET: Final = {"ORT_DISABLE_TELEMETRY": "1"}
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
# ONNX Runtime's messages may quote whole graphs.
_LONGEST: Final = 600


def onnxruntime() -> Any:
    """The onnxruntime module. Raises: ImportError, OSError: it is missing or broken."""
    os.environ.update(QUIET)
    import onnxruntime as ort  # noqa: PLC0415 - telemetry is decided above

    ort.set_default_logger_severity(3)
    return ort


def genai() -> Any:
    """The onnxruntime_genai module. Raises: ImportError, OSError."""
    os.environ.update(QUIET)
    import onnxruntime_genai as og  # noqa: PLC0415 - telemetry is decided above

    return og


def reason(error: BaseException) -> str:
    """An error of ONNX Runtime as one line without colours, bounded in length."""
    text = " ".join(_COLOUR.sub("", str(error)).split())
    return text[:_LONGEST] or type(error).__name__
