"""Estimates the speed of a model from the bytes read per token, their devices, and the work per prompt token."""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from devices.backends.cpu_kernels import ATTENTION
from devices.backends.openvino import BACKEND as OPENVINO
from devices.chips import cpu_kind
from devices.types import Device
from engine.placement.chip_speeds import (
    MIXTURE_LAYERS,
    MIXTURE_PROMPTS,
    OWN_KERNELS,
    Mixture,
    Rates,
    chip_speeds,
    gain_at,
    link_gbs,
    mixture_speed,
    openvino_rates,
    rates,
    rule_version,
    shared_gain,
    slowed,
    type_speed,
    unpack_ns,
)
from engine.placement.cpu_choices import ENOUGH_TOKENS
from engine.placement.estimate import CELL_PADDING, gpu_layer_start, kv_layer_bytes, on_gpu, padded, row_bytes
from engine.placement.history import MeasuredSpeed, ModelUsage, PlacementHistory, SpeedPoint, seconds_at
from engine.placement.measurements import TURN_PROMPT, Speed, SpeedAtLength, SpeedCurve
from engine.placement.results import build, digest
from engine.placement.shape import ModelShape, block_of
from engine.runner.protocol import LoadSettings
from quantize.files.gguf_file import TensorInfo
from quantize.ggml_types import GgmlType

NPU_LARGEST_PARAMETERS: Final = 4_000_000_000
# Ubatch for prompts when weights are in RAM: each weight is copied to the GPU once per ubatch. Published:
# gpt-oss-120b on an RTX 3090 with experts on the CPU reads 380 tokens/s with 512 and 1,113 with 2,048.
HOST_UBATCH: Final = 2048


class BackendPrior(msgspec.Struct, frozen=True):
    """`n_ubatch` suits its kernels; `head_widths` are the head sizes with fused attention."""

    n_ubatch: int
    head_widths: frozenset[int] = frozenset()


_COMMON: Final = frozenset({64, 80, 96, 112, 128, 256})
# Source: ubatch: lhl/strix-halo-testing (RADV 1,024, ROCm 2,048). Widths: those of llama.cpp's fattn.cu that Vulkan
# and Metal have kernels for too; for SYCL and OpenCL they depend on the device.
BACKENDS: dict[str, BackendPrior] = {
    "cuda": BackendPrior(512, _COMMON),
    "metal": BackendPrior(512, _COMMON),
    "vulkan": BackendPrior(1024, _COMMON),
    "rocm": BackendPrior(2048, _COMMON),
    "sycl": BackendPrior(512),
    "openvino": BackendPrior(512),
    "opencl": BackendPrior(512),
    "cpu": BackendPrior(512),
}

# A type that OpenVINO computes with unchanged, for a rate that names no model.
_OPENVINO_TYPE: Final = next(t.name for t in GgmlType if t.traits.openvino == "native" and not t.traits.is_float)


def effective_gbs(device: Device, backend: str) -> float:
    """Expected GB/s of decoding on this device through this backend."""
    if backend == OPENVINO:
        return openvino_rates(device, _OPENVINO_TYPE, None).gbs
    return rates(device, backend).gbs


# Tokens before each generated one if a model's use is not known yet.
USUAL_DEPTH: Final = 1024
# Points of a curve over prompt lengths, and the shortest prompt of one.
CURVE_STEPS: Final = 16
SHORTEST_PROMPT: Final = 64
# Points whose forecast differs by more than this were measured with another model.
SAME_MODEL: Final = 0.02
# Errors of forecasts of answers, of models and chips that the constants were not fitted to: half are smaller than
# the first, nine in ten smaller than the second.
USUAL_ERROR: Final = 0.15
RARE_ERROR: Final = 0.6
# Not measured: layers on several GPUs wait for each other.
SPLIT_EFFICIENCY: Final = 0.95
# A mixture that uses at most this many experts per token has few and large ones, like gpt-oss.
FEW_EXPERTS: Final = 4
# Ubatch with which prompts of mixtures were measured; more rows per expert are faster.
# Published: Strix Halo, Qwen3-30B-A3B: 1.3 times with 2,048.
USUAL_UBATCH: Final = 512
UBATCH_EXPONENT: Final = 0.25
# Share of the time for reading a dense model's weights per ubatch that is not hidden behind the products.
DENSE_PIECE: Final = 0.3
# Elements of the attention mask (ubatch x cached tokens, 16 bits each) that the caches of a chip hold: beyond them
# a prompt through RADV takes longer for each head and cached token, the more the larger the ubatch is.
# Published: Strix Halo, a dense 27B: the bend is at 9,000 tokens with an ubatch of 1,024, at 17,000 with 512 and at
# 34,000 with 256. Exponent: from the same curves.
CACHED_MASK: Final = 9e6
MASK_EXPONENT: Final = 0.6
# Attention kernels are made for heads of this size; larger ones cost more per multiplication.
NARROW_HEADS: Final = 128
# Types that are read without unpacking; and the one that GPUs have matrix units for only in some backends.
WIDE: Final = frozenset({GgmlType.BF16, GgmlType.F16})
SLOW_IN_PROMPTS: Final = GgmlType.BF16


