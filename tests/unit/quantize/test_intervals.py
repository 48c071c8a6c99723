"""Intervals compared with values from the papers' formulas and with counts."""

import math
import random

import pytest

from quantize.intervals import paired, share_text, wilson


def test_wilson_is_the_textbook_value():
    low, high = wilson(81, 263)  # Newcombe (1998), table I: .2553 to .3662
    assert low == pytest.approx(0.2553, abs=2e-4)
    assert high == pytest.approx(0.3662, abs=2e-4)
    assert wilson(0, 10)[0] == pytest.approx(0, abs=1e-9)
    assert wilson(10, 10)[1] == pytest.approx(1)
    assert wilson(0, 0) == (0, 1)
    assert share_text(5, 10) == "5/10 = 50% (24% to 76%)"


def test_a_paired_interval_covers_the_truth_about_as_often_as_it_says():
    dice = random.Random(5)
    inside = 0
    for _ in range(400):
        first = [dice.random() < 0.6 for _ in range(120)]
        second = [not a if dice.random() < 0.15 else a for a in first]
        truth = 0.15 * (0.4 - 0.6)
        _, low, high = paired(first, second)
        inside += low <= truth <= high
    assert inside / 400 > 0.92


def test_equal_results_are_no_difference_but_not_certain():
    change, low, high = paired([True] * 20, [True] * 20)
    assert change == 0
    assert low < 0 < high
    assert math.isclose(low, -high)
    assert paired([], []) == (0, -1, 1)
