"""The loss expected from errors of sampled rows."""

import pytest

from quantize.measure.row_errors import sampled_runs
from quantize.plan.priors import rows_loss
from quantize.types import ModelSpec, TensorError, TensorSpec

NAMES = ("output.weight", "blk.0.attn_v.weight", "blk.1.ffn_up.weight")
MODEL = ModelSpec(
    architecture="llama",
    num_layers=2,
    num_heads=4,
    num_kv_heads=4,
    num_experts=0,
    tensors=tuple(TensorSpec(name, (256, 256), "F16") for name in (*NAMES, "token_embd.weight")),
)


def errors(*values, deviation=0.0):
    return [
        TensorError(name=name, error=value, deviation=deviation, tested=0.007)
        for name, value in zip(NAMES, values, strict=True)
    ]


@pytest.mark.parametrize(
    ("width", "rows"),
    [(256, 1), (256, 7), (256, 8192), (4096, 4096), (4096, 128_000), (1408, 64 * 2048), (8, 10**6)],
)
def test_a_sample_is_spread_small_and_always_the_same(width, rows):
    runs = sampled_runs("blk.0.ffn_up.weight", width, rows)
    assert runs == sampled_runs("blk.0.ffn_up.weight", width, rows)
    numbers = [run.first + row for run in runs for row in range(run.count)]
    assert len(set(numbers)) == len(numbers) <= max(1, 0.015 * rows)
    assert min(numbers) >= 0
    assert max(numbers) < rows
    assert (len(numbers) - 1) * width < 65_536
    if len(runs) > 1:
        assert runs[0].first < rows // 3 <= 2 * rows // 3 <= runs[-1].first + runs[-1].count


def test_other_tensors_have_other_rows():
    assert sampled_runs("blk.0.ffn_up.weight", 4096, 4096) != sampled_runs("blk.1.ffn_up.weight", 4096, 4096)


def test_larger_errors_of_more_sensitive_tensors_lose_more():
    least = rows_loss(MODEL, errors(0, 0, 0))[0]
    assert 0 < least.low < least.value < least.high  # inputs are rounded, too
    assert rows_loss(MODEL, errors(0.01, 0, 0))[0].value > rows_loss(MODEL, errors(0, 0, 0.01))[0].value
    assert (
        rows_loss(MODEL, errors(0.01, 0.01, 0.01), rounding="gptq")[0].value
        < rows_loss(MODEL, errors(0.01, 0.01, 0.01))[0].value
    )


def test_a_quick_test_narrows_the_interval_and_few_rows_widen_it():
    plain, common = rows_loss(MODEL, errors(0.01, 0.01, 0.01))
    tested, none = rows_loss(MODEL, errors(0.01, 0.01, 0.01), quick_kld=0.1)
    assert common > 3 * none
    assert tested.high / tested.low < plain.high / plain.low
    assert rows_loss(MODEL, errors(0.02, 0.02, 0.02), quick_kld=0.1)[0].value == pytest.approx(
        2 * tested.value, rel=0.01
    )
    vague = rows_loss(MODEL, errors(0.01, 0.01, 0.01, deviation=0.01), quick_kld=0.1)[0]
    assert vague.value == pytest.approx(tested.value)
    assert vague.high > tested.high
    assert rows_loss(MODEL, errors(0.01, 0.01, 0.01), quick_kld=0.0)[1] == common


def test_tensors_that_the_model_does_not_have_count_nothing():
    other = TensorError(name="blk.7.other.weight", error=1.0, deviation=0.0, tested=0.007)
    assert rows_loss(MODEL, [*errors(0.01, 0.01, 0.01), other]) == rows_loss(MODEL, errors(0.01, 0.01, 0.01))


def test_the_loss_of_any_one_tensor_is_known_equally_well():
    def width(name):
        error = TensorError(name=name, error=0.01, deviation=0.005, tested=0.007)
        loss, _ = rows_loss(MODEL, [error], imatrix=True)
        return loss.high / loss.value

    assert width(NAMES[0]) == pytest.approx(width(NAMES[2]))
