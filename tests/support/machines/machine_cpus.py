"""CPUs of the recorded machines whose source only states the product."""

ZEN5 = (
    "avx avx2 fma f16c bmi2 sse4_2 avx_vnni avx512f avx512cd avx512bw avx512dq avx512vl avx512vbmi "
    "avx512_vnni avx512_bf16"
)
ZEN4 = ZEN5.replace("avx_vnni ", "")
INTEL_HYBRID = "sse4_2 avx avx2 fma f16c bmi2 avx_vnni"
HALO = ("AMD RYZEN AI MAX+ 395 w/ Radeon 8060S", 16, 32, ZEN5)
# id prefix: CPU name, cores, threads, flags. Published values of the products in the sources.
CPUS: dict[str, tuple[str, int, int, str]] = {
    "sh-": HALO,
    "sp-": ("AMD Ryzen AI 9 HX 370 w/ Radeon 890M", 12, 24, ZEN5),
    "krk-": ("AMD Ryzen AI 7 350 w/ Radeon 860M", 8, 16, ZEN5),
    "phx-": ("AMD Ryzen 5 8600G w/ Radeon 760M Graphics", 6, 12, ZEN4),
    "hawk-": ("AMD Ryzen 7 260 w/ Radeon 780M Graphics", 8, 16, ZEN4),
    "mtl-155h": ("Intel(R) Core(TM) Ultra 7 155H", 16, 22, INTEL_HYBRID),
    "arl-275hx": ("Intel(R) Core(TM) Ultra 9 275HX", 24, 24, INTEL_HYBRID),
    "arl-h-win": ("Intel(R) Core(TM) Ultra 9 285H", 16, 16, INTEL_HYBRID),
    "ptl-": ("Intel(R) Core(TM) Ultra 5 325", 8, 8, INTEL_HYBRID),
    "vm-llvmpipe": ("AMD EPYC", 4, 4, ZEN4),
    "container-": ("AMD EPYC 9654 96-Core Processor", 96, 192, ZEN4),
    "simpledrm-": ("AMD Ryzen 9 7950X 16-Core Processor", 16, 32, ZEN4),
}
