"""The measured loss of coarser KV cache types: K and V separately, by context, and its use by the planner."""

import msgspec
import pytest

from devices.errors import Cancelled
from quantize.measure.kv_cache import KvCacheLoss, KvRequest, kv_damage, with_damage
from quantize.measurements import MeasureRequest
from quantize.types import KvOption
from tests.support.models.measured_model import CALIBRATION, SOURCE, ignore, never

TYPES = ("f16", "q4_0", "q8_0")


@pytest.fixture(scope="module")
def request_for(tmp_path_factory):
    cache = tmp_path_factory.mktemp("kv")
    measure = MeasureRequest(source=SOURCE, calibration=CALIBRATION, cache_dir=cache, threads=2)
    return KvRequest(measure=measure, types=TYPES, longest=1024)


@pytest.fixture(scope="module")
def found(request_for):
    return kv_damage(request_for, ignore, never)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_coarser_types_cost_more_on_either_side_and_add_up_to_what_both_cost(found):
    by = {(d.side, d.qtype): d for d in found}
    assert set(by) == {(s, q) for s in "kv" for q in TYPES if q != "f16"}
    for side in "kv":
        costs = [by[side, q].at(1024) for q in ("q8_0", "q4_0")]
        assert costs == sorted(costs)
        assert costs[0] > 0
    # Measured by llama-perplexity at 512 tokens, K and V together: log-archive.md, "Types of the KV cache".
    for qtype, both in (("q8_0", 0.000051), ("q4_0", 0.0115)):
        assert by["k", qtype].at(1024) + by["v", qtype].at(1024) == pytest.approx(both, rel=0.6)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_second_question_is_answered_from_the_cache_and_a_stop_leaves_nothing(request_for, found, tmp_path):
    told = []
    assert kv_damage(request_for, told.append, never) == found
    assert told == []
    elsewhere = msgspec.structs.replace(request_for.measure, cache_dir=tmp_path)
    fresh = msgspec.structs.replace(request_for, measure=elsewhere)
    with pytest.raises(Cancelled):
        kv_damage(fresh, ignore, lambda: True)
    assert not list(tmp_path.rglob("kv-*"))


def damage(side, qtype, *kld):
    return KvCacheLoss(side=side, qtype=qtype, contexts=(256, 512, 1024, 2048)[: len(kld)], kld=kld)


def test_beyond_what_was_measured_the_cost_grows_as_it_did_and_no_faster():
    steady, growing = damage("k", "q4_0", 0.01, 0.01, 0.01, 0.01), damage("k", "q4_0", 0.01, 0.012, 0.0144, 0.0173)
    assert steady.at(32_768) == pytest.approx(0.01)
    assert growing.at(512) == pytest.approx(0.011)
    assert 0.0173 < growing.at(4096) < growing.at(8192) < 0.0173 * 3
    assert growing.at(1 << 20) == growing.at(16_384)
    assert damage("v", "q4_0", 0.02).at(100_000) == 0.02


def test_options_get_the_sum_of_both_sides_and_unknown_ones_keep_theirs():
    known = (
        damage("k", "q8_0", 0.001),
        damage("v", "q8_0", 0.002),
        damage("k", "q4_0", 0.1),
        damage("v", "q4_0", 0.2),
    )
    options = tuple(
        KvOption(k, v, 100, 9.0) for k, v in (("f16", "f16"), ("q8_0", "q8_0"), ("q8_0", "q4_0"), ("q5_1", "q5_1"))
    )
    assert [o.damage for o in with_damage(options, known, 256)] == pytest.approx([0.0, 0.003, 0.201, 9.0])
