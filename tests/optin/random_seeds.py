"""Runs every property test with random seeds; `start.py test` runs them with fixed ones.

    python tests/optin/random_seeds.py [--rounds 20] [--seed 1]

Each round has its own seed. Prints one JSON line per round (seed, result, seconds) and the failing examples in
full; exits with 1 if a round failed. A failing example becomes an `@example` of its test and a fixed defect.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROUND_BOUND_S = 3600.0


def property_tests() -> list[str]:
    """Files of the normal suite that use Hypothesis."""
    folders = [ROOT / "tests" / name for name in ("unit", "integration", "gui", "faults", "e2e", "real")]
    files = (file for folder in folders for file in folder.rglob("test_*.py"))
    return sorted(str(file.relative_to(ROOT)) for file in files if "from hypothesis import" in file.read_text())


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--rounds", type=int, default=20)
    options.add_argument("--seed", type=int, default=int(time.time()))
    given = options.parse_args()
    failed = 0
    for seed in range(given.seed, given.seed + given.rounds):
        began = time.monotonic()
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-n0", "--timeout=0"),
                *("--hypothesis-profile=random", f"--hypothesis-seed={seed}", "-m", "not e2e", *property_tests()),
            ],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ROUND_BOUND_S,
        )
        result = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else done.stderr[-500:]
        print(json.dumps({"seed": seed, "result": result, "s": round(time.monotonic() - began, 1)}), flush=True)
        if done.returncode:
            failed += 1
            print(done.stdout, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