def expert_frac(shape: ModelShape) -> float:
    """Share of its experts that one token uses; 1 without experts."""
    return min(1.0, shape.experts_used / shape.experts) if shape.experts and shape.experts_used else 1.0


def is_looked_up(name: str, shape: ModelShape) -> bool:
    """Whether a token reads one row of this table instead of multiplying with all of it."""
    tables = ("per_layer_token_embd", "token_embd") if not shape.tied else "per_layer_token_embd"
    return name.startswith(tables) or ".ffn_gate_tid2eid." in name


def is_head(name: str, shape: ModelShape) -> bool:
    """Whether this matrix computes the logits, which a prompt needs for its last token only."""
    return name == "output.weight" or (shape.tied and name == "token_embd.weight")


def bytes_per_token(
    shape: ModelShape, used_experts_frac: float, counts: Callable[[TensorInfo], bool] = lambda _tensor: True
) -> int:
    """Bytes of weights read per token, of tensors that `counts` accepts: used experts, no lookup tables."""
    read = 0.0
    for tensor in shape.tensors:
        if is_looked_up(tensor.name, shape) or not counts(tensor):
            continue
        read += tensor.nbytes * (used_experts_frac if "_exps" in tensor.name else 1.0)
    return int(read)


def weights_read(shape: ModelShape) -> int:
    """Bytes of weights that one token of this model reads."""
    return bytes_per_token(shape, expert_frac(shape))


def cache_read(shape: ModelShape, settings: LoadSettings, depth: float) -> float:
    """Bytes of cache that a token after `depth` others reads. A sliding layer reads at most its window."""
    cells = padded(max(settings.kv_cells, settings.n_ctx))
    if shape.compressed:
        values = 0.0
        for layer in shape.layers:
            values += shape.rows_attended(layer, depth) * layer.key_values
            values += depth / max(1, layer.row_tokens) * layer.index_values
        return values * row_bytes(CELL_PADDING, settings.type_k) / CELL_PADDING
    read = 0.0
    for layer, size in zip(shape.layers, kv_layer_bytes(shape, settings), strict=True):
        rows = min(depth, shape.sliding_window) if layer.sliding and shape.sliding_window else depth
        if layer.most_read:
            index = layer.index_values / (layer.key_values + layer.value_values + layer.index_values)
            rows = index * rows + (1 - index) * min(rows, layer.most_read)
        read += size * min(1.0, rows / cells)
    return read


def expected_depth(settings: LoadSettings, use: ModelUsage | None) -> float:
    """Tokens before each generated one: from this model's use, else a usual chat's."""
    return min(use.depth if use is not None and use.tokens else USUAL_DEPTH, settings.n_ctx)


def mixture_kind(shape: ModelShape) -> Mixture:
    """The kind of mixture, which decides the cost of its small products."""
    names = {tensor.name for tensor in shape.tensors}
    beside = any("_shexp" in name or name.endswith(".ffn_gate.weight") for name in names)
    if shape.recurrent or beside:
        return "mixed"
    return "few" if shape.experts_used <= FEW_EXPERTS else "many"


