"""bitsandbytes: 4-bit codes of a table with scales for runs of weights, and rows of 8-bit integers.

Source: bitsandbytes, functional.py.
"""

from typing import Final

import msgspec
import numpy as np

from devices.msgspec_lock import learned
from quantize.convert.small_floats import FewBitFolder, Floats, Packed, matrix_shape
from quantize.errors import BadWeights, UnsupportedModel
from quantize.files.safetensors_file import SafetensorInfo

_INT8_STEPS: Final = 127  # largest code of its rows


class _State(msgspec.Struct):
    blocksize: int
    shape: tuple[int, int]
    dtype: str = "bfloat16"
    nested_blocksize: int = 256
    nested_offset: float = 0.0


def table_codes(folder: FewBitFolder, base: str, name: str, info: SafetensorInfo) -> Packed:
    """NF4 and FP4: two codes in a byte, the first in its high half; scales for runs of weights, 8-bit or F32."""
    kind = next((k for k in ("nf4", "fp4") if folder.has(f"{base}weight.quant_state.bitsandbytes__{k}")), None)
    if kind is None:
        raise BadWeights(folder.where, name, "its quant_state is missing")
    state_name = f"{base}weight.quant_state.bitsandbytes__{kind}"
    nested = folder.has(f"{base}weight.nested_absmax")
    parts = ["weight.quant_map", *(["weight.nested_quant_map"] if nested else [])]
    if missing := next((part for part in parts if not folder.has(base + part)), None):
        raise BadWeights(folder.where, base + missing, "it is missing")
    try:
        now = msgspec.json.decode(folder.read(state_name, None).tobytes(), type=learned(_State))
    except ValueError as error:
        raise BadWeights(folder.where, name, f"its quant_state is damaged: {error}") from error
    num_rows, width = now.shape
    stored = info.nbytes
    if min(num_rows, width, now.blocksize, now.nested_blocksize) < 1 or 2 * stored < num_rows * width:
        raise BadWeights(folder.where, name, f"its quant_state states {now.shape}, stored are {2 * stored} values")

    def rows(part: slice) -> Floats:
        first, last = part.start * width, part.stop * width
        block = slice(first // now.blocksize, -(-last // now.blocksize))
        scales = folder.read(f"{base}weight.absmax", None).reshape(-1)[block]
        if nested:
            table = folder.read(f"{base}weight.nested_quant_map", None)
            outer = folder.read(f"{base}weight.nested_absmax", None)
            at = np.arange(block.start, block.start + len(scales)) // now.nested_blocksize
            scales = table.reshape(-1)[scales] * outer.reshape(-1)[at] + np.float32(now.nested_offset)
        data = folder.read(name, None).reshape(-1).view(np.uint8)[first // 2 : -(-last // 2)]
        codes = np.stack([data >> np.uint8(4), data & np.uint8(15)], axis=-1).reshape(-1)
        codes = codes[first % 2 :][: last - first]
        where = np.arange(first, last) // now.blocksize - block.start
        values: Floats = (
            folder.read(f"{base}weight.quant_map", None).reshape(-1)[codes] * scales.astype(np.float32)[where]
        )
        return values.reshape(-1, width)

    dtype = {"float16": "F16", "bfloat16": "BF16", "float32": "F32"}.get(now.dtype, folder.dtype)
    weight = folder.packed(name, (num_rows, width), "", f"bitsandbytes, {kind.upper()}", rows)
    return msgspec.structs.replace(weight, info=msgspec.structs.replace(weight.info, dtype=dtype))


def int8_rows(folder: FewBitFolder, base: str, name: str, info: SafetensorInfo) -> Packed:
    """Bitsandbytes' 8 bits: one scale for each row."""
    scale, layout = f"{base}SCB", f"{base}weight_format"
    num_rows, _ = matrix_shape(folder, name, info.shape)
    if folder.tensors[scale].num_values != num_rows:
        raise BadWeights(folder.where, scale, f"{folder.tensors[scale].shape} scales for {num_rows} rows")
    if folder.has(layout) and folder.read(layout, None).any():
        raise UnsupportedModel(folder.where, f"{name} is stored in tiles for certain GPUs; rows can be read")

    def rows(part: slice) -> Floats:
        scales = folder.read(scale, None).reshape(-1)[part].astype(np.float32)
        values: Floats = folder.read(name, part).view(np.int8).astype(np.float32) * scales[:, None]
        return values * np.float32(1 / _INT8_STEPS)

    return folder.packed(name, info.shape, "", "bitsandbytes, 8 bits", rows)
