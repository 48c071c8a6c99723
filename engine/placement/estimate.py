"""Estimates the bytes of a load from its shape and settings or a dry run, with drafts and several GPUs."""

import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from pathlib import Path

import msgspec

from devices.backends.cpu_kernels import ATTENTION
from devices.backends.openvino import BACKEND
from devices.errors import PoolExceeded, TesseraError
from devices.memory_ledger import DeviceBytes, Ledger
from devices.types import Machine
from engine.core.errors import BadModelFile, exhausted
from engine.message_catalog.reasons import because
from engine.placement import openvino
from engine.placement.shape import Layer, ModelShape, block_of, is_repacked, model_shape
from engine.placement.types import CPU, WORKERS, Basis, DryRun, MemoryEstimate, MemoryPart, PartName
from engine.runner.engine_args import overrides
from engine.runner.expert_tensors import stacks
from engine.runner.load_limits import (
    COPIED_DIVISOR,
    KV_TYPES,
    draft_settings,
    drops_copied,
    exact_settings,
    mtp_settings,
    resize_context,
    rollback,
    sequences,
)
from engine.runner.protocol import LoadSettings
from quantize.files.gguf_file import TensorInfo
from quantize.files.gguf_split import read_gguf_model
from quantize.ggml_types import BLOCK_SIZES, GgmlType

CELL_PADDING = 256
PAGE_BYTES = 4096
# Memory that serving adds to a loaded runner: samplers, token lists, the prefix trie of a full context, and the
# heaps of the tokenizer threads. Measured: log-archive.md, memory (5 to 7 MB, and about 150 bytes per token of
# context).
SERVING_BYTES, SERVING_TOKEN_BYTES = 6 << 20, 150
# Process, interpreter and libraries of a runner, and bytes per token of vocabulary (text, piece table, the table
# for constrained output). Measured: log-archive.md, memory. Used only if no dry run is available.
PROCESS_BYTES = 50 << 20
VOCABULARY_TOKEN_BYTES = 700
# Bytes that one thread of Tessera's kernels decodes at once. Source: engine/kernels/tiles.h, PANEL_BYTES.
TILE_PANEL_BYTES = 80 << 10
# Bytes of 32 values of a column with two scales and two sums. Source: engine/kernels/multiply.cpp, `work_for`.
TILE_BLOCK_BYTES = 48
# Cells per attention tile, rows per strip, strips that share a tile. Source: engine/kernels/tiles.h.
TILE_CELLS, TILE_STRIP, TILE_STRIPS = 64, 48, 4
# A projector takes the size of its file, plus a fifth for the graph of one image. A prior, not measured.
PROJECTOR_EXTRA_DIVISOR = 5


