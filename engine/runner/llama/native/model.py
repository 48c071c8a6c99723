"""Loads one model file with checked settings, and describes the loaded model."""

import contextlib
import ctypes
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from devices.backends import openvino
from devices.backends.cpu_kernels import ATTENTION
from engine.core.startup_timing import StartupTimer
from engine.core.types import ModelFacts
from engine.runner.engine_args import BadEngineArg
from engine.runner.llama.native import log
from engine.runner.llama.native.engine_args import UnknownBuffer, apply_to_context, apply_to_model
from engine.runner.llama.native.llama_api import ggml
from engine.runner.llama.native.untouched import (
    MADV_DONTNEED,
    RESERVED_CELLS,
    leave_untouched,
    may_reserve,
    sparse_buffers,
)
from engine.runner.load_limits import (
    COPIED_DIVISOR,
    KV_TYPES,
    MAX_DRAFT,
    MAX_SEQUENCES,
    drops_copied,
    exact_settings,
    growth_limit,
    mtp_settings,
    rollback,
    sequences,
)
from engine.runner.protocol import LoadSettings
from quantize.files.channel_scales import KEY as SCALES_KEY

FLASH_ATTN: Final = {"auto": -1, "off": 0, "on": 1}
# llama.cpp rounds every context up to a multiple of this.
MIN_CELLS: Final = 256


class LoadFailed(Exception):
    """The file or the settings were refused; the message says why."""


class FileRefused(LoadFailed):
    """The file's content is the cause: another device or other settings would not help."""


@dataclass
class LoadedModel:
    """Native handles of one model and its context. Owned by the scheduler's thread.

    `context`, `memory` and the sizes change on `resize`, so read them here before each use. `on_node` is called by
    each of its contexts for every node. `problem` returns why the last step is invalid (empty if it is valid).
    The context has `reserved_cells`, of which requests may use `kv_cells`.
    `keeps_partial`: sequences can be truncated at any token; else only the last `max_rollback` tokens of a step can
    be rolled back.
    """

    api: Any
    model: Any
    vocab: Any
    context: Any
    memory: Any
    settings: LoadSettings
    n_vocab: int
    n_ctx: int
    kv_cells: int
    reserved_cells: int
    n_seq_max: int
    n_batch: int
    n_ubatch: int
    max_outputs: int
    keeps_partial: bool
    max_rollback: int
    n_swa: int
    on_node: Any = None
    problem: Callable[[], str] = str

    @property
    def max_ctx(self) -> int:
        """The size to which the context may grow."""
        return max(self.n_ctx, growth_limit(self.settings))

    def close(self) -> None:
        self.api.llama_free(self.context)
        self.api.llama_model_free(self.model)


def _model_params(api: Any, settings: LoadSettings, on_progress: Callable[[float], bool]) -> tuple[Any, list[Any]]:
    params = api.llama_model_default_params()
    params.n_gpu_layers = settings.n_gpu_layers
    if not settings.use_mmap:
        params.load_mode = api.LLAMA_LOAD_MODE_MLOCK if settings.use_mlock else api.LLAMA_LOAD_MODE_NONE
    elif settings.use_mlock:
        params.load_mode = api.LLAMA_LOAD_MODE_MMAP_MLOCK
    if settings.lazy_tables and not settings.use_mlock and hasattr(params, "lazy_mode"):
        params.lazy_mode = api.LLAMA_LAZY_MODE_ON
    params.use_extra_bufts = settings.repack
    params.load_mtp = settings.mtp
    last = -1.0

    def progress(fraction: float, _: Any) -> bool:
        nonlocal last
        if fraction - last < 0.01 and fraction < 1:
            return True
        last = fraction
        return on_progress(fraction)

    callback = api.llama_progress_callback(progress)
    params.progress_callback = callback
    try:
        keep: list[Any] = [callback, *apply_to_model(api, params, settings)]
    except (UnknownBuffer, BadEngineArg) as error:
        raise LoadFailed(str(error)) from error
    if settings.devices or not settings.n_gpu_layers:
        # An empty device list if no layer is offloaded: otherwise llama.cpp would still send large batches to a
        # GPU.
        lib = ggml(api)
        lib.ggml_backend_dev_by_name.restype = ctypes.c_void_p
        devices = (ctypes.c_void_p * (len(settings.devices) + 1))()
        for i, name in enumerate(settings.devices):
            own = openvino.GGML_DEVICE if name.startswith(openvino.PREFIX) else name
            device = lib.ggml_backend_dev_by_name(own.encode())
            if not device:
                raise LoadFailed(f"there is no backend device named {name!r}")
            devices[i] = device
        params.devices = ctypes.cast(devices, ctypes.c_void_p)
        keep.append(devices)
    return params, keep


