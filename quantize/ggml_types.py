"""The GGML tensor types, one row per type: all facts about a type are listed here.

A new type is a row of `GgmlType`. If GPTQ shall round to it, it also needs a packer in `quantize/gptq/packing.py`,
or in `quantize/gptq/codebooks.py` if its blocks store codebook entries.
"""

from enum import IntEnum
from typing import Final, Literal, Self

import msgspec

_AVX2, _AVX512, _DOT = frozenset({"avx2"}), frozenset({"avx512f"}), frozenset({"asimddp"})
_VNNI = frozenset({"avx512dq", "avx512vl", "avx512_vnni"})


class Traits(msgspec.Struct, frozen=True):
    """Facts about one type.

    - `id` is the number in GGUF files; `block_values` values take `block_bytes`.
    - `file_type` is llama.cpp's number for files in this format, unless it is a preset's number
      (`plan.llama_cpp_preset_rules`).
    - `fallback` is the type for rows that are not a whole number of blocks.
    - `imatrix`: an importance matrix is needed for weights, or for any tensor (otherwise ggml ends the process).
    - `error` is the expected relative squared error (None: plans use the type only if it was measured).
    - `cpu_time` is the time to decode a weight, relative to TIME_UNIT (None: proportional to its bytes).
      `gpu_time_of` is the type that takes a GPU the same time.
    - `repack` are pairs: a required multiple of the row count, and the instruction sets with which llama.cpp keeps
      a repacked copy. `amx`: it also repacks for AMX. `tiled` are instruction sets with which llama.cpp's tiled
      kernels make up for a missing copy. These kernels read the file's own blocks and cannot use a copy.
    - `tiles` are instruction sets with which Tessera's own CPU kernels for prompts (engine/kernels) are faster than
      llama.cpp's (None: they do not support the type). With `tiles_of_copy` they read the repacked copy, otherwise
      the file's blocks.
    - `measured` types are measured and used in plans, `priced` types are timed on the machine. `if_fast` types are
      both, but only if the timing shows them as fast as their bytes imply. `anchor` types are the swap targets for
      measuring sensitivity. Types that are not `writable` cannot be requested by name.
    - `grid` is what weights are called that already lie on this type's grid ("4 bits"), if `gptq.exact` packs them.
      `cpu_only` types have no kernels on most GPUs.
    - `openvino` is how Intel's runtime stores the weights. "native": unchanged on every device. "kept": unchanged
      except on an NPU, which rounds them to 4 bits. "rounded": offsets are rounded to whole steps. "widened":
      8 bits with one scale per row. Empty: not supported.
    """

    id: int
    block_values: int
    block_bytes: int
    file_type: int | None = None
    is_float: bool = False
    fallback: str = ""
    imatrix: Literal["", "weights", "always"] = ""
    error: float | None = None
    cpu_time: float | None = None
    gpu_time_of: str = ""
    repack: tuple[tuple[int, frozenset[str]], ...] = ()
    tiled: frozenset[str] = frozenset()
    tiles: frozenset[str] | None = None
    tiles_of_copy: bool = False
    amx: bool = False
    measured: bool = False
    priced: bool = False
    if_fast: bool = False
    anchor: bool = False
    writable: bool = True
    grid: str = ""
    cpu_only: bool = False
    openvino: Literal["", "native", "kept", "rounded", "widened"] = ""