class Forecast(msgspec.Struct, frozen=True):
    """Seconds per token with layers on `devices`: (device, backend, share of the GPU layers).

    The CPU reads the rest. If `settings` offload nothing, the only device with all layers is the CPU itself.
    `memory` has speeds in GB/s that earlier answers had here; without it, this is the rule alone.
    """

    shape: ModelShape
    settings: LoadSettings
    devices: tuple[tuple[Device, str, float], ...]
    cpu: Device | None
    memory: PlacementHistory | None = None

    @property
    def whole(self) -> int:
        """Bytes of weights read per token."""
        return weights_read(self.shape)

    @property
    def near(self) -> int:
        """The part of these bytes that the devices read."""
        shape = self.shape
        if not self.settings.n_gpu_layers:
            return self.whole
        near = bytes_per_token(shape, expert_frac(shape), on_gpu(shape, self.settings))
        if shape.tied:  # the head is a second copy of the embedding on the device
            near = min(self.whole, near + sum(t.nbytes for t in shape.tensors if t.name == "token_embd.weight"))
        return near

    def measured_gbs(self, device: str, backend: str) -> float | None:
        """Memory speed in GB/s that earlier answers reached there."""
        return self.memory.speed_gbs(device, backend) if self.memory is not None else None

    @property
    def is_measured(self) -> bool:
        return any(self.measured_gbs(device.id, backend) is not None for device, backend, _ in self.devices)

    def decode_s(self, depth: float) -> float:
        """Seconds for one generated token after `depth` others."""
        shape, settings, whole, near = self.shape, self.settings, self.whole, self.near
        share_near, caches = near / whole if whole else 1.0, cache_read(shape, settings, depth)
        there = on_gpu(shape, settings)
        wide = bytes_per_token(shape, expert_frac(shape), lambda t: there(t) and t.ggml_type in WIDE) if near else 0
        seconds = 0.0
        for device, backend, share in self.devices:
            measured = self.measured_gbs(device.id, backend)
            if measured is not None:
                seconds += share * near / 1e9 / measured
                continue
            rate = _rates(shape, settings, device, backend)
            own = _weights_s(shape, rate, near, wide) + caches * share_near / 1e9 / rate.cache_read_gbs
            if rate.unpack_s:
                own += rate.unpack_s * packed_weights(shape, there)
            own += _answer_s(shape, settings, device, backend, rate, depth)
            seconds += share * slowed(own, depth, device, backend, shape.architecture, is_prompt=False)
        if len(self.devices) > 1:
            seconds /= SPLIT_EFFICIENCY
        if near < whole and self.cpu is not None:
            here = _rates(shape, settings, self.cpu, "cpu")
            slow = self.measured_gbs("cpu", "cpu") or here.gbs
            seconds += ((whole - near) / slow + caches * (1 - share_near) / here.cache_read_gbs) / 1e9
        return seconds

    def prompt_s(self, depth: float) -> float:
        """Seconds for one prompt token after `depth` others."""
        shape, settings, whole, near = self.shape, self.settings, self.whole, self.near
        share_near = near / whole if whole else 1.0
        # llama.cpp computes prompts on the GPU even with weights in RAM, unless the user disabled it.
        copies = settings.engine_args.op_offload is not False
        share_there = 1.0 if copies else share_near
        seconds = sum(
            share
            * share_there
            * _prompt_s(shape, settings, device, backend, _rates(shape, settings, device, backend), depth)
            for device, backend, share in self.devices
        )
        if near < whole and self.cpu is not None:
            if copies:
                shares = [(device, share) for device, _, share in self.devices]
                seconds += _copied_s(shape, settings, shares, on_gpu(shape, settings))
            else:
                here = _rates(shape, settings, self.cpu, "cpu")
                seconds += (1 - share_near) * _prompt_s(shape, settings, self.cpu, "cpu", here, depth)
        return seconds

    def measured_at(
        self,
        lengths: Sequence[tuple[int, float, float]],
        answer: int,
        now: float,
        together: Sequence[tuple[int, float]] = (),
    ) -> MeasuredSpeed:
        """The record of measurements: (prompt tokens, tokens/s of the prompt, of `answer` tokens after it).

        A prompt token takes as long as one in the prompt's middle. `together`: gains of several answers at once.
        """
        prompt, decode = [], []
        for length, prefill_tok_s, decode_tok_s in sorted(lengths):
            read, written = length / 2, length + answer / 2
            prompt.append(SpeedPoint(read, 1 / prefill_tok_s, self.prompt_s(read)))
            decode.append(SpeedPoint(written, 1 / decode_tok_s, self.decode_s(written)))
        return MeasuredSpeed(tuple(prompt), tuple(decode), now, tuple(together))

    @property
    def key(self) -> str:
        """Key of everything that a measured speed depends on: chips, drivers, kernels, family of models, layout.

        Models of one family differ in size only, which the rule knows; it is part of the key too, because measured
        speeds are stored as multiples of it.
        """
        shape, settings = self.shape, self.settings
        is_split = gpu_layer_start(shape, settings.n_gpu_layers) > 0
        has_experts = settings.cpu_expert_layers > 0
        on_cpu = is_split or has_experts or any(device.kind == "cpu" for device, _, _ in self.devices)
        chips = [(d.chip or d.name, d.driver_version, backend) for d, backend, _ in self.devices]
        if on_cpu and self.cpu is not None:
            chips.append((self.cpu.chip or self.cpu.name, None, "cpu"))
        family = (shape.architecture, bool(shape.experts), main_type(shape))
        own = (settings.n_threads, settings.tiles, settings.repack) if on_cpu else ()
        layout = (is_split, has_experts, settings.flash_attn, settings.type_k)
        return digest(repr((chips, build(), rule_version(), family, own, layout)))