def _file(api: Any, settings: LoadSettings, *, dry_run: bool) -> contextlib.AbstractContextManager[str]:
    if dry_run or not settings.embeddings:
        return contextlib.nullcontext(settings.path)
    from engine.runner.llama.native.bfloat16 import fastest_file

    return fastest_file(api, settings)


def _check(settings: LoadSettings) -> None:
    for name in ("type_k", "type_v"):
        if getattr(settings, name) not in KV_TYPES:
            raise LoadFailed(f"{name} {getattr(settings, name)!r} is not one of {', '.join(KV_TYPES)}")
    if settings.flash_attn not in FLASH_ATTN:
        raise LoadFailed(f"flash_attn {settings.flash_attn!r} is not one of {', '.join(FLASH_ATTN)}")
    if settings.flash_attn == "off" and settings.type_v not in ("f32", "f16", "bf16"):
        raise LoadFailed(f"a {settings.type_v} V cache needs flash attention")
    if not 1 <= settings.n_parallel <= MAX_SEQUENCES // 2:
        raise LoadFailed(f"n_parallel {settings.n_parallel} is not between 1 and {MAX_SEQUENCES // 2}")
    if not 1 <= settings.n_ubatch <= settings.n_batch <= 1 << 20:
        raise LoadFailed(
            f"n_ubatch {settings.n_ubatch} and n_batch {settings.n_batch} must be 1 <= n_ubatch <= n_batch"
        )
    if not 1 <= settings.n_ctx < 1 << 31 or settings.kv_cells >= 1 << 31:
        raise LoadFailed(f"n_ctx {settings.n_ctx} is out of range")


def flash_attention(settings: LoadSettings, setting: str) -> int:
    """Return llama.cpp's value for `setting`; its "auto" refuses attention on a backend other than the cache's."""
    return FLASH_ATTN["on" if setting == "auto" and ATTENTION in settings.tiles else setting]


def _context_params(api: Any, settings: LoadSettings, cells: int, n_seq_max: int) -> Any:
    params = api.llama_context_default_params()
    params.n_ctx = cells
    params.n_batch = settings.n_batch
    params.n_ubatch = settings.n_ubatch
    params.n_seq_max = n_seq_max
    if settings.n_threads:
        params.n_threads = settings.n_threads
    if settings.n_threads_batch or settings.n_threads:
        params.n_threads_batch = settings.n_threads_batch or settings.n_threads
    params.type_k = KV_TYPES[settings.type_k]
    params.type_v = KV_TYPES[settings.type_v]
    params.flash_attn_type = flash_attention(settings, settings.flash_attn)
    params.kv_unified = True
    params.swa_full = False
    params.no_perf = True
    apply_to_context(params, settings)
    return params


def mtp_context(target: LoadedModel, slots: int) -> Any:
    """Return a context for the file's MTP head, for `slots` sequences with the weights of a target.

    Raises: LoadFailed.
    """
    api = target.api
    params = _context_params(api, mtp_settings(target.settings), slots * target.n_ctx, slots)
    params.ctx_type = api.LLAMA_CONTEXT_TYPE_MTP
    params.ctx_other = target.context
    if target.on_node is not None:
        params.cb_eval = target.on_node
    context = api.llama_init_from_model(target.model, params)
    if not context:
        raise LoadFailed(log.explained("llama.cpp makes no context for the file's draft head"))
    return context


def exact_context(loaded: LoadedModel) -> LoadedModel:
    """Return the same weights with a context for one sequence, whose steps always have the same shape.

    Raises: LoadFailed: there is not enough memory.
    """
    return _second_context(loaded, exact_settings(loaded.settings), "for deterministic requests")


def watched_context(loaded: LoadedModel, cells: int, on_node: Any) -> LoadedModel:
    """Return the same weights with a small context for one sequence that calls `on_node` for single nodes.

    Raises: LoadFailed: there is not enough memory.
    """
    changes = {"n_ctx": cells, "kv_cells": cells, "n_parallel": 1, "n_batch": cells, "n_ubatch": cells}
    without = {"max_ctx": 0, "max_draft": 0, "max_rollback": 0}
    settings = msgspec.structs.replace(loaded.settings, **changes, **without, mtp=False)
    return _second_context(loaded, settings, "to compare operations with", on_node)