class GgmlType(IntEnum):
    """The types by name.

    Sources. Ids and blocks: ggml.h, enum ggml_type, and gguf.GGML_QUANT_SIZES (gguf 0.19), which a test compares;
    removed ids are omitted; Q2_0 from ggml-common.h. File types: llama.h, enum llama_ftype. Fallbacks and imatrix:
    src/llama-quant.cpp. Repacking: ggml-cpu/repack.cpp and amx/common.h. GPU kernels: ggml-vulkan.cpp and
    ggml-cuda.cu. All at the commit of llama-cpp-python 0.3.36. GPU times: llama.cpp, pull request 11595. CPU
    kernels: log-archive.md, "tiles for prompts".
    Measured: errors, geometric mean over the tensors of a trained model (the log, plan, "Errors by type"); CPU
    times, AVX-512, one thread, in cache (log-archive.md, plan). Types: docs/dev/quantization.md, "Types", "Alpha".
    """

    traits: Traits

    def __new__(cls, traits: Traits | int) -> Self:
        """Create a member from its row; later calls find members by id, as in any IntEnum."""
        assert isinstance(traits, Traits)
        member = int.__new__(cls, traits.id)
        member._value_ = traits.id
        member.traits = traits
        return member

    F32 = Traits(0, 1, 4, file_type=0, is_float=True, openvino="native")
    F16 = Traits(1, 1, 2, file_type=1, is_float=True, openvino="native")
    Q4_0 = Traits(
        2, 32, 18, error=0.00686, cpu_time=0.90, repack=((8, _AVX2), (4, _DOT)), amx=True, tiles=_AVX2,
        tiles_of_copy=True, measured=True, priced=True, anchor=True, openvino="native", grid="4 bits",
    )  # fmt: skip
    Q4_1 = Traits(3, 32, 20, error=0.00499, amx=True, tiles=_AVX2, openvino="rounded", grid="4 bits")
    Q5_0 = Traits(6, 32, 22, error=0.00168, tiles=_AVX2, grid="5 bits")
    Q5_1 = Traits(7, 32, 24, error=0.00116, tiles=_AVX2, openvino="rounded", grid="5 bits")
    Q8_0 = Traits(
        8, 32, 34, error=2.94e-5, cpu_time=1.60, repack=((4, _DOT),), amx=True, tiles=_AVX2, measured=True,
        priced=True, openvino="kept", grid="8 bits",
    )  # fmt: skip
    Q8_1 = Traits(9, 32, 40, writable=False)
    Q2_K = Traits(
        10, 256, 84, fallback="Q4_0", error=0.073, cpu_time=0.80, repack=((8, _AVX512),), measured=True,
        priced=True, grid="2 bits",
    )  # fmt: skip
    Q3_K = Traits(
        11, 256, 110, fallback="Q4_0", error=0.0214, cpu_time=1.10, tiles=_AVX2, measured=True, priced=True,
        anchor=True, grid="3 bits",
    )  # fmt: skip
    Q4_K = Traits(
        12, 256, 144, fallback="Q5_0", error=0.00511, cpu_time=1.00, repack=((8, _AVX2), (8, _DOT)), tiled=_VNNI,
        tiles=_AVX2, tiles_of_copy=True, amx=True, measured=True, priced=True, openvino="rounded",
    )  # fmt: skip
    Q5_K = Traits(
        13, 256, 176, fallback="Q5_1", error=0.00128, cpu_time=1.25, repack=((8, _DOT),), amx=True, tiles=_AVX2,
        measured=True, priced=True, openvino="widened",
    )  # fmt: skip
    Q6_K = Traits(
        14, 256, 210, fallback="Q8_0", error=0.000307, cpu_time=1.15, repack=((8, _DOT),), amx=True, tiles=_AVX2,
        measured=True, priced=True, openvino="widened",
    )  # fmt: skip
    Q8_K = Traits(15, 256, 292, writable=False)
    IQ2_XXS = Traits(
        16, 256, 66, fallback="IQ4_NL", imatrix="always", cpu_time=1.70, gpu_time_of="IQ3_XXS", measured=True,
        priced=True,
    )  # fmt: skip
    IQ2_XS = Traits(
        17, 256, 74, fallback="IQ4_NL", imatrix="always", cpu_time=1.70, gpu_time_of="IQ3_XXS", measured=True,
        priced=True,
    )  # fmt: skip
    IQ3_XXS = Traits(
        18,
        256,
        98,
        fallback="IQ4_NL",
        imatrix="weights",
        error=0.0332,
        cpu_time=2.10,
        tiles=_AVX2,
        measured=True,
        priced=True,
    )
    IQ1_S = Traits(19, 256, 50, fallback="IQ4_NL", imatrix="always", cpu_time=1.70, gpu_time_of="IQ3_XXS")
    IQ4_NL = Traits(
        20, 32, 18, error=0.0057, cpu_time=0.90, repack=((8, _AVX2), (4, _DOT)), tiles=_AVX2, tiles_of_copy=True,
        measured=True, priced=True,
    )  # fmt: skip
    IQ3_S = Traits(
        21, 256, 110, fallback="IQ4_NL", error=0.0189, cpu_time=2.50, tiles=_AVX2, measured=True, priced=True
    )
    IQ2_S = Traits(
        22, 256, 82, fallback="IQ4_NL", imatrix="weights", cpu_time=1.80, gpu_time_of="IQ3_XXS", measured=True,
        priced=True,
    )  # fmt: skip
    IQ4_XS = Traits(
        23,
        256,
        136,
        fallback="IQ4_NL",
        error=0.00581,
        cpu_time=1.25,
        tiles=_AVX2,
        amx=True,
        measured=True,
        priced=True,
    )
    I8 = Traits(24, 1, 1, writable=False)
    I16 = Traits(25, 1, 2, writable=False)
    I32 = Traits(26, 1, 4, writable=False)
    I64 = Traits(27, 1, 8, writable=False)
    F64 = Traits(28, 1, 8, writable=False)
    IQ1_M = Traits(29, 256, 56, fallback="IQ4_NL", imatrix="weights", cpu_time=1.80, gpu_time_of="IQ3_XXS")
    BF16 = Traits(30, 1, 2, file_type=32, is_float=True, openvino="native")
    TQ1_0 = Traits(34, 256, 54, file_type=36, fallback="Q4_0")
    TQ2_0 = Traits(35, 256, 66, file_type=37, fallback="Q4_0", grid="three values", cpu_only=True)
    MXFP4 = Traits(
        39, 32, 17, file_type=38, repack=((8, _AVX2), (4, _DOT)), tiles=_AVX2, tiles_of_copy=True, measured=True,
        priced=True, if_fast=True,
        openvino="kept", grid="MXFP4",
    )  # fmt: skip
    NVFP4 = Traits(40, 64, 36, file_type=39, measured=True, priced=True, if_fast=True)
    Q1_0 = Traits(41, 128, 18, file_type=40, repack=((4, _DOT),), grid="1 bit", cpu_only=True)
    Q2_0 = Traits(42, 64, 18, fallback="Q4_0", grid="2 bits", cpu_only=True)


