"""How fast a model is expected to be: what a token reads, where those bytes lie, what a prompt computes."""

from collections.abc import Callable
from typing import Final

import msgspec

from devices.types import Device
from engine.dispatch.history import PlacementHistory, Use
from engine.dispatch.priors import (
    BACKENDS,
    CPU_EFFICIENCY,
    EXPERTS_PREFILL,
    FLOP_PER_BYTE,
    SPLIT_EFFICIENCY,
    bandwidth_gbs,
    effective_gbs,
)
from engine.fit.need import kv_layer_bytes, on_gpu, padded
from engine.fit.shape import ModelShape
from engine.runner.protocol import LoadSettings
from quantize.files.gguf_file import TensorInfo

# The turn that placements are compared by: a message with some context, and a few paragraphs of answer.
TURN_PROMPT: Final = 1000
TURN_ANSWER: Final = 250
# Tokens before each answered one where a model's use is not known yet.
USUAL_DEPTH: Final = 1024


class Speed(msgspec.Struct, frozen=True):
    """Expected tokens a second read and written; `measured`: by what was measured on this machine."""

    prefill_tok_s: float
    decode_tok_s: float
    measured: bool

    @property
    def turn_s(self) -> float:
        """Seconds of a usual turn."""
        if self.prefill_tok_s <= 0 or self.decode_tok_s <= 0:
            return float("inf")
        return TURN_PROMPT / self.prefill_tok_s + TURN_ANSWER / self.decode_tok_s


def expert_frac(shape: ModelShape) -> float:
    """The part of its experts that one token uses; 1 where there are none."""
    return min(1.0, shape.experts_used / shape.experts) if shape.experts and shape.experts_used else 1.0


def bytes_per_token(
    shape: ModelShape, used_experts_frac: float, counts: Callable[[TensorInfo], bool] = lambda _tensor: True
) -> int:
    """Weights read for one token, of those that count: of experts only the used ones, of the embedding one row."""
    read = 0.0
    for tensor in shape.tensors:
        if (tensor.name.startswith("token_embd") and not shape.tied) or not counts(tensor):
            continue
        read += tensor.nbytes * (used_experts_frac if "_exps" in tensor.name else 1.0)
    return int(read)


def weights_read(shape: ModelShape) -> int:
    """Bytes of weights one token of this model reads."""
    return bytes_per_token(shape, expert_frac(shape))


def active_values(shape: ModelShape) -> float:
    """Weights that one token is multiplied with."""
    share = expert_frac(shape)
    return sum(t.num_values * (share if "_exps" in t.name else 1.0) for t in shape.tensors if len(t.shape) > 1)


def cache_read(shape: ModelShape, settings: LoadSettings, depth: float) -> float:
    """Bytes of cache that a token behind `depth` others reads. A sliding layer reads its window at the most."""
    cells = padded(max(settings.kv_cells, settings.n_ctx))
    read = 0.0
    for layer, size in zip(shape.layers, kv_layer_bytes(shape, settings), strict=True):
        rows = min(depth, shape.sliding_window) if layer.sliding and shape.sliding_window else depth
        read += size * min(1.0, rows / cells)
    return read


def expected_depth(settings: LoadSettings, use: Use | None) -> float:
    """Tokens before each answered one: as this model is used, else a usual chat's."""
    return min(use.depth if use is not None and use.tokens else USUAL_DEPTH, settings.n_ctx)


def expected(
    shape: ModelShape,
    settings: LoadSettings,
    devices: tuple[tuple[Device, str, float], ...],
    cpu: Device | None,
    memory: PlacementHistory,
    owner: str,
) -> Speed:
    """With layers on `devices`: (device, backend, share of what lies on GPUs); the CPU reads the rest.

    One device with all layers is the CPU itself where `settings` offload nothing.
    """
    frac = expert_frac(shape)
    whole = bytes_per_token(shape, frac)
    there = on_gpu(shape, settings)
    near = bytes_per_token(shape, frac, there) if settings.n_gpu_layers else whole
    if shape.tied and settings.n_gpu_layers:  # the head is the embedding, on the device once more
        near = min(whole, near + sum(t.nbytes for t in shape.tensors if t.name == "token_embd.weight"))
    share_near = near / whole if whole else 1.0
    caches = cache_read(shape, settings, expected_depth(settings, memory.use(owner)))
    seconds = prefill = 0.0
    is_measured = False
    compute = 2 * active_values(shape) / 1e9
    for device, backend, share in devices:
        measured = memory.speed_gbs(device.id, backend)
        is_measured = is_measured or measured is not None
        read = share * (near if measured else near + caches * share_near) / 1e9
        seconds += read / (measured or effective_gbs(device, backend))
        prefill += share * share_near * compute / _gflops(shape, device, backend)
    if len(devices) > 1:
        seconds /= SPLIT_EFFICIENCY
    if near < whole and cpu is not None:
        slow = memory.speed_gbs("cpu", "cpu") or bandwidth_gbs(cpu)[0] * CPU_EFFICIENCY
        seconds += (whole - near + caches * (1 - share_near)) / 1e9 / slow
        prefill += (1 - share_near) * compute / _gflops(shape, cpu, "cpu")
    return Speed(1 / prefill if prefill else 0.0, 1 / seconds if seconds else 0.0, is_measured)


def _gflops(shape: ModelShape, device: Device, backend: str) -> float:
    """Billions of operations a second that prefill reaches."""
    prior = BACKENDS.get(backend, BACKENDS["cpu"])
    experts = EXPERTS_PREFILL if shape.experts else 1.0
    kind = device.kind if device.kind in FLOP_PER_BYTE else "cpu"
    if device.vendor == "software":
        return FLOP_PER_BYTE["cpu"] * effective_gbs(device, backend)
    return bandwidth_gbs(device)[0] * FLOP_PER_BYTE[kind] * prior.prefill * experts