def _second_context(loaded: LoadedModel, settings: LoadSettings, purpose: str, on_node: Any = None) -> LoadedModel:
    api = loaded.api

    def create(cells: int) -> Any:
        params = _context_params(api, settings, cells, 1)
        params.n_outputs_max = params.n_outputs_max_per_seq = 1 + MAX_DRAFT
        if on_node is not None or loaded.on_node is not None:
            params.cb_eval = on_node or loaded.on_node
        return api.llama_init_from_model(loaded.model, params)

    context = _first_created(create, loaded, settings, settings.n_ctx)
    if not context:
        raise LoadFailed(log.explained(f"llama.cpp makes no context of {settings.n_ctx} cells {purpose}"))
    return replace(
        loaded,
        settings=settings,
        context=context,
        memory=api.llama_get_memory(context),
        kv_cells=padded(settings.n_ctx),
        reserved_cells=api.llama_n_ctx(context),
        n_seq_max=1,
        n_batch=api.llama_n_batch(context),
        n_ubatch=api.llama_n_ubatch(context),
        max_outputs=1 + MAX_DRAFT,
        max_rollback=0,
    )


def load(
    api: Any,
    settings: LoadSettings,
    on_progress: Callable[[float], bool],
    phases: StartupTimer | None = None,
    *,
    dry_run: bool = False,
    spare_outputs: int = 2 * MAX_DRAFT,
    on_node: Any = None,
) -> LoadedModel:
    """Load the file and create its context. `on_progress` gets 0 to 1 and may return False to stop.

    `dry_run` reads only the header and allocates neither weights nor caches: sizes are logged, but nothing can run.
    `spare_outputs` are rows of logits in addition to one per sequence, for drafts. The scheduler calls `on_node`
    for every node of a graph, which are then computed one by one.

    Raises: LoadFailed: refused settings, an unreadable file, or not enough memory for the context.
    """
    _check(settings)
    params, keep = _model_params(api, settings, on_progress)
    if dry_run:
        params.no_alloc = True
        params.load_mode = api.LLAMA_LOAD_MODE_NONE
    phases = phases or StartupTimer()
    log.forget()
    with _file(api, settings, dry_run=dry_run) as path:
        if path != settings.path:
            params.load_mode = api.LLAMA_LOAD_MODE_NONE
        copies = Copies()
        model = api.llama_model_load_from_file(path.encode(), params)
    if drops_copied(settings):
        copies.drop()
    phases.done("weights")
    del keep
    if not model:
        refused = FileRefused if log.blames_file() else LoadFailed
        raise refused(log.explained("llama.cpp does not load the file"))
    if api.llama_model_has_encoder(model) and api.llama_model_has_decoder(model):
        api.llama_model_free(model)
        raise LoadFailed(
            "models of an encoder and a decoder (T5 and its like) are not served; use a decoder-only one"
        )
    keeps_state = bool(api.llama_model_is_recurrent(model) or api.llama_model_is_hybrid(model))
    n_swa = api.llama_model_n_swa(model)
    # An embedding model generates nothing: only its own context (embed.py) needs cells.
    kv_cells = MIN_CELLS if settings.embeddings else max(settings.kv_cells, settings.n_ctx)
    n_seq_max = sequences(settings, keeps_state=keeps_state)
    # fewer than the sequences would abort the process
    max_outputs = max(settings.n_parallel + spare_outputs, n_seq_max)
    if not dry_run:
        leave_untouched(ggml(api))
    loaded = LoadedModel(
        api=api,
        model=model,
        vocab=api.llama_model_get_vocab(model),
        context=None,
        memory=None,
        settings=settings,
        n_vocab=api.llama_vocab_n_tokens(api.llama_model_get_vocab(model)),
        n_ctx=settings.n_ctx,
        kv_cells=kv_cells,
        reserved_cells=kv_cells,
        n_seq_max=n_seq_max,
        n_batch=settings.n_batch,
        n_ubatch=settings.n_ubatch,
        max_outputs=max_outputs,
        keeps_partial=not keeps_state,
        max_rollback=rollback(settings) if keeps_state and not n_swa else 0,
        n_swa=n_swa,
        on_node=on_node,
    )
    try:
        make_context(loaded)
    except LoadFailed:
        api.llama_model_free(model)
        raise
    finally:
        phases.done("context")
    loaded.max_rollback = api.llama_n_rs_seq(loaded.context)  # 0 if the architecture does not support it
    return loaded