def padded(cells: int) -> int:
    """Cells that llama.cpp allocates for a context size. Source: llama-context.cpp, GGML_PAD(n_ctx, 256)."""
    return -(-cells // CELL_PADDING) * CELL_PADDING


def kv_layer_bytes(shape: ModelShape, settings: LoadSettings) -> tuple[int, ...]:
    """Bytes of each layer's cache. A sliding layer stores its window for every sequence plus one ubatch."""
    cells = padded(max(settings.kv_cells, settings.n_ctx))
    count = sequences(settings, keeps_state=shape.recurrent)
    window = padded(min(cells, shape.sliding_window * count + settings.n_ubatch))
    if shape.compressed:
        return tuple(count * _compressed_bytes(shape, layer, settings, cells) for layer in shape.layers)
    sizes = []
    for layer in shape.layers:
        size = window if layer.sliding and not settings.engine_args.swa_full else cells
        keys = row_bytes(layer.key_values, settings.type_k) + row_bytes(layer.index_values, settings.type_k)
        sizes.append(size * (keys + row_bytes(layer.value_values, settings.type_v)))
    return tuple(sizes)


def _compressed_bytes(shape: ModelShape, layer: Layer, settings: LoadSettings, cells: int) -> int:
    """Bytes of one sequence's cache in a layer with a window and compressed rows."""
    window = padded(min(cells, shape.sliding_window + settings.n_ubatch))
    rows = padded(-(-cells // layer.row_tokens)) if layer.row_tokens else 0
    keys, index = (row_bytes(n, settings.type_k) for n in (layer.key_values, layer.index_values))
    return window * keys + rows * (keys + index)


def touched_bytes(shape: ModelShape, settings: LoadSettings) -> int:
    """Bytes of a lazily read table that a full context brings into memory: whole pages, for each row of a token."""
    table = shape.lazy_table if settings.lazy_tables else None
    if table is None:
        return 0
    rows = max(1, shape.embedding // table.shape[0])
    pages = -(-table.nbytes // table.shape[1] // PAGE_BYTES)
    return min(table.nbytes, max(settings.kv_cells, settings.n_ctx) * rows * pages * PAGE_BYTES)


def row_bytes(values: int, kv_type: str) -> int:
    """Bytes of that many values of one cached token."""
    block, width = BLOCK_SIZES[GgmlType(KV_TYPES[kv_type])]
    return -(-values // block) * width


def gpu_layer_start(shape: ModelShape, n_gpu_layers: int) -> int:
    """Index of the first layer on the GPU: llama.cpp offloads the last ones. -1 means all layers and the output."""
    if n_gpu_layers < 0:
        return 0
    return max(0, len(shape.layers) + 1 - n_gpu_layers) if n_gpu_layers else len(shape.layers) + 1


def estimate(
    shape: ModelShape,
    settings: LoadSettings,
    isa: frozenset[str],
    *,
    gpu: str | None = None,
    dry_run: DryRun | None = None,
    projector_bytes: int = 0,
    correction: float = 1.0,
) -> MemoryEstimate:
    """Bytes that a load needs.

    `gpu` is the device that `n_gpu_layers` layers go to; without it everything is on the CPU. `dry_run` replaces
    formulas with llama.cpp's own numbers. `correction` is the extra memory that earlier loads of this kind were
    measured to need.
    """
    layers_from = gpu_layer_start(shape, settings.n_gpu_layers) if gpu else len(shape.layers) + 1
    kv = kv_layer_bytes(shape, settings)
    count = sequences(settings, keeps_state=shape.recurrent)
    weights, stale = _weights(shape, settings, isa, gpu, layers_from)
    parts = [
        *weights,
        *_caches(
            shape,
            kv,
            count * (1 + rollback(settings)),
            gpu,
            layers_from,
            dry_run,
            offloaded=settings.engine_args.kv_offload is not False,
        ),
    ]
    parts += _compute(shape, settings, gpu, layers_from, dry_run)
    output = dry_run.output_bytes if dry_run else 4 * shape.vocabulary * count
    parts.append(_part("output", CPU, output, dry_run))
    if projector_bytes:
        size = projector_bytes + projector_bytes // PROJECTOR_EXTRA_DIVISOR
        there = CPU if gpu is None or settings.projector_on_cpu else gpu
        parts.append(MemoryPart(name="projector", device=there, num_bytes=size, basis="prior"))
    overhead = dry_run.overhead_bytes if dry_run else PROCESS_BYTES + VOCABULARY_TOKEN_BYTES * shape.vocabulary
    overhead += work_bytes(shape, settings) + tile_bytes(shape, settings) if layers_from else 0
    overhead += SERVING_BYTES + SERVING_TOKEN_BYTES * max(settings.kv_cells, settings.n_ctx)
    parts.append(_part("overhead", CPU, overhead, dry_run))
    if settings.cache_ram_bytes:
        parts.append(MemoryPart(name="prefixes", device=CPU, num_bytes=settings.cache_ram_bytes))
    if correction != 1.0:
        extra = round(sum(p.num_bytes for p in parts) * (correction - 1))
        parts.append(MemoryPart(name="correction", device=gpu or CPU, num_bytes=extra, basis="probe"))
    elsewhere = sum(p.num_bytes for p in parts if p.device != CPU)
    untouched = dry_run.untouched_bytes if dry_run else 4 * shape.vocabulary * max(0, count - settings.n_parallel)
    return MemoryEstimate(
        n_ctx=settings.n_ctx,
        kv_cells=padded(max(settings.kv_cells, settings.n_ctx)),
        n_sequences=count,
        type_k=settings.type_k,
        type_v=settings.type_v,
        n_gpu_layers=settings.n_gpu_layers if gpu else 0,
        parts=tuple(p for p in parts if p.num_bytes),
        resident_bytes=sum(p.num_bytes for p in parts) - elsewhere - untouched - settings.cache_ram_bytes + stale,
        kv_layer_bytes=kv,
    )


def _part(name: PartName, device: str, num_bytes: int, dry_run: DryRun | None) -> MemoryPart:
    return MemoryPart(name=name, device=device, num_bytes=num_bytes, basis="probe" if dry_run else "prior")


def _weights(
    shape: ModelShape, settings: LoadSettings, isa: frozenset[str], gpu: str | None, layers_from: int
) -> tuple[list[MemoryPart], int]:
    """Weights by device, and bytes of file pages that stay in memory although they are no longer used.

    On the CPU, repacked weights are allocated memory and the rest are pages of the mapped file. For streamed
    experts, only the cached part counts; of a table that is read row by row, what a full context touches. Adapters
    are where the layers are.
    """
    offloaded = own = 0
    mapped, on_demand = touched_bytes(shape, settings), _on_demand(shape, settings)
    trunk, stale = len(shape.layers), 0
    there = on_gpu(shape, settings)
    for tensor in shape.tensors:
        block = block_of(tensor.name)
        if tensor.name in on_demand or (block is not None and block >= trunk and not settings.mtp):
            continue  # draft layers are not loaded
        if gpu and there(tensor):
            offloaded += tensor.nbytes
        elif settings.repack and is_repacked(tensor, isa):
            own += tensor.nbytes
            stale += tensor.nbytes if settings.use_mmap else 0
        elif settings.use_mmap:
            mapped += tensor.nbytes
        else:
            own += tensor.nbytes
    if shape.tied:
        embedding = next((t for t in shape.tensors if t.name == "token_embd.weight"), None)
        if embedding is not None:  # the head is a second copy of the embedding, unless both uses can share it
            if gpu and layers_from <= trunk:
                offloaded += embedding.nbytes
            elif settings.repack and is_repacked(embedding, isa, as_head=True):
                own += embedding.nbytes
    adapters = sum(map(_file_bytes, settings.lora))
    adapters_there = adapters * max(0, trunk - layers_from) // max(1, trunk) if gpu else 0
    own, offloaded = own + adapters - adapters_there, offloaded + adapters_there
    parts = [MemoryPart(name="weights", device=CPU, num_bytes=mapped + own, mapped_bytes=mapped)]
    parts += (
        [MemoryPart(name="experts", device=CPU, num_bytes=settings.expert_bytes)] if settings.expert_bytes else []
    )
    stale = _left(settings, stale, mapped)
    return ([*parts, MemoryPart(name="weights", device=gpu, num_bytes=offloaded)] if gpu else parts), stale


def _file_bytes(path: str) -> int:
    """Bytes of a file; 0 if there is none."""
    return Path(path).stat().st_size if Path(path).is_file() else 0


def _left(settings: LoadSettings, copied: int, mapped: int) -> int:
    """Bytes of the file's pages that stay in memory although their weights were copied."""
    return 0 if drops_copied(settings) and copied * COPIED_DIVISOR >= copied + mapped else copied


def _on_demand(shape: ModelShape, settings: LoadSettings) -> frozenset[str]:
    """Names of the weights that are read from disk on demand."""
    layers = stacks(shape.tensors, shape.experts) if settings.expert_bytes else {}
    table = shape.lazy_table if settings.lazy_tables else None
    tables = frozenset({table.name}) if table is not None else frozenset()
    return tables | {tensor.name for layer in layers.values() for tensor in layer}


def on_gpu(shape: ModelShape, settings: LoadSettings) -> Callable[[TensorInfo], bool]:
    """Tests whether a tensor is on the GPU: by its layer, unless an override says otherwise."""
    moved = overrides(settings.engine_args, settings.cpu_expert_layers)
    elsewhere = [(re.compile(o.pattern, re.ASCII), not is_host(o.buffer)) for o in moved]
    layers_from = gpu_layer_start(shape, settings.n_gpu_layers)
    head = layers_from <= len(shape.layers)

    def there(tensor: TensorInfo) -> bool:
        for pattern, at in elsewhere:
            if pattern.search(tensor.name):
                return at
        block = block_of(tensor.name)
        return block >= layers_from if block is not None else head and tensor.name.startswith("output")

    return there


def _caches(
    shape: ModelShape,
    kv: tuple[int, ...],
    state_copies: int,
    gpu: str | None,
    layers_from: int,
    dry_run: DryRun | None,
    *,
    offloaded: bool,
) -> list[MemoryPart]:
    states = tuple(layer.state_bytes * state_copies for layer in shape.layers)
    parts = []
    caches: tuple[tuple[PartName, tuple[int, ...], int | None], ...] = (
        ("kv", kv, dry_run.kv_bytes if dry_run else None),
        ("recurrent", states, dry_run.recurrent_bytes if dry_run else None),
    )
    basis: Basis = "probe" if dry_run else "formula"
    for name, layers, reported in caches:
        total = sum(layers)
        on_gpu = sum(layers[layers_from:]) if gpu and offloaded else 0
        if reported is not None:  # llama.cpp's own total, split like the formula
            on_gpu = on_gpu * reported // total if total else 0
            total = reported
        parts.append(MemoryPart(name=name, device=CPU, num_bytes=total - on_gpu, basis=basis))
        if gpu:
            parts.append(MemoryPart(name=name, device=gpu, num_bytes=on_gpu, basis=basis))
    return parts


def _compute(
    shape: ModelShape, settings: LoadSettings, gpu: str | None, layers_from: int, dry_run: DryRun | None
) -> list[MemoryPart]:
    if dry_run is not None:
        host = sum(size for name, size in dry_run.compute_bytes.items() if is_host(name))
        on_device = sum(size for name, size in dry_run.compute_bytes.items() if not is_host(name))
        parts = [MemoryPart(name="compute", device=CPU, num_bytes=host, basis="probe")]
        return [*parts, MemoryPart(name="compute", device=gpu or CPU, num_bytes=on_device, basis="probe")]
    device = gpu if gpu and layers_from <= len(shape.layers) else CPU
    return [MemoryPart(name="compute", device=device, num_bytes=compute_prior(shape, settings), basis="prior")]


def work_bytes(shape: ModelShape, settings: LoadSettings) -> int:
    """Bytes of the CPU kernels' copy of one ubatch of activations, in the format that matches the weights.

    The copy stays between steps.
    The largest product counts: of a weight and activations or, without fused attention, of values and scores.
    Source: ggml-cpu.c, ggml_graph_plan: 2 bytes per value for f16 and bf16, about 1 for quantized weights.
    """
    widest = max(shape.feed_forward, shape.embedding, shape.attention)
    matrix = next((t for t in shape.tensors if len(t.shape) > 1 and t.name.startswith("blk.")), None)
    plain = matrix is not None and matrix.ggml_type in {GgmlType.F16, GgmlType.BF16}
    activations = settings.n_ubatch * widest * (2 if plain else 1)
    if settings.flash_attn != "off" or settings.type_v == "f32":
        return activations
    scores = 2 * shape.heads * padded(max(settings.kv_cells, settings.n_ctx)) * settings.n_ubatch
    return max(activations, scores)


def tile_bytes(shape: ModelShape, settings: LoadSettings) -> int:
    """Bytes that Tessera's own kernels hold: the maximum over their operations.

    A product: one ubatch in 8 bits with scales and sums, and one panel per thread; of a mixture a column for each
    expert of a token. Attention: per thread one tile of cells, four strips of queries and their results. Source:
    engine/kernels, `work_for`, `strip_floats`.
    """
    threads, num_bytes = max(1, settings.n_threads), 0
    types = set(settings.tiles) - {ATTENTION}
    if types:
        widest = max(shape.feed_forward, shape.embedding, shape.attention)
        experts = (t for t in shape.tensors if "_exps" in t.name and t.ggml_type.name in types)
        gathered = shape.experts_used * max((t.shape[0] for t in experts), default=0)
        num_bytes = settings.n_ubatch * max(widest, gathered) * TILE_BLOCK_BYTES // 32 + threads * TILE_PANEL_BYTES
    if ATTENTION in settings.tiles:
        width = 2 * (shape.attention or shape.embedding) // shape.heads
        floats = TILE_CELLS * (width + 2 * TILE_STRIP) + TILE_STRIPS * TILE_STRIP * (width + 3)
        num_bytes = max(num_bytes, 4 * threads * floats)
    return num_bytes


def is_host(buffer: str) -> bool:
    """Whether a buffer is in system memory: the CPU's own, or pinned memory such as `Vulkan_Host`."""
    return buffer.upper().startswith("CPU") or buffer.endswith("_Host")


def compute_prior(shape: ModelShape, settings: LoadSettings) -> int:
    """Scratch memory of one ubatch if no dry run is available: activations, attention mask, logits of its outputs.

    Measured: 0-60 % above llama.cpp's own number on the shapes of the log; 2 bytes per cell and token of mask.
    """
    tokens = settings.n_ubatch
    cells = padded(max(settings.kv_cells, settings.n_ctx))
    window = shape.sliding_window * sequences(settings, keeps_state=shape.recurrent) + tokens
    masks = 2 * tokens * (cells + (min(cells, window) if shape.sliding_window else 0))
    wide = max(shape.embedding, shape.attention)
    widest = 2 * shape.feed_forward + (10 if shape.experts else 6) * wide
    if shape.recurrent:
        widest += 8 * shape.embedding
    logits = 4 * shape.vocabulary * min(tokens, settings.n_parallel + 32)
    scores = score_bytes(shape, settings) if settings.flash_attn == "off" else 0
    return int(4.6 * tokens * widest) + masks + logits + scores


def score_bytes(shape: ModelShape, settings: LoadSettings) -> int:
    """Attention scores and a wider mask of one ubatch; only attention that is not fused needs them."""
    cells = padded(max(settings.kv_cells, settings.n_ctx))
    return (4 * shape.heads + 2) * cells * settings.n_ubatch


def exact_parts(shape: ModelShape, settings: LoadSettings) -> dict[str, int]:
    """Bytes by purpose of the context for deterministic requests; the first such request creates it."""
    at = exact_settings(settings)
    states = sum(layer.state_bytes for layer in shape.layers)
    return {
        "kv": sum(kv_layer_bytes(shape, at)) + states,
        "compute": compute_prior(shape, at) + tile_bytes(shape, at),
    }


def amounts(need: MemoryEstimate) -> Mapping[str, tuple[int, int]]:
    """Device → (own bytes, mapped bytes), as the ledger reserves them."""
    return {d: (need.device_bytes(d) - need.mapped_bytes(d), need.mapped_bytes(d)) for d in need.devices}


def draft_shape(path: str) -> ModelShape:
    """The shape of a draft model's file, cached until the file changes.

    Raises: BadModelFile.
    """
    try:
        info = Path(path).stat()
        return _read(path, info.st_mtime_ns, info.st_size)
    except OSError as error:
        reason = because("draft_unreadable", why=error.strerror)
        raise exhausted(error) or BadModelFile(path, reason) from error
    except TesseraError as error:
        raise BadModelFile(path, because("draft_bad", why=str(error))) from error


@lru_cache(maxsize=16)
def _read(path: str, _changed_ns: int, _size: int) -> ModelShape:
    return model_shape(read_gguf_model(path))


def with_head(need: MemoryEstimate, shape: ModelShape, settings: LoadSettings, gpu: str | None) -> MemoryEstimate:
    """`need` plus the context of the model's own draft head: its cache, its scratch memory, and hidden rows."""
    at = mtp_settings(settings)
    attention = max(shape.layers, key=lambda layer: layer.key_values)  # a head is a block of this kind
    alone = msgspec.structs.replace(shape, layers=(attention,))
    hidden = 4 * shape.embedding * (settings.n_batch + at.n_batch)
    size = sum(kv_layer_bytes(alone, at)) + compute_prior(alone, at) + hidden
    device = gpu if gpu and settings.n_gpu_layers else CPU
    part = MemoryPart(name="draft", device=device, num_bytes=size, basis="prior")
    resident = need.resident_bytes + (size if device == CPU else 0)
    return msgspec.structs.replace(need, parts=(*need.parts, part), resident_bytes=resident)


def with_draft(need: MemoryEstimate, draft: MemoryEstimate) -> MemoryEstimate:
    """`need` plus that of the draft model, which runs in the same process."""
    parts = tuple(
        MemoryPart(
            name="draft",
            device=part.device,
            num_bytes=part.num_bytes,
            mapped_bytes=part.mapped_bytes,
            basis="prior",
        )
        for part in draft.parts
        if part.name != "overhead"
    )
    shared = draft.part_bytes("overhead")
    return msgspec.structs.replace(
        need,
        parts=(*need.parts, *parts),
        resident_bytes=need.resident_bytes + max(0, draft.resident_bytes - shared),
    )


def owners(shape: ModelShape, settings: LoadSettings, shares: Sequence[float]) -> tuple[int | None, ...]:
    """Device index of each layer and, last, of the output; None: the CPU.

    Source: llama-model.cpp, load_tensors: shares are summed up, and a layer's position among the offloaded ones
    decides.
    """
    count, start = len(shape.layers) + 1, gpu_layer_start(shape, settings.n_gpu_layers)
    sums = list(accumulate(shares))
    ends = [at / (sums[-1] or 1.0) for at in sums]
    offloaded = max(1, count - start)
    return tuple(
        None if layer < start else min(bisect_right(ends, (layer - start) / offloaded), len(ends) - 1)
        for layer in range(count)
    )


def layer_bytes(shape: ModelShape, settings: LoadSettings, kv_layers: Sequence[int]) -> list[int]:
    """Bytes of weights and cache on GPUs for each layer, and last for the output."""
    there, trunk = on_gpu(shape, settings), len(shape.layers)
    by_layer = [*kv_layers, 0]
    for tensor in shape.tensors:
        block = block_of(tensor.name)
        layer = trunk if block is None else block
        if layer <= trunk and there(tensor):
            by_layer[layer] += tensor.nbytes
    return by_layer


def layer_counts(sizes: Sequence[int], free: Sequence[int]) -> tuple[float, ...]:
    """Number of layers, in order, for each device so that its share of all bytes matches its free memory."""
    whole, capacity = sum(sizes) or 1, sum(free) or 1
    ends = [at / capacity for at in accumulate(free)]
    counts, done = [0] * len(free), 0
    for size in sizes:
        middle = (done + size / 2) / whole
        counts[min(bisect_right(ends, middle), len(free) - 1)] += 1
        done += size
    return tuple(map(float, counts))


def shared_out(
    need: MemoryEstimate, shape: ModelShape, settings: LoadSettings, machine: Machine, gpu: str | None
) -> MemoryEstimate:
    """`need` with the memory on `gpu` divided over the devices that layers are split over.

    Each of them has its own scratch memory; anything that belongs to no layer stays on the first.
    """
    args = settings.engine_args
    if gpu is None or len(settings.devices) < 2 or args.split_mode == "none":  # noqa: PLR2004 - nothing to split
        return need
    ids = [_device_id(name, machine) or gpu for name in settings.devices]
    shares = args.tensor_split or settings.tensor_split or tuple(1.0 for _ in ids)
    by_layer = layer_bytes(shape, settings, need.kv_layer_bytes)
    parts: list[MemoryPart] = []
    by_device = [0] * len(ids)
    for owner, size in zip(owners(shape, settings, shares), by_layer, strict=True):
        if owner is not None:
            by_device[owner] += size
    whole = sum(by_device) or 1
    for part in need.parts:
        if part.device != gpu or part.name in {"projector", "draft", "correction"}:
            parts.append(part)
            continue
        for device, size in zip(ids, by_device, strict=True):
            mine = part.num_bytes if part.name == "compute" else round(part.num_bytes * size / whole)
            parts.append(msgspec.structs.replace(part, device=device, num_bytes=mine))
    return msgspec.structs.replace(need, parts=tuple(part for part in parts if part.num_bytes))


def _device_id(name: str, machine: Machine) -> str | None:
    return next((d.id for d in machine.devices if any(r.device_name == name for r in d.runtimes)), None)


# Needs at other settings than a dry run's, and the largest context that fits.

CONTEXT_STEP = 256
SMALLEST = 512


def rescaled(shape: ModelShape, dry_run: DryRun, before: LoadSettings, after: LoadSettings) -> DryRun:
    """Estimated dry run at `after`: caches scale like the formula, scratch memory by its own rule.

    Exact for the caches of every architecture whose formula matches llama.cpp at `before`.
    """
    old, new = sum(kv_layer_bytes(shape, before)), sum(kv_layer_bytes(shape, after))
    kv = dry_run.kv_bytes * new // old if old else 0
    change = compute_prior(shape, after) - compute_prior(shape, before)
    compute = dict(dry_run.compute_bytes)
    if compute:
        largest = max(compute, key=lambda name: compute[name])
        compute[largest] = max(0, compute[largest] + change)
    return msgspec.structs.replace(dry_run, kv_bytes=kv, compute_bytes=compute)


def need_at(
    shape: ModelShape,
    settings: LoadSettings,
    isa: frozenset[str],
    gpu: str | None,
    measured: tuple[LoadSettings, DryRun] | None,
    correction: float = 1.0,
) -> MemoryEstimate:
    """The need at `settings`, from a dry run at other settings if there is one."""
    run = rescaled(shape, measured[1], measured[0], settings) if measured else None
    size = _file_bytes(settings.mmproj_path) if settings.mmproj_path else 0
    need = estimate(shape, settings, isa, gpu=gpu, dry_run=run, projector_bytes=size, correction=correction)
    if settings.mtp and shape.has_head:
        need = with_head(need, shape, settings, gpu)
    if settings.draft_path is None:
        return need
    return with_draft(need, estimate(draft_shape(settings.draft_path), draft_settings(settings), isa, gpu=gpu))


def audit_key(shape: ModelShape, backend: str) -> str:
    """Key of loads whose predictions have similar errors."""
    return f"{shape.architecture}|{backend}"


def need_on(
    shape: ModelShape,
    settings: LoadSettings,
    machine: Machine,
    ledger: Ledger,
    gpu: str | None,
    backend: str,
    run: DryRun | None = None,
) -> MemoryEstimate:
    """Memory need of a load whose layers are all on this machine: those on a GPU go to `gpu`."""
    measured = (settings, run) if run else None
    correction = ledger.audits.correction(audit_key(shape, backend))
    need = need_at(shape, settings, machine.isa, gpu, measured, correction)
    return openvino.need(need) if backend == BACKEND else shared_out(need, shape, settings, machine, gpu)


def largest_context(settings: LoadSettings, limit: int, fits: Callable[[LoadSettings], bool]) -> int:
    """The largest context, in steps of 256, that `fits`; 0 if not even 512 tokens do."""
    low, high = 0, max(limit, SMALLEST) // CONTEXT_STEP
    while low < high:
        middle = (low + high + 1) // 2
        if fits(resize_context(settings, middle * CONTEXT_STEP)):
            low = middle
        else:
            high = middle - 1
    return low * CONTEXT_STEP if low * CONTEXT_STEP >= SMALLEST else 0


def ledger_amounts(need: MemoryEstimate) -> dict[str, DeviceBytes]:
    """Amounts of this machine's memory that the ledger reserves for a need."""
    return {
        device: DeviceBytes(own, mapped) for device, (own, mapped) in amounts(need).items() if device != WORKERS
    }


def overdraft(ledger: Ledger, need: MemoryEstimate, owner: str = "") -> PoolExceeded | None:
    """Why the ledger would refuse this need now; None if it would not."""
    try:
        ledger.check(ledger_amounts(need), exclude=owner)
    except PoolExceeded as error:
        return error
    return None
