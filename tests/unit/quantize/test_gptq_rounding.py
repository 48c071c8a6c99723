"""Choosing new integers: blocks stay valid, and the layer's output error is far below plain rounding's."""

import itertools

import numpy as np
import pytest

from quantize.gptq.hessian import make_curvature
from quantize.gptq.packing import LAYOUTS, pack
from quantize.gptq.rows import (
    EXPONENTS,
    SWEEPS,
    best_rows,
    choices,
    descend,
    feed_forward,
    fit_scales,
    gptq_rows,
    make_grid,
    plain_rows,
)
from quantize.native.blocks import dequantize_rows, quantize_rows

pytestmark = pytest.mark.native

WIDTH = 512


def round_columns(targets, grid, curvature, sweeps=SWEEPS):
    values, errors = feed_forward(targets, grid, curvature)
    descend(values, errors, grid, curvature, sweeps)
    return values


@pytest.fixture(scope="module")
def weights():
    return np.random.default_rng(11).standard_normal((40, WIDTH)).astype(np.float32)


@pytest.fixture(scope="module")
def moments():
    """Inputs with a few strong directions above a noise floor, as in trained layers."""
    rng = np.random.default_rng(5)
    strong = rng.standard_normal((2000, 40)) @ rng.standard_normal((40, WIDTH))
    inputs = strong + 0.5 * rng.standard_normal((2000, WIDTH))
    return inputs.T @ inputs / 2000


@pytest.mark.parametrize("qtype", LAYOUTS)
def test_codes_read_from_ggmls_blocks_pack_back_to_the_same_bytes(weights, qtype):
    base = quantize_rows(weights, qtype, np.ones(WIDTH, np.float32))
    order = np.arange(WIDTH)
    grid = make_grid([(qtype, base)], WIDTH, order)

    codes = grid.codes(np.ascontiguousarray(dequantize_rows(base, qtype, WIDTH).T))

    assert np.array_equal(base, pack(base, qtype, np.ascontiguousarray(codes.T)))


@pytest.mark.parametrize("qtype", LAYOUTS)
def test_every_code_survives_packing(qtype):
    rng = np.random.default_rng(1)
    base = quantize_rows(rng.standard_normal((30, WIDTH)).astype(np.float32), qtype)
    codes = rng.integers(0, LAYOUTS[qtype].levels, (30, WIDTH)).astype(np.uint8)
    grid = make_grid([(qtype, base)], WIDTH, np.arange(WIDTH))

    values = dequantize_rows(pack(base, qtype, codes), qtype, WIDTH).T

    if LAYOUTS[qtype].nonlinear:  # of two codes for zero, the first is written
        table = LAYOUTS[qtype].table
        codes = np.array([table.index(value) for value in table], np.uint8)[codes]
    assert np.array_equal(codes, grid.codes(np.ascontiguousarray(values)).T)


@pytest.mark.parametrize("qtype", LAYOUTS)
def test_gptq_rows_spoil_the_output_far_less_than_plain_ones(weights, moments, qtype):
    curvature = make_curvature(moments)
    importance = moments.diagonal().astype(np.float32)
    base = quantize_rows(weights, qtype, importance)
    targets = np.ascontiguousarray(weights[:, curvature.order].T)
    plain = dequantize_rows(base, qtype, WIDTH)[:, curvature.order].T - targets

    values = round_columns(targets, make_grid([(qtype, base)], WIDTH, curvature.order), curvature)

    gptq_error = curvature.output_error(values - targets).sum()
    assert gptq_error < 0.5 * curvature.output_error(plain).sum()


def test_types_rounded_together_come_out_as_each_alone(weights, moments):
    curvature = make_curvature(moments)
    targets = np.ascontiguousarray(weights[:, curvature.order].T)
    bases = [(q, quantize_rows(weights, q)) for q in ("Q3_K", "Q6_K", "IQ4_XS")]
    alone = [round_columns(targets, make_grid([b], WIDTH, curvature.order), curvature) for b in bases]

    together = round_columns(
        np.concatenate([targets] * 3, axis=1), make_grid(bases, WIDTH, curvature.order), curvature
    )

    # Sums of products are computed in another order, so a few ties may be decided differently.
    assert (np.concatenate(alone, axis=1) != together).mean() < 0.01


@pytest.mark.parametrize("qtype", [q for q in LAYOUTS if LAYOUTS[q].scales])
def test_scales_fitted_to_their_integers_spoil_less_and_leave_the_integers(weights, moments, qtype):
    curvature = make_curvature(moments)
    targets = np.ascontiguousarray(weights[:, curvature.order].T)
    base = quantize_rows(weights, qtype)

    def spoiled(blocks):
        values = dequantize_rows(blocks, qtype, WIDTH)[:, curvature.order].T
        return curvature.output_error(values - targets).sum()

    once = fit_scales(base, qtype, targets, curvature)
    twice = fit_scales(once, qtype, targets, curvature)
    changed = (base != once).reshape(-1, LAYOUTS[qtype].block_bytes).any(axis=0)

    assert spoiled(twice) <= spoiled(once) < 0.995 * spoiled(base)
    assert set(np.flatnonzero(changed)) <= {at + byte for at in LAYOUTS[qtype].scales for byte in (0, 1)}


