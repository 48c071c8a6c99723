"""Result of eight alternating runs of plain and fused attention, while other programs use the CPU now and then."""

from engine.job_kinds.bench.attention import TURNS, steady
from engine.placement.history import AttentionTimes

CALM = AttentionTimes(512, 0.010, 0.008, 0.001, 0.0012)
DISTURBED = AttentionTimes(512, 0.050, 0.009, 0.004, 0.0013)


def test_what_others_took_is_not_counted():
    turns = [CALM] * TURNS
    turns[1] = turns[4] = turns[6] = DISTURBED
    assert steady(turns) == CALM


def test_halves_that_contradict_each_other_are_no_measurement():
    assert steady([CALM, DISTURBED] * (TURNS // 2)) is None
