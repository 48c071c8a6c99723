"""KV cache types of a fitted file: K and V may differ where the CPU runs it, and are equal on GPUs."""

import pytest

from engine.job_kinds.quantize.request import fit_goal, promised
from engine.placement.shape import model_shape
from quantize.files.gguf_split import read_gguf_model
from quantize.types import CALIBRATION

SPARK = CALIBRATION.parents[1] / "models/spark-f16.gguf"
TYPES = {"f16", "q8_0", "q5_1", "q4_0"}


def options(*, apart):
    shape = model_shape(read_gguf_model(SPARK))
    return {(o.type_k, o.type_v): o for o in fit_goal(shape, 1 << 30, promised(SPARK, 1024, 1), apart=apart).kv}


def test_k_and_v_apart_are_all_pairs_and_alike_the_four():
    assert options(apart=False).keys() == {(t, t) for t in TYPES}
    assert options(apart=True).keys() == {(k, v) for k in TYPES for v in TYPES}


def test_bytes_and_expected_damage_of_a_pair_lie_between_those_of_its_halves():
    found = options(apart=True)
    mixed, fine, coarse = found["q8_0", "q4_0"], found["q8_0", "q8_0"], found["q4_0", "q4_0"]
    assert coarse.num_bytes < mixed.num_bytes < fine.num_bytes
    assert fine.damage < mixed.damage < coarse.damage
    assert mixed.damage == pytest.approx(found["q8_0", "f16"].damage + found["f16", "q4_0"].damage)
