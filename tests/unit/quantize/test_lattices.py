"""Codebook types: blocks stay valid, and codes chosen with Hessians lose far less than ggml's own."""

import itertools

import numpy as np
import pytest

from quantize.gptq.codebook_search import descend_octets, feed_octets_forward, in_octets, make_octet_grid
from quantize.gptq.codebooks import LATTICES, OCTET, pack_points, table
from quantize.gptq.hessian import make_curvature
from quantize.gptq.rows import EXPONENTS, best_rows, choices, fit_factors, fit_scales, gptq_octet_rows, gptq_rows
from quantize.native.blocks import dequantize_rows, quantize_rows

pytestmark = pytest.mark.native

WIDTH, ROWS = 512, 10


@pytest.fixture(scope="module")
def weights():
    return np.random.default_rng(11).standard_normal((ROWS, WIDTH)).astype(np.float32)


@pytest.fixture(scope="module")
def curvature():
    """Inputs with a few strong directions above a noise floor, as in trained layers."""
    rng = np.random.default_rng(5)
    strong = rng.standard_normal((2000, 200)) @ rng.standard_normal((200, WIDTH))
    inputs = strong + 3 * rng.standard_normal((2000, WIDTH))
    return make_curvature(inputs.T @ inputs / 2000)


def spoiled(blocks, qtype, weights, curvature):
    values = dequantize_rows(blocks, qtype, WIDTH) - weights
    return curvature.output_error(np.ascontiguousarray(values[:, curvature.order].T))


@pytest.mark.parametrize("qtype", LATTICES)
def test_points_read_from_ggmls_blocks_pack_back_to_the_same_bytes(weights, qtype):
    base = quantize_rows(weights, qtype, np.ones(WIDTH, np.float32))
    grid = make_octet_grid([base], qtype, WIDTH, np.arange(WIDTH))

    points, signs = grid.codes(np.ascontiguousarray(dequantize_rows(base, qtype, WIDTH).T))

    assert np.array_equal(base, pack_points(base, qtype, points, signs))