def expected(rule: Forecast, memory: PlacementHistory, owner: str) -> Speed:
    """Speed of a place for `owner`'s use: as its answers were, as measured here, or by the rule.

    On a CPU, whose speed varies most with its memory and its neighbours, the rule is corrected by the times of
    other models' answers.
    """
    use = memory.use(owner)
    depth = expected_depth(rule.settings, use)
    speed = _expected_at(rule, memory, owner, max(depth - TURN_PROMPT / 2, TURN_PROMPT / 2), depth)
    answers = answers_at_once(rule.settings, use)
    return msgspec.structs.replace(speed, answers=answers, gain=_gain(rule, memory, answers))


def answers_at_once(settings: LoadSettings, use: ModelUsage | None) -> float:
    """How many of this model's answers run at once on average, as its use shows; further ones wait."""
    if use is None or use.tokens < ENOUGH_TOKENS:
        return 1.0
    return max(1.0, min(use.at_once, settings.n_parallel))


def _gain(rule: Forecast, memory: PlacementHistory, answers: float) -> float:
    """Total tokens/s of that many answers, relative to one alone: as measured here, or as published.

    The device that gains least decides, because all of them compute each token.
    """
    if answers <= 1:
        return 1.0
    measured = memory.measured_speed(rule.key) if memory.knows_speeds else None
    if measured is not None and measured.together:
        return gain_at(measured.together, answers)
    places = [(device, backend) for device, backend, _ in rule.devices]
    if rule.near < rule.whole and rule.cpu is not None:
        places.append((rule.cpu, "cpu"))
    experts = bool(rule.shape.experts)
    return min(shared_gain(device, backend, answers, experts=experts) for device, backend in places)


def _expected_at(rule: Forecast, memory: PlacementHistory, owner: str, prompt_depth: float, depth: float) -> Speed:
    """The same for prompt tokens after `prompt_depth` others, and generated ones after `depth` others."""
    measured = memory.measured_speed(rule.key) if memory.knows_speeds else None
    if measured is not None:
        prompt, decode = (
            seconds_at(measured.prompt, prompt_depth, rule.prompt_s),
            seconds_at(measured.decode, depth, rule.decode_s),
        )
        speed = Speed(1 / prompt if prompt else 0.0, 1 / decode if decode else 0.0, True)
        return _answered(speed, rule, memory, owner, depth, by_others=False)
    forecast = msgspec.structs.replace(rule, memory=memory)
    prompt, decode = forecast.prompt_s(prompt_depth), forecast.decode_s(depth)
    speed = Speed(1 / prompt if prompt else 0.0, 1 / decode if decode else 0.0, forecast.is_measured)
    return _answered(speed, rule, memory, owner, depth, by_others=True)


