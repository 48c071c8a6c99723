"""Raw llama.cpp arguments of a load, named like its flags, for options that have no Tessera setting."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
from msgspec import Meta

from quantize.kv_cache_types import CACHE_TYPES

# Source: llama.cpp, common/common.h, LLM_FFN_EXPS_REGEX (2026-11): the weights of experts.
EXPERTS: Final = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
CPU_BUFFER: Final = "CPU"
_OVERRIDE: Final = re.compile(r"(?P<pattern>.+)=(?P<buffer>[A-Za-z0-9_]+)")
_METADATA: Final = re.compile(r"(?P<key>[^=]{1,127})=(?P<kind>int|float|bool|str):(?P<value>.{1,127})")
# A pattern is matched against about a thousand names, here and by C++'s recursive matcher in llama.cpp. Without
# repeated groups and with few repetitions it terminates quickly in both.
_REPEATED_GROUP: Final = re.compile(r"\)[*+?{]")
_REPETITION: Final = re.compile(r"(?<!\\)[*+{]")
MAX_REPETITIONS: Final = 4

if TYPE_CHECKING:
    CacheType = str
else:
    CacheType = Literal[tuple(CACHE_TYPES)]
Tokens = Annotated[int, Meta(ge=1, lt=1 << 24)]
Threads = Annotated[int, Meta(ge=1, le=512)]
Scale = Annotated[float, Meta(gt=0, le=1e9)]
Beta = Annotated[float, Meta(ge=0, le=1e4)]
Worker = Annotated[str, Meta(pattern=r"^127\.0\.0\.1:[0-9]{1,5}$")]


# Fields whose llama.cpp flag and struct member have different names.
FLAGS: Final = {
    "n_ctx": "ctx_size", "n_batch": "batch_size", "n_ubatch": "ubatch_size", "n_threads": "threads",
    "n_threads_batch": "threads_batch", "type_k": "cache_type_k", "type_v": "cache_type_v", "use_mmap": "mmap",
    "use_mlock": "mlock",
}  # fmt: skip


class EngineArgs(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, rename=FLAGS
):
    """`engine_args` of a model. None and empty: Tessera or the file decides.

    The field names are those of `LoadSettings`; in the API, on disk and on the command line they are those of the
    flags.

    `rope_scale` is the factor by which texts get longer, `rope_freq_scale` its inverse. `override_tensor` holds
    `PATTERN=BUFFER`, the first match counts; `override_kv` holds `KEY=int|float|bool|str:VALUE` for the file's
    metadata. `devices` are the backend devices among which layers are split, `tensor_split` their fractions. `rpc`
    are workers (`tessera worker`), reached at the local ends of tunnels; without `devices` all layers go to them.
    """

    n_ctx: Tokens | None = None
    n_batch: Annotated[int, Meta(ge=1, le=1 << 20)] | None = None
    n_ubatch: Annotated[int, Meta(ge=1, le=1 << 20)] | None = None
    n_threads: Threads | None = None
    n_threads_batch: Threads | None = None
    type_k: CacheType | None = None
    type_v: CacheType | None = None
    flash_attn: Literal["auto", "on", "off"] | None = None
    use_mmap: bool | None = None
    use_mlock: bool | None = None
    repack: bool | None = None
    tiles: bool | None = None
    n_gpu_layers: Annotated[int, Meta(ge=-1, le=10_000)] | None = None
    rpc: Annotated[tuple[Worker, ...], Meta(max_length=16)] = ()
    devices: Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=64)], ...], Meta(max_length=16)] = ()
    split_mode: Literal["none", "layer", "row"] | None = None
    tensor_split: Annotated[tuple[Annotated[float, Meta(ge=0, le=1e6)], ...], Meta(max_length=16)] = ()
    main_gpu: Annotated[int, Meta(ge=0, le=15)] | None = None
    override_tensor: Annotated[tuple[Annotated[str, Meta(max_length=200)], ...], Meta(max_length=64)] = ()
    cpu_moe: bool = False
    n_cpu_moe: Annotated[int, Meta(ge=0, le=10_000)] | None = None
    override_kv: Annotated[tuple[Annotated[str, Meta(max_length=300)], ...], Meta(max_length=64)] = ()
    check_tensors: bool = False
    no_host: bool = False
    kv_offload: bool | None = None
    op_offload: bool | None = None
    swa_full: bool | None = None
    rope_scaling: Literal["none", "linear", "yarn", "longrope"] | None = None
    rope_scale: Scale | None = None
    rope_freq_scale: Scale | None = None
    rope_freq_base: Scale | None = None
    yarn_orig_ctx: Tokens | None = None
    yarn_ext_factor: Annotated[float, Meta(ge=-1, le=1e4)] | None = None
    yarn_attn_factor: Annotated[float, Meta(ge=-1, le=1e4)] | None = None
    yarn_beta_fast: Beta | None = None
    yarn_beta_slow: Beta | None = None


NO_ARGS: Final = EngineArgs()
# These arguments only affect placement and speed, not the results of a model.
_PLACING: Final = frozenset(
    ("n_threads", "n_threads_batch", "use_mmap", "use_mlock", "n_gpu_layers", "rpc", "devices", "split_mode",
     "tensor_split", "main_gpu", "check_tensors", "no_host", "kv_offload", "op_offload", "cpu_moe", "n_cpu_moe",
     "override_tensor")
)  # fmt: skip


_PLACING_FLAGS: Final = frozenset(FLAGS.get(name, name) for name in _PLACING)


class Override(msgspec.Struct, frozen=True):
    """Places tensors whose name matches `pattern` in the buffer type named `buffer`."""

    pattern: str
    buffer: str


class Metadata(msgspec.Struct, frozen=True):
    """A value that replaces the file's metadata value."""

    key: str
    value: int | float | bool | str