# type: (values in a block, bytes of a block).
BLOCK_SIZES: Final = {t: (t.traits.block_values, t.traits.block_bytes) for t in GgmlType}
FLOAT_TYPES: Final = frozenset(t for t in GgmlType if t.traits.is_float)
# Types that Tessera's own CPU kernels for prompts support.
TILED: Final = tuple(t.name for t in GgmlType if t.traits.tiles is not None)
# Unit of the decoding times.
TIME_UNIT: Final = GgmlType.Q4_K
# The smallest type that a source can have and lose almost nothing when it is quantized again.
NEARLY_EXACT: Final = GgmlType.Q8_0
# Round-to-nearest in this type predicts the effect of channel scaling on GPTQ. Measured: the log, "Smoothing".
SCALES_JUDGE: Final = GgmlType.Q4_1


def row_bytes(num_values: int, ggml_type: GgmlType) -> int:
    """Bytes of one row of `num_values` values.

    Raises: ValueError: the row is not a whole number of blocks.
    """
    block, size = BLOCK_SIZES[ggml_type]
    if num_values % block:
        raise ValueError(
            f"a row of {num_values} values is not a multiple of the block of {block} of {ggml_type.name}"
        )
    return num_values // block * size


def bits_per_weight(ggml_type: GgmlType) -> float:
    """Bits per value on disk, including scales."""
    block, size = BLOCK_SIZES[ggml_type]
    return size * 8 / block


def _by_size(types: list[GgmlType]) -> tuple[GgmlType, ...]:
    return tuple(sorted(types, key=lambda t: (bits_per_weight(t), -(t.traits.error or 0.0))))


# Sorted from small to large: types whose KL divergence is measured, and types whose speed is measured.
MEASURED: Final = _by_size([t for t in GgmlType if t.traits.measured])
PRICED: Final = _by_size([t for t in GgmlType if t.traits.priced])
# Types used for measuring sensitivity: a tensor is swapped to the first one that its rows fit.
ANCHORS: Final = tuple(sorted((t for t in GgmlType if t.traits.anchor), key=lambda t: -t.traits.block_values))
# Types that are measured for every goal. The rest of MEASURED is so small that only small files use it.
USUAL: Final = tuple(t for t in MEASURED if t.traits.error is not None)
# The type that the quick test of a model rounds all weights to: its blocks of 32 fit the rows of every model, and
# ggml rounds to it at the speed of memory.
TEST_TYPE: Final = GgmlType.Q4_0
# Types measured for rows that fit no larger block.
SMALL_BLOCKS: Final = tuple(
    t
    for t in GgmlType
    if t.traits.block_values == NEARLY_EXACT.traits.block_values
    and t.traits.writable
    and t.traits.error is not None
)