@pytest.mark.parametrize("qtype", LATTICES)
def test_every_point_and_sign_survives_packing_and_scales_stay(weights, qtype):
    lattice, rng = LATTICES[qtype], np.random.default_rng(1)
    base = quantize_rows(weights, qtype, np.ones(WIDTH, np.float32))
    points = rng.integers(0, lattice.points, (ROWS, WIDTH // lattice.dims)).astype(np.uint16)
    points.flat[: lattice.points] = np.arange(min(points.size, lattice.points))
    signs = rng.integers(0, 256, (ROWS, WIDTH // OCTET)).astype(np.uint8)
    if lattice.even:
        odd = np.unpackbits(signs[..., None], axis=2).sum(axis=2) % 2
        signs ^= odd.astype(np.uint8)
    grid = make_octet_grid([base], qtype, WIDTH, np.arange(WIDTH))
    packed = pack_points(base, qtype, points, signs)
    values = dequantize_rows(packed, qtype, WIDTH)

    steps = np.repeat(grid.step.T, OCTET, axis=1)
    minus = np.unpackbits(signs, axis=1, bitorder="little").astype(bool)
    expected = table(qtype)[points].reshape(ROWS, WIDTH) * steps * np.where(minus, -1, 1)
    assert np.array_equal(values, expected.astype(np.float32))
    found, back = grid.codes(np.ascontiguousarray(values.T))
    assert np.array_equal(found, points)
    assert np.array_equal(back, signs)


@pytest.mark.parametrize("qtype", LATTICES)
def test_the_nearest_values_are_those_of_a_search_through_all(qtype):
    """With free signs. If the number of signs must be even, the choice of the sign is a good heuristic."""
    lattice, rng = LATTICES[qtype], np.random.default_rng(3)
    base = quantize_rows(rng.standard_normal((4, 256)).astype(np.float32), qtype, np.ones(256, np.float32))
    grid = make_octet_grid([base], qtype, 256, np.arange(256))
    wanted = rng.standard_normal((OCTET, 4)).astype(np.float32)
    weights = np.exp(rng.standard_normal(OCTET)).astype(np.float32)

    found = grid.nearest(0, wanted, weights)

    halves = [table(qtype)] * (OCTET // lattice.dims)
    for row in range(4):
        best = 0.0
        for place, points in enumerate(halves):
            part = slice(place * lattice.dims, (place + 1) * lattice.dims)
            apart = points * abs(grid.step[0, row]) - np.abs(wanted[part, row])
            best += (apart**2 @ weights[part]).min()
        cost = float((found[:, row] - wanted[:, row]) ** 2 @ weights)
        assert cost == pytest.approx(best, rel=1e-4) if not lattice.even else best * 0.9999 <= cost < 4 * best + 1
        if lattice.even:
            assert (found[:, row] < 0).sum() % 2 == 0


@pytest.mark.parametrize("qtype", LATTICES)
def test_gptq_rows_spoil_the_output_far_less_than_ggmls(weights, curvature, qtype):
    tried = choices(weights, qtype, curvature, EXPONENTS)

    found = gptq_rows(weights, (qtype,), curvature, tried={qtype: tried})[qtype]

    assert np.allclose(found.errors, spoiled(found.blocks, qtype, weights, curvature), rtol=1e-3)
    assert found.errors.sum() < 0.6 * best_rows(tried).errors.sum()
    again = gptq_octet_rows(weights, [t.blocks for t in tried], qtype, in_octets(curvature))[0]
    assert np.array_equal(found.blocks, again), "known or not, the curvature of octets is the same"


def test_sweeps_never_make_the_output_worse(weights, curvature):
    octets = in_octets(curvature)
    targets = np.ascontiguousarray(weights[:, octets.curvature.order].T)
    base = quantize_rows(weights, "IQ3_S", curvature.importance)
    grid = make_octet_grid([base], "IQ3_S", WIDTH, octets.curvature.order)
    values, errors = feed_octets_forward(targets, grid, octets)
    found = [octets.curvature.output_error(errors)]
    for _ in range(3):
        descend_octets(values, errors, grid, octets, sweeps=1)
        assert np.allclose(errors, values - targets, atol=1e-5)
        found.append(octets.curvature.output_error(errors))
    for before, after in itertools.pairwise(found):
        assert (after <= before * 1.0005).all()
    assert found[1].sum() < 0.99 * found[0].sum()


@pytest.mark.parametrize("qtype", LATTICES)
def test_factors_and_scales_fitted_to_their_points_spoil_less_and_leave_the_points(weights, curvature, qtype):
    base = quantize_rows(weights, qtype, curvature.importance)
    targets = np.ascontiguousarray(weights[:, curvature.order].T)

    factored = fit_factors(base, qtype, LATTICES[qtype].step_offsets(), targets, curvature)
    scaled = fit_scales(factored, qtype, targets, curvature, (0,))

    errors = [spoiled(b, qtype, weights, curvature).sum() for b in (base, factored, scaled)]
    assert errors[2] <= errors[1] < 0.995 * errors[0]
    before, after = (
        make_octet_grid([b], qtype, WIDTH, np.arange(WIDTH)).codes(
            np.ascontiguousarray(dequantize_rows(b, qtype, WIDTH).T)
        )
        for b in (base, scaled)
    )
    same = np.repeat(
        make_octet_grid([scaled], qtype, WIDTH, np.arange(WIDTH)).step.T != 0, 8 // LATTICES[qtype].dims, 1
    )
    assert np.array_equal(before[0][same], after[0][same])


def test_octets_keep_the_moments(curvature):
    octets = in_octets(curvature)
    unit = octets.feedback.astype(np.float64) + np.eye(WIDTH)
    middle = np.zeros((WIDTH, WIDTH))
    for index, metric in enumerate(octets.metrics):
        own = slice(index * OCTET, (index + 1) * OCTET)
        middle[own, own] = metric
    back = np.empty((WIDTH, WIDTH))
    back[np.ix_(octets.curvature.order, octets.curvature.order)] = unit @ middle @ unit.T
    natural = np.empty((WIDTH, WIDTH))
    natural[np.ix_(curvature.order, curvature.order)] = curvature.moments
    assert np.allclose(back, natural, atol=1e-4 * natural.max())
    assert np.array_equal(octets.curvature.order.reshape(-1, OCTET) % OCTET, np.tile(np.arange(OCTET), (64, 1)))


def test_rows_of_nothing_stay_nothing(curvature):
    zeros = np.zeros((2, WIDTH), np.float32)
    for qtype in LATTICES:
        found = gptq_rows(zeros, (qtype,), curvature)[qtype]
        assert not dequantize_rows(found.blocks, qtype, WIDTH).any()


def test_an_odd_number_of_minus_signs_and_other_shapes_are_refused(weights):
    base = quantize_rows(weights, "IQ3_XXS", np.ones(WIDTH, np.float32))
    points = np.zeros((ROWS, WIDTH // 4), np.uint16)
    signs = np.zeros((ROWS, WIDTH // OCTET), np.uint8)
    signs[3, 5] = 7
    with pytest.raises(ValueError, match="even"):
        pack_points(base, "IQ3_XXS", points, signs)
    with pytest.raises(ValueError, match="bytes"):
        pack_points(base, "IQ3_XXS", points[:2], signs * 0)
