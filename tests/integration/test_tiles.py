"""Tessera's own CPU kernels, if start.py built them, compute products and attention correctly."""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from devices.backends.cpu_kernels import tiles_library
from devices.backends.libraries import library_folder
from quantize.ggml_types import TILED, GgmlType
from tests.support.models import tile_products
from tests.support.models.tile_attention import Case

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(tiles_library(library_folder()) is None, reason="the kernels were not built here")
# An incomplete panel, an incomplete chunk, and an incomplete tile.
ROWS, LENGTH, COLUMNS = 77, 2592, 45
SMALL_BLOCK = 32
COPY = " rewritten"
COPIES = [name + COPY for name in TILED if GgmlType[name].traits.tiles_of_copy]
KINDS = ["Q4_0", *(t for t in TILED if not GgmlType[t].traits.tiles_of_copy), *COPIES]
COPIED_ROWS, SUPERBLOCKS_LENGTH = 72, 2560  # a copy interleaves eight rows; superblocks have 256 values
ARCHITECTURES_THAT_GENERATE = 34


# One type of each kind of weight; the others differ in decoding only, which the products of one matrix check.
MIXTURES = {"best": ("Q8_0", "Q6_K", "Q4_K rewritten"), "avx2": ("Q8_0", "Q5_K", "MXFP4 rewritten")}


def computed(program, cases, instructions):
    """What a child reports for each case, with one instruction set's kernels."""
    run = subprocess.run(
        [sys.executable, "-m", f"tests.support.models.{program}"],
        cwd=ROOT, input=b"\n".join(map(msgspec.json.encode, cases.values())), capture_output=True, check=False,
        env=os.environ | ({"TESSERA_TILES": "avx2"} if instructions == "avx2" else {}),
    )  # fmt: skip
    assert run.returncode == 0, run.stderr.decode()
    return dict(zip(cases, map(json.loads, run.stdout.splitlines()), strict=True))


def of_kind(kind, **more):
    name = kind.removesuffix(COPY)
    length = SUPERBLOCKS_LENGTH if kind in COPIES or GgmlType[name].traits.block_values > SMALL_BLOCK else LENGTH
    rows = COPIED_ROWS if kind in COPIES else ROWS
    return tile_products.Case(kind=name, rows=rows, length=length, count=COLUMNS, copy=kind in COPIES, **more)


@pytest.fixture(scope="module", params=["best", "avx2"])
def instructions(request):
    return request.param


@pytest.fixture(scope="module")
def products(instructions):
    mixtures = {(kind, "experts"): of_kind(kind, experts=True) for kind in MIXTURES[instructions]}
    as_in_files = tile_products.Case(kind="Q4_K", rows=COPIED_ROWS, length=SUPERBLOCKS_LENGTH, count=COLUMNS)
    cases = {kind: of_kind(kind) for kind in KINDS} | mixtures | {"as in files": as_in_files}
    return computed("tile_products", cases, instructions)


@pytest.mark.parametrize("kind", KINDS)
def test_products_are_right_and_do_not_depend_on_threads_or_neighbours(products, kind):
    found = products[kind]
    assert not found["untold"]  # it supports only enabled operations
    assert found["taken"]
    assert not found["few"]
    assert found["error"] < tile_products.LARGEST_ERROR
    assert found["right_if_large"]
    assert found["same_by_threads"]
    assert found["same_beside_fewer"]
    assert found["not_numbers"] == [1, 2]


def test_products_of_a_mixture_are_right_whoever_chooses_which_expert(products, instructions):
    for kind in MIXTURES[instructions]:
        found = dict(products[kind, "experts"])
        assert found.pop("error") < tile_products.LARGEST_ERROR, kind
        assert found == {
            "known": True,
            "untold": False,
            "taken": True,
            "few": False,
            "same_by_threads": True,
            "same_beside_fewer": True,
        }, kind


def test_weights_as_the_file_has_them_are_left_to_llama_cpp_where_we_read_the_copy(products):
    assert products["as in files"] == {"known": True, "untold": False, "taken": False}


# One row and rows of different texts are computed one by one, rows of one text in strips; incomplete tiles and
# strips.
CASES = {
    "one row, several chunks of cells": Case(positions=1, cells=1301),
    "a few rows": Case(positions=3, cells=700, heads=4, key_heads=4),
    "one text": Case(positions=45, cells=300),
    "long text": Case(positions=150, cells=1301, heads=16, key_heads=2, width=128),
    "a group of heads that is no strip": Case(positions=33, cells=200, heads=7, key_heads=1, width=80),
    "rows of texts of their own": Case(positions=20, cells=1300, seen="own"),
    "everybody sees everything": Case(positions=50, cells=77, seen="everything"),
    "a window": Case(positions=70, cells=900, seen="window"),
    "a window of few rows": Case(positions=2, cells=900, seen="window"),
    "scores that are bounded": Case(positions=20, cells=130, heads=8, key_heads=8, softcap=5),
    "a bias by distance": Case(positions=20, cells=130, heads=8, bias=8),
    "one row with all of it": Case(positions=1, cells=600, heads=8, key_heads=1, softcap=5, bias=8, sinks=True),
    "sinks": Case(positions=20, cells=130, sinks=True),
    "texts apart": Case(positions=12, cells=600, streams=3),
    "8 and 4 bits": Case(positions=70, cells=513, width=128, value_width=64, key_type="Q8_0", value_type="Q4_0"),
    "one row of 8 bits": Case(positions=1, cells=600, key_type="Q8_0", value_type="Q8_0"),
    "bfloat16": Case(positions=30, cells=90, key_type="BF16", value_type="BF16"),
    "wider keys than values": Case(positions=10, cells=600, heads=16, key_heads=1, width=192, value_width=128),
}


LEFT = {"heads of 24": Case(positions=9, cells=90, width=24), "one row of few cells": Case(positions=1, cells=500)}


@pytest.fixture(scope="module")
def attended(instructions):
    return computed("tile_attention", CASES | LEFT, instructions)


@pytest.mark.parametrize("name", CASES)
def test_attention_is_right_whoever_computes_beside_it(attended, name):
    found = attended[name]
    assert found.pop("taken")
    assert not found.pop("untold")
    assert found.pop("error") < 1e-5
    assert found == dict.fromkeys(found, True)


@pytest.mark.parametrize("name", LEFT)
def test_attention_that_is_left_to_llama_cpp(attended, name):
    assert attended[name] == {"taken": False}


@pytest.mark.timeout(600)  # all architectures by both kernels: some 10 s where nothing else runs
def test_every_architecture_and_mixture_is_as_exact_as_with_llama_cpps_kernels(tmp_path):
    command = [sys.executable, "-m", "tests.support.models.attended_models", str(tmp_path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    found = [json.loads(line) for line in run.stdout.splitlines()]
    *found, mixture, copied = found
    assert len(found) > ARCHITECTURES_THAT_GENERATE
    assert [name for name, *_, used in found if not used] == ["Mamba", "Mamba 2", "RWKV 7"]  # no attention
    assert mixture[-1], "its experts are multiplied by Tessera's kernels; those of a copy may give the same bits"
    assert [line for line in (*found, mixture, copied) if not line[1] < 1.5 * line[2] + 0.01] == []
