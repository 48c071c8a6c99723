"""Bands of layers, what their swaps show about each tensor, and when a comparison ends."""

import msgspec
import numpy as np
import pytest

from quantize.files.measurement_folder import SharedInputGroup
from quantize.job.execute import verdict
from quantize.measure.kl_divergence import Comparison
from quantize.measure.probe_groups import alphas, probe_units, representatives
from quantize.measure.rounding_error import filled
from quantize.measure.verify import is_clear, looks, ratio, report
from quantize.measurements import VerifyRequest


def groups(layers):
    found = []
    for n in range(layers):
        found.append(
            SharedInputGroup(
                name=f"blk.{n}.attn_q.weight",
                members=(f"blk.{n}.attn_q.weight", f"blk.{n}.attn_k.weight"),
                width=64,
            )
        )
        found.append(
            SharedInputGroup(name=f"blk.{n}.ffn_down.weight", members=(f"blk.{n}.ffn_down.weight",), width=128)
        )
    return (*found, SharedInputGroup(name="output.weight", members=("output.weight",), width=64))


@pytest.mark.parametrize("layers", [1, 3, 9, 10, 30, 81])
def test_every_tensor_is_in_one_band_and_bands_are_neighbours_of_one_role(layers):
    model = groups(layers)
    units = probe_units(model, "balanced")
    assert sorted(n for u in units for n in u.members) == sorted(n for g in model for n in g.members)
    assert len({u.name for u in units}) == len(units)
    assert len(units) == 2 * min(layers, 9) + 1
    for unit in units:
        assert len({g.name.rpartition("blk.")[2].partition(".")[2] for g in unit.groups}) == 1
    chosen = representatives(model, "balanced")
    assert all(chosen[chosen[g.name]] == chosen[g.name] for g in model)
    assert len(probe_units(model, "max")) == 3 * layers + 1
    assert all(a == b for a, b in representatives(model, "max").items())


def test_layers_of_a_band_follow_the_curve_and_add_up_to_what_was_measured():
    model = groups(30)
    units = probe_units(model, "balanced")
    rng = np.random.default_rng(4)
    errors = {n: float(e) for g in model for n in g.members for e in [rng.uniform(0.01, 0.02)]}
    true = {n: float(np.exp(-0.07 * int(n.split(".")[1]))) if n.startswith("blk") else 2.0 for n in errors}
    swapped = {u.name: sum(true[n] * errors[n] for n in u.members) for u in units}
    found = alphas(units, swapped, errors)
    for unit in units:
        assert sum(found[n] * errors[n] for n in unit.members) == pytest.approx(swapped[unit.name])
    for name, value in true.items():
        assert found[name] == pytest.approx(value, rel=0.2), name


def test_a_layer_that_stands_out_is_judged_alone():
    """A layer with huge inputs has a tiny relative error, but matters just as much."""
    model = groups(30)
    errors = dict.fromkeys((n for g in model for n in g.members), 0.01)
    odd = "blk.11.ffn_down.weight"
    errors[odd] = 0.0005
    units = probe_units(model, "balanced", errors)
    assert odd in {u.name for u in units}
    assert sorted(n for u in units for n in u.members) == sorted(n for g in model for n in g.members)
    true = dict.fromkeys(errors, 1.0) | {odd: 60.0}
    swapped = {u.name: sum(true[n] * errors[n] for n in u.members) for u in units}
    found = alphas(units, swapped, errors)
    assert found[odd] == pytest.approx(60.0)
    assert found["blk.12.ffn_down.weight"] == pytest.approx(1.0)


def test_a_band_that_takes_no_part_does_no_damage():
    model = groups(12)
    units = probe_units(model, "balanced")
    errors = dict.fromkeys((n for g in model for n in g.members), 0.01)
    assert set(alphas(units, dict.fromkeys((u.name for u in units), 0.0), errors).values()) == {0.0}


def test_ways_of_rounding_that_were_not_measured_follow_the_ratios_of_the_role():
    like = {"stock": {"Q4_K": 0.01}, "rows": {"Q4_K": 0.009}, "gptq": {"Q4_K": 0.004}}
    found = filled({"stock": {"Q4_K": 0.02}, "inputs": {"Q4_K": 0.0}}, like)
    assert found["rows"]["Q4_K"] == pytest.approx(0.018)
    assert found["gptq"]["Q4_K"] == pytest.approx(0.008)
    own = {"stock": {"Q4_K": 0.02}, "rows": {"Q4_K": 0.01}, "gptq": {"Q4_K": 0.01}}
    assert filled(own | {"inputs": {"Q4_K": 0.0}}, like) == own


def windows(means, seed=0):
    """Comparisons whose windows differ as texts do."""
    rng = np.random.default_rng(seed)
    one = np.ones(255)
    return [Comparison(one * m * rng.uniform(0.9, 1.1), one > 0, one, one) for m in means]


def test_a_comparison_in_pairs_is_clear_where_each_alone_is_not():
    hard = np.random.default_rng(1).uniform(0.2, 5.0, 16)  # texts differ far more than files do
    ours, stock = windows(0.8 * hard, 2), windows(hard, 3)
    found = ratio(ours, stock)
    assert found.value == pytest.approx(0.8, rel=0.1)
    assert is_clear(found)
    apart = [report(__file__, 1, w).kld_mean for w in (ours, stock)]
    assert apart[0].high > apart[1].low
    assert not is_clear(ratio(windows(hard, 4), windows(hard, 5)))


def test_a_ratio_to_a_file_that_is_the_reference_itself_is_a_number():
    """Its divergence is zero; the report is JSON, which has no infinity."""
    ours = windows(np.full(16, 0.01), 2)
    same = [Comparison(np.zeros_like(w.kld), w.same_top, w.nll, w.reference_nll) for w in ours]
    found = ratio(ours, same)
    assert np.isfinite([found.value, found.low, found.high]).all()
    assert found.low > 1
    assert ratio(same, ours).high < 1


def test_looks_double_and_end_with_all_of_the_text():
    def wanted(**changes):
        return VerifyRequest(reference=None, files=(), text=None, **changes)

    assert looks(wanted(), 64) == [64]
    assert looks(wanted(min_tokens=8192), 64) == [16, 32, 64]
    assert looks(wanted(min_tokens=8192), 40) == [16, 32, 40]
    assert looks(wanted(min_tokens=8192), 10) == [10]


def test_ours_ships_only_if_the_interval_says_so(tmp_path):
    path = tmp_path / "a.gguf"
    path.touch()
    hard = np.linspace(0.5, 2, 16)

    def reports(factor):
        ours, stock = windows(factor * hard, 6), windows(hard, 7)
        made = [report(str(path), 1, w) for w in (ours, stock)]
        return tuple(_with_ratio(m, ratio(w, stock)) for m, w in zip(made, (ours, stock), strict=True))

    assert verdict(reports(0.7)) == ("ours", ())
    for factor in (0.995, 1.3):
        shipped, said = verdict(reports(factor))
        assert shipped == "stock"
        assert "not clearly better" in said[0]


def _with_ratio(made, found):
    return msgspec.structs.replace(made, ratio=found)