class BadEngineArg(ValueError):
    """An argument is invalid; `name` is its name."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


def given(args: EngineArgs) -> dict[str, object]:
    """Return the arguments that were set, by the names of the flags."""
    fields: dict[str, object] = msgspec.to_builtins(args)
    return fields


def meaning(args: EngineArgs) -> tuple[tuple[str, str], ...]:
    """Return the arguments that affect results: cached states of other values cannot be used."""
    return tuple((name, repr(value)) for name, value in given(args).items() if name not in _PLACING_FLAGS)


def computing(args: EngineArgs) -> EngineArgs:
    """Return only the arguments that affect results."""
    return msgspec.structs.replace(args, **{name: getattr(NO_ARGS, name) for name in _PLACING})


def overrides(args: EngineArgs, cpu_expert_layers: int = 0) -> tuple[Override, ...]:
    """Return the tensor overrides in llama.cpp's order. `cpu_expert_layers` applies if the user set no number.

    Raises: BadEngineArg.
    """
    parsed = [_override(text) for text in args.override_tensor]
    count = cpu_expert_layers if args.n_cpu_moe is None else args.n_cpu_moe
    if count > 0:  # llama.cpp makes one pattern per layer; each tensor is compared with every pattern
        layers = "|".join(map(str, range(count)))
        parsed.append(Override(rf"blk\.({layers}){EXPERTS}", CPU_BUFFER))
    if args.cpu_moe:
        parsed.append(Override(EXPERTS, CPU_BUFFER))
    return tuple(parsed)


def _override(text: str) -> Override:
    match = _OVERRIDE.fullmatch(text)
    if match is None:
        raise BadEngineArg("override_tensor", f"{text!r} is not PATTERN=BUFFER, such as exps=CPU")
    pattern = match["pattern"]
    if _REPEATED_GROUP.search(pattern) or len(_REPETITION.findall(pattern)) > MAX_REPETITIONS:
        raise BadEngineArg(
            "override_tensor",
            f"the pattern {pattern!r} repeats a group or has more than {MAX_REPETITIONS} repetitions",
        )
    try:
        re.compile(pattern, re.ASCII)
    except re.error as error:
        raise BadEngineArg("override_tensor", f"{pattern!r} is not a regular expression: {error}") from error
    return Override(pattern, match["buffer"])


def metadata(args: EngineArgs) -> tuple[Metadata, ...]:
    """Return the values that replace those of the file. Raises: BadEngineArg."""
    return tuple(map(_metadata, args.override_kv))


def _metadata(text: str) -> Metadata:
    match = _METADATA.fullmatch(text)
    if match is None:
        raise BadEngineArg("override_kv", f"{text!r} is not KEY=int|float|bool|str:VALUE")
    key, kind, value = match["key"], match["kind"], match["value"]
    if max(len(key.encode()), len(value.encode())) > 127:
        raise BadEngineArg("override_kv", f"{text[:40]!r}… has a key or value of more than 127 bytes")
    try:
        if kind == "bool":
            return Metadata(key, {"true": True, "false": False}[value])
        if kind == "int" and not -(1 << 63) <= int(value) < 1 << 63:
            raise BadEngineArg("override_kv", f"{value} has more than 64 bits")
        return Metadata(key, {"int": int, "float": float, "str": str}[kind](value))
    except (KeyError, ValueError) as error:
        raise BadEngineArg("override_kv", f"{value!r} is not a value of type {kind}") from error


def check(args: EngineArgs) -> None:
    """Validate the arguments. Raises: BadEngineArg: a value is invalid, or two contradict each other."""
    overrides(args)
    metadata(args)
    if args.rope_scale is not None and args.rope_freq_scale is not None:
        raise BadEngineArg("rope_scale", "rope_scale and rope_freq_scale say the same; give one of them")
    if args.tensor_split and len(args.tensor_split) != len(args.devices):
        raise BadEngineArg(
            "tensor_split", f"{len(args.tensor_split)} shares for {len(args.devices)} devices; give each its own"
        )
    if args.tensor_split and not sum(args.tensor_split):
        raise BadEngineArg("tensor_split", "at least one share must be above 0")


def from_text(values: Mapping[str, str]) -> dict[str, object]:
    """Convert `NAME=VALUE` arguments of a command line to fields; allows hyphens in names and commas in lists.

    Raises: BadEngineArg: an unknown name.
    """
    fields = {field.encode_name: field for field in msgspec.structs.fields(EngineArgs)}
    parsed: dict[str, object] = {}
    for text, value in values.items():
        name = text.lstrip("-").replace("-", "_")
        if name not in fields:
            raise BadEngineArg(name, f"{text} is not known; there are {', '.join(fields)}")
        parsed[name] = [part for part in value.split(",") if part] if fields[name].default == () else value
    return parsed
