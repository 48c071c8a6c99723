"""What GPTQ rounding costs at the widths of real models: CPU seconds of one thread, peak memory, layer by layer.

Usage: OPENBLAS_NUM_THREADS=1 python tests/bench/gptq_cost.py [WIDTH ...]
"""

import resource
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from quantize.gptq.hessian import make_curvature
from quantize.gptq.rows import EXPONENTS, gptq_rows

ROWS = 512


def main() -> None:
    print("| width | factor s | moments s for 1000 tokens | Mweights/s rounded (1 grid) | (3 grids) | peak GiB |")
    print("|---|---|---|---|---|---|")
    for width in [int(a) for a in sys.argv[1:]] or [768, 2048, 4096]:
        rng = np.random.default_rng(0)
        inputs = rng.standard_normal((1000, width)).astype(np.float32)
        start = time.process_time()
        moments = inputs.T @ inputs / np.float32(1000)
        collect = time.process_time() - start
        start = time.process_time()
        curvature = make_curvature(moments)
        factor = time.process_time() - start
        weights = rng.standard_normal((ROWS, width)).astype(np.float32)
        speeds = []
        for exponents in (EXPONENTS[:1], EXPONENTS):
            start = time.process_time()
            gptq_rows(weights, ("Q4_K",), curvature, exponents)
            speeds.append(weights.size / 1e6 / (time.process_time() - start))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        figures = (factor, collect, *speeds, peak)
        print(f"| {width} | " + " | ".join(f"{x:.2f}" for x in figures) + " |", flush=True)


if __name__ == "__main__":
    main()
