"""Our own kernels for prompts, where start.py built them, multiply right."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from devices.backends.libraries import library_folder
from devices.backends.tiles import tiles_library
from quantize.ggml_types import TILED

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(tiles_library(library_folder()) is None, reason="the kernels were not built here")
# A panel that is not full, a chunk that is not, and a tile that is not.
ROWS, LENGTH, COLUMNS = 77, 2592, 45
# Sums in 32 bits; the offsets of Q4_1 and Q5_1 are multiplied with sums that are rounded to 16 bits, as in ggml.
LARGEST_ERROR = {"Q4_1": 5e-4, "Q5_1": 5e-4}


@pytest.mark.parametrize("older", [False, True], ids=["best", "avx2"])
@pytest.mark.parametrize("kind", TILED)
def test_products_are_right_and_do_not_depend_on_threads_or_neighbours(kind, older, monkeypatch):
    if older:
        monkeypatch.setenv("TESSERA_TILES", "avx2")
    command = [sys.executable, "-m", "tests.tile_products", kind, *map(str, (ROWS, LENGTH, COLUMNS))]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert not found["untold"]  # it takes what it is told to, nothing by itself
    if not found["known"]:
        assert kind == "Q8_0"  # bytes as wide as these overflow the older instructions
        return
    assert found["taken"]
    assert not found["few"]
    assert found["error"] < LARGEST_ERROR.get(kind, 1e-6)
    assert found["same_by_threads"]
    assert found["same_beside_fewer"]
    assert found["not_numbers"] == [1, 2]
