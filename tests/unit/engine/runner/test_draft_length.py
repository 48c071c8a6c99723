"""The draft length that pays, from given numbers and without a clock."""

import pytest

from engine.runner.generation.draft_length import (
    BUDGET_FRAC,
    BUDGET_STEPS,
    FRESH_STEPS,
    Acceptance,
    DraftBalance,
    StepCost,
    best_draft_length,
)


def costs(**widths):
    cost = StepCost()
    for name, seconds in widths.items():
        cost.note(int(name[1:]), seconds)
    return cost


def sure(rate):
    acceptance = Acceptance()
    acceptance.hits, acceptance.trials = 1e6 * rate, 1e6
    return acceptance


def test_between_two_widths_lies_a_line_and_beyond_them_no_more():
    assert costs(w1=1.0, w5=3.0).curve(1, 7) == pytest.approx([1, 1.5, 2, 2.5, 3, 3, 3])
    assert costs(w1=1.0, w5=3.0).curve(1, 3) == pytest.approx([1, 1.5, 2])
    assert costs(w2=1.0).curve(2, 4) == [1, 1, 1]


def test_a_width_is_measured_anew_after_a_while():
    cost = costs(w1=1.0, w5=30.0)
    assert best_draft_length(cost, 1, 4, sure(0.9), 0.0) == 0
    for _ in range(FRESH_STEPS + 1):
        cost.note(1, 1.0)
    assert best_draft_length(cost, 1, 4, sure(0.9), 0.0) == 4


def test_unknown_costs_are_tried():
    assert best_draft_length(StepCost(), 1, 4, Acceptance(), 0.0) == 4
    assert best_draft_length(costs(w1=1.0), 1, 4, Acceptance(), 0.0) == 4


@pytest.mark.parametrize(("rate", "length"), [(0.99, 8), (0.5, 0), (0.05, 0)])
def test_wider_steps_must_pay(rate, length):
    assert best_draft_length(costs(w1=1.0, w9=5.0), 1, 8, sure(rate), 0.0) == length


def test_what_making_a_guess_costs_counts():
    free = costs(w1=1.0, w9=1.1)
    assert best_draft_length(free, 1, 8, sure(0.8), 0.0) == 8
    assert 0 < best_draft_length(free, 1, 8, sure(0.8), 0.2) < 8
    assert best_draft_length(free, 1, 8, sure(0.8), 0.9) == 0


def test_the_rate_follows_what_was_judged_and_decays_to_its_prior():
    acceptance = Acceptance()
    first_rate = acceptance.rate
    for _ in range(10):
        acceptance.note(4, 0)
    assert acceptance.rate < 0.2
    for _ in range(200):
        acceptance.decay()
    assert acceptance.rate == pytest.approx(first_rate, abs=0.01)
    for _ in range(10):
        acceptance.note(8, 8)
    assert acceptance.rate > 0.95


def test_a_text_in_which_guessing_never_helps_loses_little():
    balance, steps, spent = DraftBalance(), 0, 0.0
    while steps < 100:
        if balance.allows:
            balance.note(1.0, 1.5, 0)
            spent += 1.5
        else:
            balance.skipped(1.0)
            spent += 1.0
        steps += 1
    lost = spent - steps
    assert 0 < lost <= BUDGET_STEPS + BUDGET_FRAC * steps + 0.5
    assert steps / spent > 0.97


def test_winnings_are_not_gambled_away():
    balance = DraftBalance()
    for _ in range(1000):
        balance.note(1.0, 1.2, 8)
    lost = 0.0
    while balance.allows:
        balance.note(1.0, 1.5, 0)
        lost += 0.5
    assert lost < 0.025 * 9000


def test_guesses_looked_for_in_vain_are_paid_from_the_same_purse():
    balance, looked = DraftBalance(), 0
    for _ in range(200):
        if balance.allows:
            balance.rejected(0.03)  # an uncertain draft model
            looked += 1
        balance.skipped(0.1)
    assert 1 < looked < 20  # a step, and 1.5 % of twenty seconds