def make_context(loaded: LoadedModel) -> None:
    """Create the context from its sizes and settings. Raises: LoadFailed: there is not enough memory."""
    api = loaded.api

    def create(cells: int) -> Any:
        params = _context_params(api, loaded.settings, cells, loaded.n_seq_max)
        params.n_outputs_max = max(loaded.max_outputs, 1)
        params.n_rs_seq = loaded.max_rollback
        params.n_outputs_max_per_seq = 1 + MAX_DRAFT
        if loaded.on_node is not None:
            params.cb_eval = loaded.on_node
        return api.llama_init_from_model(loaded.model, params)

    context = _first_created(create, loaded, loaded.settings, loaded.kv_cells)
    if not context:
        raise LoadFailed(log.explained(f"llama.cpp makes no context of {loaded.kv_cells} cells"))
    loaded.context, loaded.memory = context, api.llama_get_memory(context)
    loaded.reserved_cells = api.llama_n_ctx(context)
    loaded.kv_cells = min(padded(loaded.kv_cells), loaded.reserved_cells)
    loaded.n_ctx = min(loaded.settings.n_ctx, loaded.kv_cells)
    loaded.n_batch, loaded.n_ubatch = api.llama_n_batch(context), api.llama_n_ubatch(context)


def padded(cells: int) -> int:
    """Return the size of a context of `cells` as llama.cpp rounds it up."""
    return -(-cells // MIN_CELLS) * MIN_CELLS


def _first_created(create: Callable[[int], Any], loaded: LoadedModel, settings: LoadSettings, cells: int) -> Any:
    """Return a context of `cells` or more: the first reservation that fits in memory; None if none fits."""
    for size in _reservations(loaded, settings, cells):
        log.forget()
        # Without flash attention a token's values lie far apart: each would take a huge page.
        small_pages = settings.flash_attn == "off"
        with sparse_buffers(small_pages=small_pages) if size > cells else contextlib.nullcontext():
            context = create(size)
        if context:
            return context
    return None


def _reservations(loaded: LoadedModel, settings: LoadSettings, cells: int) -> Iterator[int]:
    """Yield the sizes to create a context with, best first; the last one is `cells`.

    A cache in main memory uses RAM only for cells that were used, so it is created with all cells that it may ever
    need. Then growing changes a number: nothing is copied, and no request pauses. Recurrent states do not grow.
    """
    api, devices = loaded.api, settings.devices or settings.n_gpu_layers
    if not devices and may_reserve() and not api.llama_model_is_recurrent(loaded.model):
        size = min(growth_limit(settings) * max(cells, settings.n_ctx) // settings.n_ctx, RESERVED_CELLS)
        if settings.n_ctx <= (short := short_rope(loaded)):
            size = min(size, short)
        while size > cells:
            yield size
            size //= 2
    yield cells


def short_rope(loaded: LoadedModel) -> int:
    """Return the context up to which llama.cpp uses a LongRoPE model's factors for short texts; 0: it has none."""
    scaling = f"{metadata_value(loaded, 'general.architecture')}.rope.scaling"
    if metadata_value(loaded, f"{scaling}.type") not in {"", "longrope"}:
        return 0
    length = metadata_value(loaded, f"{scaling}.original_context_length")
    return int(length) if length.isdecimal() else 0


def metadata_value(loaded: LoadedModel, key: str) -> str:
    """Return one value of the file's metadata as text; empty if it has none."""
    value = ctypes.create_string_buffer(256)
    loaded.api.llama_model_meta_val_str(loaded.model, key.encode(), value, len(value))
    return value.value.decode("utf-8", "replace")


def metadata_of(loaded: LoadedModel) -> dict[str, str]:
    """Return the file's metadata: key to value, as text."""
    api, model = loaded.api, loaded.model
    buffer = ctypes.create_string_buffer(1 << 20)
    values: dict[str, str] = {}
    for i in range(api.llama_model_meta_count(model)):
        api.llama_model_meta_key_by_index(model, i, buffer, len(buffer))
        key = buffer.value.decode("utf-8", "replace")
        api.llama_model_meta_val_str_by_index(model, i, buffer, len(buffer))
        values[key] = buffer.value.decode("utf-8", "replace")
    return values


def facts(loaded: LoadedModel, pieces: Sequence[bytes], backend: str) -> ModelFacts:
    """Return the facts that the server and the window show about the loaded model."""
    api, vocab = loaded.api, loaded.vocab
    metadata = metadata_of(loaded)
    template = metadata.pop("tokenizer.chat_template", None)
    metadata.pop(SCALES_KEY, None)  # long and not readable
    description = ctypes.create_string_buffer(256)
    api.llama_model_desc(loaded.model, description, len(description))

    def piece(token: int) -> str:
        return pieces[token].decode("utf-8", "replace") if 0 <= token < len(pieces) else ""

    fim = {
        name: piece(getattr(api, f"llama_vocab_fim_{name}")(vocab))
        for name in ("pre", "suf", "mid", "pad", "rep", "sep")
    }
    eos = api.llama_vocab_eot(vocab)
    return ModelFacts(
        architecture=metadata.get("general.architecture", "unknown"),
        description=description.value.decode("utf-8", "replace"),
        n_params=api.llama_model_n_params(loaded.model),
        size_bytes=api.llama_model_size(loaded.model),
        n_vocab=loaded.n_vocab,
        n_ctx=loaded.n_ctx,
        n_ctx_train=api.llama_model_n_ctx_train(loaded.model),
        max_ctx=loaded.max_ctx,
        reserved_cells=loaded.reserved_cells,
        n_parallel=loaded.settings.n_parallel,
        n_embd=api.llama_model_n_embd(loaded.model),
        chat_template=template,
        bos=piece(api.llama_vocab_bos(vocab)),
        eos=piece(eos if eos >= 0 else api.llama_vocab_eos(vocab)),
        add_bos=bool(api.llama_vocab_get_add_bos(vocab)),
        fim={name: text for name, text in fim.items() if text},
        metadata={k: v for k, v in metadata.items() if len(v) <= 1 << 16},
        backend=backend,
    )


def warm_up(loaded: LoadedModel) -> float:
    """Run one decode, so that the first request does not pay for page faults; return its seconds."""
    api = loaded.api
    started = time.monotonic()
    token = api.llama_vocab_bos(loaded.vocab)
    tokens = (ctypes.c_int32 * 1)(max(token, 0))
    api.llama_decode(loaded.context, api.llama_batch_get_one(tokens, 1))
    api.llama_memory_clear(loaded.memory, True)
    return time.monotonic() - started


# llama.cpp maps the whole file into memory. Weights that it then rewrites are in memory twice: as the copy, and as
# pages of the file that nothing reads any more.
_SHARED: Final = re.compile(r"([0-9a-f]+)-([0-9a-f]+) r--s [0-9a-f]+ \S+ [1-9]", re.ASCII)
_ANONYMOUS: Final = re.compile(r"^RssAnon:\s+(\d+) kB", re.MULTILINE | re.ASCII)


class Copies:
    """Finds the files that a load maps, and whether it copied their weights. Create it before the load (Linux)."""

    def __init__(self) -> None:
        self._mapped, self._anonymous = _mapped_files(), _anonymous_bytes()

    def drop(self) -> int:
        """Drop the pages of files whose weights were copied; return the bytes of these files.

        Pages that are read later come back from the system's cache of files, 64 KiB at a time.
        """
        ranges = _mapped_files() - self._mapped
        size = sum(end - begin for begin, end in ranges)
        copied = _anonymous_bytes() - self._anonymous
        if copied * COPIED_DIVISOR < size:
            return 0
        libc = ctypes.CDLL(None)
        for begin, end in ranges:
            libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), MADV_DONTNEED)
        return size


def _mapped_files() -> set[tuple[int, int]]:
    try:
        maps = Path("/proc/self/maps").read_text("utf-8", "replace").splitlines()
    except OSError:
        return set()
    return {(int(match[1], 16), int(match[2], 16)) for match in map(_SHARED.match, maps) if match}


def _anonymous_bytes() -> int:
    try:
        match = _ANONYMOUS.search(Path("/proc/self/status").read_text("utf-8", "replace"))
    except OSError:
        return 0
    return int(match[1]) << 10 if match else 0
