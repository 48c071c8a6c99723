"""Quantization reports for tests, in the place where they are read: next to the model files."""

import msgspec

from devices.msgspec_lock import learned
from quantize.job.request import QuantizeReport


def read_report(path):
    return msgspec.json.decode(path.read_bytes(), type=learned(QuantizeReport))
