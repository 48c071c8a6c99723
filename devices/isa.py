"""Instruction sets that matter to inference kernels, and the ggml CPU variant that they select."""

from collections.abc import Iterable

# Names as in /proc/cpuinfo; other systems' names are translated to these.
X86 = frozenset(
    {
        "sse4_2",
        "avx",
        "avx2",
        "fma",
        "f16c",
        "bmi2",
        "avx_vnni",
        "avx512f",
        "avx512cd",
        "avx512bw",
        "avx512dq",
    }
    | {"avx512vl", "avx512_vbmi", "avx512_vnni", "avx512_bf16", "avx512_fp16"}
    | {"amx_tile", "amx_int8", "amx_bf16"}
)
ARM = frozenset({"asimddp", "asimdhp", "i8mm", "bf16", "sve", "sve2", "sme"})
ALIASES = {"avx512vbmi": "avx512_vbmi", "dotprod": "asimddp", "fphp": "asimdhp"}
INTERESTING = X86 | ARM

_HASWELL = frozenset({"sse4_2", "avx", "f16c", "fma", "avx2", "bmi2"})
_AVX512 = _HASWELL | {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"}

# name: requirements, best last. Source: ggml/src/CMakeLists.txt, ggml_add_cpu_backend_variant, ordered by the score
# of ggml-cpu/arch/x86/cpu-feats.cpp (each feature outweighs all those before it).
X86_VARIANTS: tuple[tuple[str, frozenset[str]], ...] = (
    ("x64", frozenset()),
    ("sse42", frozenset({"sse4_2"})),
    ("sandybridge", frozenset({"sse4_2", "avx"})),
    ("ivybridge", frozenset({"sse4_2", "avx", "f16c"})),
    ("piledriver", frozenset({"sse4_2", "avx", "f16c", "fma"})),
    ("haswell", _HASWELL),
    ("alderlake", _HASWELL | {"avx_vnni"}),
    ("skylakex", _AVX512),
    ("cannonlake", _AVX512 | {"avx512_vbmi"}),
    ("cascadelake", _AVX512 | {"avx512_vnni"}),
    ("icelake", _AVX512 | {"avx512_vbmi", "avx512_vnni"}),
    ("cooperlake", _AVX512 | {"avx512_vnni", "avx512_bf16"}),
    ("zen4", _AVX512 | {"avx512_vbmi", "avx512_vnni", "avx512_bf16"}),
    (
        "sapphirerapids",
        _AVX512 | {"avx512_vbmi", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_int8"},
    ),
)
# MSVC cannot compile these, so a Windows build by MSVC lacks them. Source: the same CMakeLists.txt.
NOT_MSVC = frozenset({"ivybridge", "piledriver", "cooperlake", "zen4", "sapphirerapids"})

_V82 = frozenset({"asimddp", "asimdhp"})
ARM_VARIANTS: tuple[tuple[str, frozenset[str]], ...] = (
    ("armv8.0_1", frozenset()),
    ("armv8.2_1", frozenset({"asimddp"})),
    ("armv8.2_2", _V82),
    ("armv8.2_3", _V82 | {"sve"}),
    ("armv8.6_1", _V82 | {"sve", "i8mm"}),
    ("armv8.6_2", _V82 | {"sve", "i8mm", "sve2"}),
    ("armv9.2_1", _V82 | {"sve", "i8mm", "sme"}),
    ("armv9.2_2", _V82 | {"sve", "i8mm", "sve2", "sme"}),
)
APPLE_VARIANTS: tuple[tuple[str, frozenset[str]], ...] = (
    ("apple_m1", frozenset({"asimddp"})),
    ("apple_m2_m3", frozenset({"asimddp", "i8mm"})),
    ("apple_m4", frozenset({"asimddp", "i8mm", "sme"})),
)


def canonical(flags: Iterable[str]) -> frozenset[str]:
    """The relevant instruction sets among `flags`, under one name each."""
    names = (ALIASES.get(flag.lower(), flag.lower()) for flag in flags)
    return frozenset(name for name in names if name in INTERESTING)


def ggml_cpu_variant(isa: frozenset[str], arch: str, system: str) -> str | None:
    """The CPU library that an all-variants build of ggml loads on such a CPU; None if there is none."""
    if arch == "x86_64":
        variants = X86_VARIANTS
        if system == "windows":
            variants = tuple(v for v in variants if v[0] not in NOT_MSVC)
    elif arch == "arm64":
        if system == "windows":  # an all-variants build does not exist there
            return None
        variants = APPLE_VARIANTS if system == "macos" else ARM_VARIANTS
    else:
        return None
    return next((name for name, needs in reversed(variants) if needs <= isa), None)