def _answered(
    speed: Speed, rule: Forecast, memory: PlacementHistory, owner: str, depth: float, *, by_others: bool
) -> Speed:
    """The speed according to earlier answers on the only device of this place.

    Answers of this model count; on a CPU, answers of other models correct the rule too. Their GB/s would be less
    accurate: the types of their weights take different times to unpack.
    """
    device, backend, _ = rule.devices[0]
    if len(rule.devices) > 1 or 0 < rule.settings.n_gpu_layers <= len(rule.shape.layers):
        return speed
    own = memory.correction(device.id, backend, owner)
    others = memory.usual_correction(device.id, backend) if by_others and device.kind == "cpu" else None
    factor = own if own is not None else others
    if factor is None:
        return speed
    seconds = rule.decode_s(depth)
    decode_tok_s = factor / seconds if seconds else 0.0
    return msgspec.structs.replace(speed, decode_tok_s=decode_tok_s, measured=own is not None)


def speed_curve(rule: Forecast, memory: PlacementHistory, owner: str) -> SpeedCurve:
    """Forecast, expectation and measured points over prompt lengths up to the context of `rule`.

    A prompt token takes as long as one in the prompt's middle, as in `Forecast.measured_at`.
    """
    context = max(1, rule.settings.n_ctx)
    stored = memory.measured_speed(rule.key)
    points = list(zip(stored.prompt, stored.decode, strict=False)) if stored is not None else []
    even = {max(1, context * i // CURVE_STEPS) for i in range(1, CURVE_STEPS + 1)}
    lengths = sorted(even | {min(SHORTEST_PROMPT, context)} | {round(2 * read.depth) for read, _ in points})
    forecast, now = [], []
    for length in lengths:
        prompt, decode = rule.prompt_s(length / 2), rule.decode_s(length)
        if prompt <= 0 or decode <= 0:
            return SpeedCurve()
        forecast.append(SpeedAtLength(length, 1 / prompt, 1 / decode))
        speed = _expected_at(rule, memory, owner, length / 2, length)
        now.append(SpeedAtLength(length, speed.prefill_tok_s, speed.decode_tok_s))
    measured, of_family = [], False
    for read, written in points:
        read_s, written_s = rule.prompt_s(read.depth), rule.decode_s(written.depth)
        of_family = of_family or abs(written_s / written.forecast_s - 1) > SAME_MODEL
        prefill_tok_s = read.forecast_s / (read.measured_s * read_s)
        decode_tok_s = written.forecast_s / (written.measured_s * written_s)
        measured.append(SpeedAtLength(round(2 * read.depth), prefill_tok_s, decode_tok_s))
    return SpeedCurve(
        forecast=tuple(forecast),
        expected=tuple(now),
        measured=tuple(measured),
        of_family=of_family,
        usual_error=USUAL_ERROR,
        rare_error=RARE_ERROR,
    )


def _rates(shape: ModelShape, settings: LoadSettings, device: Device, backend: str) -> Rates:
    count = settings.n_threads or None
    if backend == OPENVINO:
        return openvino_rates(device, main_type(shape), count)
    return rates(device, backend, count)


def main_type(shape: ModelShape) -> str:
    """Name of the type with the most bytes among the multiplied weights."""
    sizes: dict[str, int] = {}
    for tensor in shape.tensors:
        if len(tensor.shape) > 1 and not is_looked_up(tensor.name, shape):
            sizes[tensor.ggml_type.name] = sizes.get(tensor.ggml_type.name, 0) + tensor.num_values
    return max(sizes, key=lambda name: sizes[name], default="F16")


def _weights_s(shape: ModelShape, rate: Rates, num_bytes: int, wide_bytes: int) -> float:
    """Seconds per token for reading these weights, some of which have 16 bits."""
    seconds = (num_bytes - wide_bytes) / rate.gbs + wide_bytes / (rate.wide_gbs or rate.gbs)
    if shape.experts and rate.wide_experts_gbs is not None:
        seconds += wide_bytes / rate.wide_experts_gbs
    return seconds / 1e9


def packed_weights(shape: ModelShape, there: Callable[[TensorInfo], bool]) -> float:
    """Billions of weights of fewer than 16 bits that one token needs of those tensors, and of a tied head."""
    packed, frac = 0.0, expert_frac(shape)
    for tensor in shape.tensors:
        is_matrix = len(tensor.shape) > 1 and not is_looked_up(tensor.name, shape)
        if (
            is_matrix
            and tensor.ggml_type not in WIDE
            and (there(tensor) or (shape.tied and is_head(tensor.name, shape)))
        ):
            packed += tensor.num_values * (frac if "_exps" in tensor.name else 1.0)
    return packed / 1e9


def _answer_s(
    shape: ModelShape, settings: LoadSettings, device: Device, backend: str, rate: Rates, depth: float
) -> float:
    """Seconds per token in addition to reading: layers, their experts, recurrent layers, and attention."""
    if device.kind == "cpu" and backend == "cpu":
        return _slow_products_s(shape, settings, device, rate)
    if device.kind not in {"igpu", "dgpu"}:
        return 0.0
    first = min(len(shape.layers), gpu_layer_start(shape, settings.n_gpu_layers))
    offloaded = len(shape.layers) - first
    linear = sum(1 for layer in shape.layers[first:] if layer.state_bytes)
    seconds = rate.token_s + offloaded * rate.layer_s + linear * rate.linear_s
    if rate.answer_attention_gflops is not None:
        seconds += 2 * attention_gmac(shape, depth) / rate.answer_attention_gflops
    if shape.experts:
        there, kind = max(0, offloaded - settings.cpu_expert_layers), mixture_kind(shape)
        if rate.expert_layer_s is not None:
            seconds += there * rate.expert_layer_s * MIXTURE_LAYERS[kind]
        else:
            seconds += there * mixture_speed(device, backend).layer_ms[kind] / 1000
    return seconds


def _slow_products_s(shape: ModelShape, settings: LoadSettings, device: Device, rate: Rates) -> float:
    """Seconds per token that a CPU needs in addition to reading weights: to unpack, to wait, and to sample."""
    rule, threads = chip_speeds().cpu, max(1, settings.n_threads or (device.cores.threads if device.cores else 1))
    kind, frac, read, unpacked = cpu_kind(device.chip or device.name), expert_frac(shape), 0.0, 0.0
    for tensor in shape.tensors:
        if len(tensor.shape) == 1 or is_looked_up(tensor.name, shape):
            continue
        used = frac if "_exps" in tensor.name else 1.0
        read += tensor.nbytes * used / 1e9 / rate.gbs
        if tensor.ggml_type not in WIDE:
            unpacked += tensor.num_values * used / 1e9 * unpack_ns(kind, tensor.ggml_type.name) / threads
        else:
            unpacked += tensor.nbytes * used / 1e9 / rate.gbs
    barriers = len(shape.layers) * rule.layer_us / 1e6 if threads > 1 else 0.0
    return max(0.0, unpacked - read) + barriers + rule.token_us / 1e6


def attention_gmac(shape: ModelShape, depth: float) -> float:
    """Billions of multiply-adds of attention for one token after `depth` others."""
    rows = sum(shape.rows_attended(layer, depth) for layer in shape.layers if layer.key_values)
    return 2 * (shape.attention or shape.embedding) * rows / 1e9


def beyond_cached_mask(depth: float, piece: float) -> float:
    """Cached tokens beyond those whose mask the chip's caches hold, for a prompt in ubatches of `piece`."""
    return max(0.0, depth - CACHED_MASK / piece) * float((piece / USUAL_UBATCH) ** MASK_EXPONENT)


def _attention_s(shape: ModelShape, rate: Rates, depth: float, piece: int) -> float:
    """Seconds of attention for one prompt token after `depth` others."""
    seconds = 2 * attention_gmac(shape, depth) / rate.attention_rate
    if not (rate.prompt_pair_s or rate.prompt_mask_s or rate.prompt_wide_heads_s):
        return seconds
    whole = [layer for layer in shape.layers if layer.key_values and not (layer.sliding and shape.sliding_window)]
    heads, width = shape.heads / 1e9, (shape.attention or shape.embedding) / max(1, shape.heads)
    cached = attention_gmac(shape, depth) / (2 * width)  # billions of pairs of a head and a cached token
    seconds += cached * rate.prompt_pair_s
    seconds += heads * len(whole) * beyond_cached_mask(depth, piece) * rate.prompt_mask_s
    if width > NARROW_HEADS:
        of_whole = attention_gmac(msgspec.structs.replace(shape, layers=tuple(whole)), depth)
        seconds += of_whole * rate.prompt_wide_heads_s
    return seconds


def _prompt_s(
    shape: ModelShape, settings: LoadSettings, device: Device, backend: str, rate: Rates, depth: float
) -> float:
    """Seconds of computing for one prompt token after `depth` others."""
    on_cpu = device.kind not in {"igpu", "dgpu"}
    # No CPU without VNNI was timed, so the gain of these kernels there does not influence the choice of a device.
    own = set(settings.tiles) if on_cpu and "avx512_vnni" in device.isa else set()
    if ATTENTION in own:
        rate = msgspec.structs.replace(rate, attention_gflops=rate.attention_rate * chip_speeds().cpu.own_attention)
    share, work, active, wide, weights = expert_frac(shape), 0.0, 0.0, 0.0, 0
    for tensor in shape.tensors:
        name = tensor.ggml_type.name
        if len(tensor.shape) == 1 or is_looked_up(tensor.name, shape):
            continue
        if own and is_head(tensor.name, shape):  # the other rates were fitted with the head included
            continue
        used = tensor.num_values * (share if "_exps" in tensor.name else 1.0)
        by_type = type_speed(OWN_KERNELS if name in own else backend, name)
        if rate.prompt_wide_s and tensor.ggml_type == SLOW_IN_PROMPTS:
            by_type = 1.0
        work += 2 * used / by_type
        active += used / 1e9
        wide += used / 1e9 if tensor.ggml_type == SLOW_IN_PROMPTS else 0.0
        weights += tensor.nbytes
    seconds = work / 1e9 / rate.gflops
    piece = max(1, min(settings.n_ubatch, TURN_PROMPT))
    if shape.experts:
        seconds += _experts_s(shape, device, backend, rate, seconds, active, piece)
    linear = sum(1 for layer in shape.layers if layer.state_bytes)
    seconds += _attention_s(shape, rate, depth, max(1, settings.n_ubatch))
    seconds += rate.prompt_token_s + linear * rate.prompt_linear_s + wide * rate.prompt_wide_s
    whole = weights / 1e9 * (1.0 if shape.experts else DENSE_PIECE)
    of_piece = whole * rate.piece_gb_s + len(shape.layers) * rate.piece_layer_s
    seconds += (of_piece + cache_read(shape, settings, depth) / 1e9 * rate.piece_cache_gb_s) / piece
    return slowed(seconds, depth, device, backend, shape.architecture, is_prompt=True)


def _experts_s(
    shape: ModelShape, device: Device, backend: str, rate: Rates, seconds: float, active: float, piece: int
) -> float:
    """Extra seconds per prompt token of a mixture, compared with a dense model that takes `seconds`."""
    if device.kind not in {"igpu", "dgpu"}:
        return seconds * (1 / chip_speeds().cpu.mixture - 1)
    kind = mixture_kind(shape)
    fewer: float = (USUAL_UBATCH / piece) ** UBATCH_EXPONENT
    if rate.prompt_experts_s is not None:
        return active * rate.prompt_experts_s * MIXTURE_PROMPTS[kind] * fewer
    return seconds * (1 / mixture_speed(device, backend).prompt[kind] - 1) * fewer


def _copied_s(
    shape: ModelShape,
    settings: LoadSettings,
    devices: Sequence[tuple[Device, float]],
    there: Callable[[TensorInfo], bool],
) -> float:
    """Seconds per prompt token for copying the weights in RAM to the GPU that computes with them.

    llama.cpp does that for ubatches of 32 tokens and more, once per ubatch, one copy after another, and only for
    the experts that the ubatch needs.
    """
    piece = max(1, min(settings.n_ubatch, TURN_PROMPT))
    frac = 1 - (1 - expert_frac(shape)) ** piece
    copied = 0.0
    for tensor in shape.tensors:
        if block_of(tensor.name) is not None and len(tensor.shape) > 1 and not there(tensor):
            copied += tensor.nbytes * (frac if "_exps" in tensor.name else 1.0)
    gbs = sum(share * link_gbs(device) for device, share in devices)
    return copied / 1e9 / gbs / piece if gbs else 0.0
