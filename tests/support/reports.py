"""Reports of quantizations, as what reads them finds them beside the files."""

import msgspec

from devices.msgspec_lock import learned
from quantize.job.request import QuantizeReport


def read_report(path):
    return msgspec.json.decode(path.read_bytes(), type=learned(QuantizeReport))
