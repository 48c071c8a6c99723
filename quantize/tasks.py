"""What a child can be asked to do: the name of each task, its request and its function."""

from collections.abc import Callable
from typing import Any

import msgspec

from quantize.collect import MomentsRequest, collect_moments, survey
from quantize.convert.folder import ConvertRequest, convert, prepare
from quantize.craft.sequential import SequentialRequest, round_in_order
from quantize.craft.tensors import TensorsRequest, round_tensors
from quantize.evidence import MeasureRequest, Step, VerifyRequest
from quantize.onnx.folder import convert_task
from quantize.onnx.request import OnnxRequest
from quantize.rounding_error import ErrorsRequest, measure_errors
from quantize.sensitivity import AlphaRequest, measure_alpha
from quantize.verify import verify_files
from quantize.write_model import WriteRequest, write_model

TASKS: dict[str, tuple[type[msgspec.Struct], Callable[[Any, Step], Any]]] = {
    "survey": (MeasureRequest, survey),
    "moments": (MomentsRequest, collect_moments),
    "errors": (ErrorsRequest, measure_errors),
    "round": (TensorsRequest, round_tensors),
    "sequential": (SequentialRequest, round_in_order),
    "verify": (VerifyRequest, verify_files),
    "alpha": (AlphaRequest, measure_alpha),
    "convert": (ConvertRequest, convert),
    "prepare": (ConvertRequest, prepare),
    "onnx": (OnnxRequest, convert_task),
    "write": (WriteRequest, write_model),
}
