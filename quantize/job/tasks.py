"""Tasks of the child processes: name, request type and function of each."""

from collections.abc import Callable
from typing import Any

import msgspec

from quantize.gptq.exact import ExactRequest, find_exact_types
from quantize.gptq.tensors import TensorsRequest, round_tensors
from quantize.job.write_model import WriteRequest, write_model
from quantize.measure.collect_hessians import MomentsRequest, collect_moments, survey
from quantize.measure.kv_cache import KvRequest, measure_kv
from quantize.measure.quick_loss import QuickLossRequest, measure_quick_loss
from quantize.measure.rounding_error import ErrorsRequest, measure_errors
from quantize.measure.row_errors import RowErrorsRequest, measure_row_errors
from quantize.measure.sensitivity import AlphaRequest, measure_swaps
from quantize.measure.smoothing import SmoothRequest, smooth
from quantize.measure.verify import verify_files
from quantize.measurements import MeasureRequest, Step, VerifyRequest
from quantize.native.reference import LoadCheck, check_loads

TaskKind = tuple[type[msgspec.Struct], Callable[[Any, Step], Any]]

_MEASURING: dict[str, TaskKind] = {
    "load": (LoadCheck, check_loads),
    "exact": (ExactRequest, find_exact_types),
    "smooth": (SmoothRequest, smooth),
    "survey": (MeasureRequest, survey),
    "moments": (MomentsRequest, collect_moments),
    "errors": (ErrorsRequest, measure_errors),
    "round": (TensorsRequest, round_tensors),
    "verify": (VerifyRequest, verify_files),
    "alpha": (AlphaRequest, measure_swaps),
    "quick_loss": (QuickLossRequest, measure_quick_loss),
    "row_errors": (RowErrorsRequest, measure_row_errors),
    "kv": (KvRequest, measure_kv),
    "write": (WriteRequest, write_model),
}


def task_named(name: str) -> TaskKind:
    """The request type and function of a task. Raises: KeyError."""
    if name in ("convert", "prepare"):
        # A job starts a child process for each tensor; the converter's imports would be two fifths of its start
        # time.
        from quantize.convert.folder import ConvertRequest, convert, prepare

        return ConvertRequest, convert if name == "convert" else prepare
    if name == "onnx":
        from quantize.onnx.folder import convert_task
        from quantize.onnx.request import OnnxRequest

        return OnnxRequest, convert_task
    return _MEASURING[name]