@pytest.mark.parametrize("qtype", [q for q in LAYOUTS if LAYOUTS[q].scales])
def test_gptq_rows_have_scales_of_their_own(weights, moments, qtype):
    curvature = make_curvature(moments)
    targets = np.ascontiguousarray(weights[:, curvature.order].T)
    grids = [(qtype, quantize_rows(weights, qtype, curvature.importance))]
    on_ggmls = round_columns(targets, make_grid(grids, WIDTH, curvature.order), curvature)

    found = gptq_rows(weights, (qtype,), curvature, (1.0,))[qtype]

    values = dequantize_rows(found.blocks, qtype, WIDTH)[:, curvature.order].T
    assert np.allclose(found.errors, curvature.output_error(values - targets), rtol=1e-3)
    assert found.errors.sum() < 0.99 * curvature.output_error(on_ggmls - targets).sum()


def test_what_ggml_rounded_before_is_taken_as_it_is(weights, moments):
    curvature, qtypes = make_curvature(moments), ("Q4_K", "IQ4_XS", "IQ3_XXS")
    known = {q: choices(weights, q, curvature, EXPONENTS) for q in qtypes}

    again = gptq_rows(weights, qtypes, curvature, tried=known)

    for qtype, fresh in gptq_rows(weights, qtypes, curvature).items():
        assert np.array_equal(again[qtype].blocks, fresh.blocks)
        assert np.array_equal(again[qtype].errors, fresh.errors)
        assert (best_rows(known[qtype]).errors <= known[qtype][0].errors).all()
        assert (best_rows(known[qtype]).errors == plain_rows(weights, qtype, curvature, EXPONENTS).errors).all()


def test_blocks_of_nothing_keep_their_scales(moments):
    curvature = make_curvature(moments)
    zeros = np.zeros((3, WIDTH), np.float32)
    base = quantize_rows(zeros, "Q4_0")

    assert np.array_equal(base, fit_scales(base, "Q4_0", np.ascontiguousarray(zeros.T), curvature))


def test_sweeps_never_make_the_output_worse(weights, moments):
    curvature = make_curvature(moments)
    targets = np.ascontiguousarray(weights[:, curvature.order].T)
    grid = make_grid([("Q4_K", quantize_rows(weights, "Q4_K"))], WIDTH, curvature.order)

    def objective(values):
        errors = (values - targets).astype(np.float64)
        return np.einsum("kr,kr->r", errors, curvature.moments @ errors)

    errors = [objective(round_columns(targets, grid, curvature, sweeps)) for sweeps in range(4)]

    for before, after in itertools.pairwise(errors):
        assert (after <= before * 1.0001).all()


def test_feedback_factors_the_damped_moments(moments):
    curvature = make_curvature(moments)
    unit = curvature.feedback.astype(np.float64) + np.eye(WIDTH)
    inverse = np.linalg.inv(unit)
    middle = inverse @ curvature.moments @ inverse.T

    off_diagonal = middle - np.diag(middle.diagonal())

    assert abs(off_diagonal).max() < 1e-3 * middle.diagonal().max()


def test_inputs_that_were_never_seen_leave_plain_rounding(weights):
    curvature = make_curvature(np.zeros((WIDTH, WIDTH)))
    base = quantize_rows(weights, "Q8_0")
    targets = np.ascontiguousarray(weights[:, curvature.order].T)

    values = round_columns(targets, make_grid([("Q8_0", base)], WIDTH, curvature.order), curvature)

    plain = dequantize_rows(base, "Q8_0", WIDTH)[:, curvature.order].T
    assert np.abs(values - targets).max() <= np.abs(plain - targets).max()


def test_moments_that_are_not_a_finite_square_are_refused():
    with pytest.raises(ValueError, match="square"):
        make_curvature(np.zeros((3, 4)))
    with pytest.raises(ValueError, match="finite"):
        make_curvature(np.full((4, 4), np.nan))


def test_a_type_without_an_integer_grid_is_refused(weights):
    with pytest.raises(KeyError):
        pack(quantize_rows(weights, "IQ3_S"), "IQ3_S", np.zeros(weights.shape, np.uint8))


def test_codes_and_bytes_must_belong_together(weights):
    base = quantize_rows(weights, "Q4_K")
    with pytest.raises(ValueError, match="belong together"):
        pack(base[:5], "Q4_K", np.zeros((6, WIDTH), np.uint8))
