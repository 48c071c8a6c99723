"""What a child can be asked to do: the name of each task, its request and its function."""

from collections.abc import Callable
from typing import Any

import msgspec

from quantize.convert.folder import ConvertRequest, convert, prepare
from quantize.evidence import MeasureRequest, Step, VerifyRequest
from quantize.gptq.sequential import SequentialRequest, round_in_order
from quantize.gptq.tensors import TensorsRequest, round_tensors
from quantize.job.write_model import WriteRequest, write_model
from quantize.measure.collect import MomentsRequest, collect_moments, survey
from quantize.measure.kv_cache import KvRequest, measure_kv
from quantize.measure.rounding_error import ErrorsRequest, measure_errors
from quantize.measure.sensitivity import AlphaRequest, measure_swaps
from quantize.measure.verify import verify_files
from quantize.onnx.folder import convert_task
from quantize.onnx.request import OnnxRequest

TASKS: dict[str, tuple[type[msgspec.Struct], Callable[[Any, Step], Any]]] = {
    "survey": (MeasureRequest, survey),
    "moments": (MomentsRequest, collect_moments),
    "errors": (ErrorsRequest, measure_errors),
    "round": (TensorsRequest, round_tensors),
    "sequential": (SequentialRequest, round_in_order),
    "verify": (VerifyRequest, verify_files),
    "alpha": (AlphaRequest, measure_swaps),
    "kv": (KvRequest, measure_kv),
    "convert": (ConvertRequest, convert),
    "prepare": (ConvertRequest, prepare),
    "onnx": (OnnxRequest, convert_task),
    "write": (WriteRequest, write_model),
}
