"""Weights that already lie on a grid: detected by the weights alone, packed without loss, no false positives."""

import tracemalloc

import numpy as np
import pytest

from quantize.convert.tensor_map import Metadata
from quantize.files.gguf_write import GgufWriter, TensorSlot
from quantize.files.measurement_folder import WorkFolder
from quantize.ggml_types import GgmlType
from quantize.gptq.exact import ExactRequest, _as_bfloat16, exact_types, find_exact_types, pack_exactly
from quantize.gptq.tensors import Rounder
from quantize.measurements import MeasureRequest, RoundRequest
from quantize.native.blocks import dequantize_rows, quantize_rows
from quantize.native.source_weights import SourceWeights
from quantize.types import Rounding

ROWS, WIDTH = 8, 512
F16, BF16, F32 = GgmlType.F16, GgmlType.BF16, GgmlType.F32
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.5, -1, -1.5, -2, -3, -4, -6])


def same(values):
    return np.asarray(values, np.float32)


def half(values):
    return np.asarray(values, np.float32).astype(np.float16).astype(np.float32)


def brain(values):
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)).astype(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


STORED = {F16: half, BF16: brain, F32: same}
ROUNDOFF = {F16: 2.0**-11, BF16: 2.0**-8, F32: 2.0**-20}


def normal():
    return np.random.default_rng(5).standard_normal((ROWS, WIDTH)).astype(np.float32) / 50


def groups(size):
    return normal().reshape(-1, size)


def symmetric(size, lowest, highest, share, step, width=WIDTH):
    """Codes times a step for each group; `share` of a step is the group's largest weight."""
    values = normal()[:, :width].reshape(-1, size)
    steps = step(np.abs(values).max(axis=1, keepdims=True) / share)
    return (np.clip(np.rint(values / steps), lowest, highest) * steps).reshape(ROWS, width)


def adapter():
    """The product of a LoRA adapter of rank 4, small against the weights."""
    rng = np.random.default_rng(2)
    return rng.standard_normal((ROWS, 4)) @ rng.standard_normal((4, WIDTH)) / 2000


def with_minimum(size, top):
    values = groups(size)
    low, steps = half(values.min(axis=1, keepdims=True)), half(np.ptp(values, axis=1, keepdims=True) / top)
    return (np.clip(np.rint((values - low) / steps), 0, top) * steps + low).reshape(ROWS, WIDTH)


def zero_point(size):
    """As AWQ and GPTQ store weights: 4 bits, one step and one integer zero point per group."""
    values = groups(size)
    steps = half(np.ptp(values, axis=1, keepdims=True) / 15)
    zeros = np.rint(-values.min(axis=1, keepdims=True) / steps)
    return ((np.clip(np.rint(values / steps + zeros), 0, 15) - zeros) * steps).reshape(ROWS, WIDTH)


def fp4(size, step):
    values = groups(size)
    steps = step(np.abs(values).max(axis=1, keepdims=True) / 6)
    nearest = FP4[np.abs((values / steps)[:, :, None] - FP4).argmin(axis=2)]
    return (nearest * steps).reshape(ROWS, WIDTH)


def power(values):
    return np.exp2(np.ceil(np.log2(values))).astype(np.float32)


FUSED = np.repeat(half([0.0111, 0.0207, 0.0133, 0.0111]), ROWS // 4)[:, None]  # steps of q, k and v in one tensor
KINDS = {
    "4 bits, 32, bfloat16 steps": (lambda: symmetric(32, -7, 7, 7, brain), "Q4_0"),
    "4 bits, 32, from largest by 7.5": (lambda: symmetric(32, -8, 7, 7.5, brain), "Q4_0"),
    "4 bits, 64, float16 steps": (lambda: symmetric(64, -8, 7, 8, half), "Q4_0"),
    "4 bits, 128": (lambda: symmetric(128, -8, 7, 7, brain), "Q4_0"),
    "4 bits, one step for each output": (lambda: symmetric(WIDTH, -8, 7, 7, half), "Q4_0"),
    "4 bits, 32, minimum": (lambda: with_minimum(32, 15), "Q4_1"),
    "4 bits, 128, zero point": (lambda: zero_point(128), "Q4_1"),
    "ternary": (lambda: np.clip(np.rint(normal() / 0.015), -1, 1) * brain(0.0151), "TQ2_0"),
    "ternary, five weights of six 0": (lambda: np.clip(np.rint(normal() / 0.055), -1, 1) * brain(0.0151), "TQ2_0"),
    "ternary, rows of three matrices": (lambda: np.clip(np.rint(normal() / 0.015), -1, 1) * FUSED, "TQ2_0"),
    "ternary, 32": (lambda: symmetric(32, -1, 1, 1.6, brain), "Q4_0"),
    "2 bits without 0": (lambda: (np.clip(np.floor(normal() / 0.02), -2, 1) + 0.5) * half(0.0171), "Q3_K"),
    "ternary, 64": (lambda: symmetric(64, -1, 1, 1.6, half), "Q2_0"),
    "one bit": (lambda: np.sign(normal()) * half(0.012), "Q1_0"),
    "MXFP4": (lambda: fp4(32, power), "MXFP4"),
    "FP4, float16 steps": (lambda: fp4(32, half), "Q5_0"),
    "2 bits, one step for each output": (lambda: symmetric(WIDTH, -2, 1, 2, half), "Q2_K"),
    "3 bits, one step for each output": (lambda: symmetric(WIDTH, -4, 3, 4, half), "Q3_K"),
    "3 bits, 32": (lambda: symmetric(32, -4, 3, 4, half), "Q4_0"),
    "5 bits, 32": (lambda: symmetric(32, -16, 15, 15, half), "Q5_0"),
    "5 bits, 32, minimum": (lambda: with_minimum(32, 31), "Q5_1"),
}


@pytest.mark.parametrize("dtype", [F16, BF16, F32], ids=lambda t: t.name)
@pytest.mark.parametrize("kind", KINDS)
def test_a_grid_is_found_and_held_as_well_as_the_source_holds_it(kind, dtype):
    make, smallest = KINDS[kind]
    trained = make().astype(np.float32)
    source = STORED[dtype](trained)
    types = exact_types(source, dtype)
    assert types
    assert types[0] == smallest
    for qtype in types:
        values = dequantize_rows(pack_exactly(source, qtype, dtype), qtype, WIDTH)
        # The source's own rounding, and that of a scale or minimum that is not exact in float16.
        allowed = ROUNDOFF[dtype] * np.abs(source) + 2.0**-11 * (np.abs(source) + np.abs(source).max())
        assert (np.abs(values - source) <= allowed).all(), qtype


@pytest.mark.parametrize("dtype", [F16, BF16, F32], ids=lambda t: t.name)
@pytest.mark.parametrize(
    ("smallest", "lowest", "highest"), [("Q2_K", -2, 1), ("Q3_K", -4, 3), ("Q4_0", -8, 7), ("Q5_0", -16, 15)]
)
def test_blocks_that_use_few_codes_are_held_in_any_number_of_rows(smallest, lowest, highest, dtype):
    """With one step for each output, most blocks use half of the codes, so half of the step fits them too.

    It would need codes of both signs that no type has. Many blocks are tried in the order of their usual codes.
    """
    rng = np.random.default_rng(8)
    codes = rng.integers(lowest, highest + 1, (96, WIDTH))
    codes[:, 256:] = rng.integers(lowest // 2, -(lowest // 2) + 1, (96, 256))
    source = STORED[dtype](codes * half(np.exp(rng.standard_normal((96, 1))) / 50))
    assert exact_types(source, dtype)[0] == smallest
    values = dequantize_rows(pack_exactly(source, smallest, dtype), smallest, WIDTH)
    assert (np.abs(values - source) <= (ROUNDOFF[dtype] + 2.0**-11) * np.abs(source)).all()


def test_a_stack_is_on_a_grid_only_if_every_expert_is(tmp_path):
    experts = np.stack([KINDS["4 bits, 32, bfloat16 steps"][0]()] * 16)
    ordinary = experts.copy()
    ordinary[7] = normal()
    stacks = {"blk.0.ffn_up_exps.weight": experts, "blk.0.ffn_gate_exps.weight": ordinary}
    metadata = Metadata("llama")
    slots = [TensorSlot(name, (WIDTH, ROWS, 16), F32) for name in stacks]
    writer = GgufWriter(tmp_path / "stacks.gguf", metadata, slots)
    for name, values in stacks.items():
        writer.write(name, iter(values.astype(np.float32)))
    writer.close()
    found = find_exact_types(ExactRequest(source=tmp_path / "stacks.gguf"), lambda *_: None)
    assert list(found.types) == ["blk.0.ffn_up_exps.weight"]


def table_with_added_tokens(rows=96):
    """A table on a 4-bit grid; its first row and five of its last six, one of them 0, were added later."""
    rng = np.random.default_rng(6)
    values = rng.standard_normal((rows, WIDTH)).astype(np.float32) / 50
    blocks = values.reshape(-1, 32)
    steps = brain(np.abs(blocks).max(axis=1, keepdims=True) / 7)
    trained = (np.clip(np.rint(blocks / steps), -7, 7) * steps).reshape(values.shape)
    added = np.array([0, rows - 6, rows - 5, rows - 4, rows - 2, rows - 1])
    trained[added] = values[added]
    trained[rows - 4] = 0
    return trained, np.setdiff1d(added, [rows - 4])


def table_file(path, tables, dtype):
    """A model file of tables of F32 or BF16."""
    slots = [TensorSlot(name, values.shape[::-1], dtype) for name, values in tables.items()]
    writer = GgufWriter(path, Metadata("llama"), slots)
    for name, values in tables.items():
        stored = values if dtype is F32 else (brain(values).view(np.uint32) >> 16).astype(np.uint16)
        writer.write(name, iter([stored]))
    writer.close()
    return path


@pytest.mark.parametrize("dtype", [BF16, F32], ids=lambda t: t.name)
@pytest.mark.parametrize("name", ["token_embd.weight", "output.weight", "per_layer_token_embd.weight"])
def test_rows_of_tokens_added_later_are_counted_and_the_others_lose_nothing(name, dtype, tmp_path):
    trained, added = table_with_added_tokens()
    others = {"blk.0.ffn_up.weight": trained}
    path = table_file(tmp_path / "added.gguf", {name: trained, **others}, dtype)
    found = find_exact_types(ExactRequest(source=path), lambda *_: None)
    assert {tensor: types[0] for tensor, types in found.types.items()} == {name: "Q4_0"}
    assert found.added == {name: len(added)}
    source = STORED[dtype](trained)
    values = dequantize_rows(pack_exactly(source, "Q4_0", dtype), "Q4_0", WIDTH)
    old = np.setdiff1d(np.arange(len(trained)), added)
    assert np.array_equal(values[old], trained[old])
    assert 0 < np.abs(values[added] - source[added]).max() < 0.1


def test_a_larger_grid_is_not_taken_for_a_smaller_one_with_added_rows(tmp_path):
    """19 of 20 blocks use three values only, so types of three values hold nine blocks of ten."""
    rng = np.random.default_rng(7)
    few, many = rng.integers(-1, 2, (64, WIDTH // 32, 32)), rng.integers(-7, 8, (64, WIDTH // 32, 32))
    codes = np.where(rng.random((64, WIDTH // 32, 1)) < 0.95, few, many).reshape(64, WIDTH)
    table = (codes * half(0.013)).astype(np.float32)
    path = table_file(tmp_path / "few.gguf", {"token_embd.weight": table}, F32)
    found = find_exact_types(ExactRequest(source=path), lambda *_: None)
    assert found.types["token_embd.weight"][0] == "Q4_0"
    assert found.added == {}


@pytest.mark.parametrize("dtype", [BF16, F32], ids=lambda t: t.name)
def test_ordinary_tables_are_on_no_grid(dtype, tmp_path):
    ordinary = np.random.default_rng(9).standard_normal((96, WIDTH)).astype(np.float32) / 50
    padded, mixed = ordinary.copy(), table_with_added_tokens()[0]
    padded[24:] = 0
    mixed[::4] = ordinary[::4]  # a quarter is too much to have been added
    tables = {"token_embd.weight": ordinary, "output.weight": padded, "per_layer_token_embd.weight": mixed}
    path = table_file(tmp_path / "ordinary.gguf", tables, dtype)
    found = find_exact_types(ExactRequest(source=path), lambda *_: None)
    assert (found.types, found.added) == ({}, {})


def test_ggml_itself_misses_the_grid():
    source = KINDS["4 bits, 32, bfloat16 steps"][0]()
    stock = dequantize_rows(quantize_rows(source, "Q4_0"), "Q4_0", WIDTH)
    ours = dequantize_rows(pack_exactly(source, "Q4_0", F32), "Q4_0", WIDTH)
    assert np.abs(stock - source).max() > 0.05 * np.abs(source).max()
    assert np.array_equal(ours, source), "a bfloat16 step is found to the last bit"


def test_steps_rounded_away_by_bfloat16_are_found_again():
    trained = KINDS["4 bits, 32, bfloat16 steps"][0]()
    packed = pack_exactly(brain(trained), "Q4_0", BF16)
    assert np.array_equal(dequantize_rows(packed, "Q4_0", WIDTH), trained)


@pytest.mark.parametrize("dtype", [F16, BF16, F32], ids=lambda t: t.name)
@pytest.mark.parametrize(
    "weights",
    [
        normal(),
        normal() / 1000,
        np.random.default_rng(1).laplace(size=(ROWS, WIDTH)) / 50,
        np.random.default_rng(1).standard_t(2, size=(ROWS, WIDTH)) / 50,
        np.random.default_rng(1).uniform(-1, 1, (ROWS, WIDTH)),
        normal() * (np.random.default_rng(1).random((ROWS, WIDTH)) < 0.4),
        normal() * np.exp(np.random.default_rng(1).standard_normal(WIDTH)),
        symmetric(32, -7, 7, 7, half) * np.exp2(np.random.default_rng(1).integers(-1, 2, WIDTH) / 2),
        np.sign(normal()) * np.exp2(np.rint(4 * np.log2(np.abs(normal()) + 1e-9)) / 4),
        normal() * (np.random.default_rng(1).random((ROWS, WIDTH)) < 0.15),
        np.sign(normal()) * (np.random.default_rng(1).random((ROWS, WIDTH)) < 0.05),
        symmetric(48, -7, 7, 7, brain, 480),
        symmetric(16, -8, 7, 8, brain),
        symmetric(32, -7, 7, 7, brain) + adapter(),
        np.zeros((ROWS, WIDTH)),
        np.full((ROWS, WIDTH), 0.5),
    ],
    ids=["normal", "small", "laplace", "heavy tails", "uniform", "sparse", "columns", "scaled grid", "logarithms",
         "sparser", "hardly a weight", "groups across blocks", "groups of 16", "an adapter merged later", "zeros",
         "constant"],
)  # fmt: skip
def test_ordinary_weights_are_on_no_grid(weights, dtype):
    assert exact_types(STORED[dtype](weights.astype(np.float32)), dtype) == ()


def test_blocks_that_are_on_no_grid_are_rounded_by_ggml():
    source = KINDS["4 bits, 32, float16 steps".replace("32", "64")][0]()
    source[3, 64:96] = normal()[3, 64:96]
    packed = pack_exactly(source, "Q4_0", F32)
    values = dequantize_rows(packed, "Q4_0", WIDTH)
    right = values == source
    assert right[:, :64].all()
    assert right[:, 96:].all()
    assert np.abs(values - source).max() < 0.1 * np.abs(source).max()
    assert (np.abs(values - source)[3, 64:96] > 0).any()


@pytest.mark.parametrize("size", [64, 96])
def test_the_last_group_of_a_row_may_be_smaller(size):
    """Rows of 160 weights in groups of 64 or 96."""
    values = normal()[:, :160]
    parts = [values[:, at : at + size] for at in range(0, 160, size)]
    steps = [brain(np.abs(part).max(axis=1, keepdims=True) / 7) for part in parts]
    trained = np.hstack([np.clip(np.rint(p / s), -8, 7) * s for p, s in zip(parts, steps, strict=True)])
    assert exact_types(brain(trained), BF16)[0] == "Q4_0"


def test_rows_that_fill_no_block_of_256_take_smaller_blocks():
    ternary = np.clip(np.rint(normal()[:, :192] / 0.015), -1, 1) * half(0.0151)
    assert exact_types(ternary.astype(np.float32), F16)[0] == "Q2_0"


@pytest.mark.parametrize(("bits", "rounded"), [(0x3F807FFF, 0x3F800000), (0x3F808001, 0x3F810000)])
def test_values_are_rounded_to_the_nearest_bfloat16(bits, rounded):
    value = np.array([bits], np.uint32).view(np.float32)
    assert _as_bfloat16(value).view(np.uint32)[0] == rounded


@pytest.mark.slow
def test_weights_on_a_grid_are_packed_in_parts(tmp_path):
    """Every process that packs takes memory of its own, whatever the size of its tensors."""
    name, rows, width = "blk.0.ffn_up.weight", 2048, 4096
    values = (np.random.default_rng(3).integers(-8, 8, (rows, width)) * 2.0**-7).astype(np.float16)
    writer = GgufWriter(tmp_path / "wide.gguf", Metadata("llama"), [TensorSlot(name, (width, rows), F16)])
    writer.write(name, iter([values]))
    writer.close()
    text = tmp_path / "text"
    text.write_text("text")
    measure = MeasureRequest(source=tmp_path / "wide.gguf", calibration=text, cache_dir=tmp_path / "cache")
    task = RoundRequest(measure=measure, types={name: "Q4_0"}, rounding=Rounding.STOCK, exact=True)
    rounder = Rounder(WorkFolder.open(measure), SourceWeights(measure.source), task, {}, {})
    tracemalloc.start()
    try:
        blocks = np.concatenate([part for _, part in rounder.chunks(name)])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert np.array_equal(dequantize_rows(blocks, "Q4_0", width), values.astype(np.float32))
    assert peak < 128 << 20
