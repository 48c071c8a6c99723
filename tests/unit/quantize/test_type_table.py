"""Facts about quantization types are in one table: no other product file names a type."""

import ast

import pytest

from engine.library.model_ids import FILE_TYPES, from_file_name
from engine.placement.savings import MIX_COSTS
from quantize.ggml_types import ANCHORS, MEASURED, PRICED, SMALL_BLOCKS, TIME_UNIT, USUAL, GgmlType, bits_per_weight
from quantize.gptq.codebooks import LATTICES
from quantize.gptq.exact import PACKERS
from quantize.gptq.packing import LAYOUTS
from quantize.plan.speed import decode_time
from tests.support.sources import ROOT, parsed

# The table; functions that pack and unpack blocks, one per type; and llama.cpp's presets, which consist of types.
MAY_NAME = {
    "quantize/ggml_types.py",
    "quantize/gptq/codebooks.py",
    "quantize/gptq/exact.py",
    "quantize/gptq/packing.py",
    "quantize/onnx/weights.py",
    "quantize/plan/llama_cpp_preset_rules.py",
}
# Types too coarse to be planned from a table.
ONLY_MEASURED = {"IQ2_XXS", "IQ2_XS", "IQ2_S", "MXFP4", "NVFP4"}
QUANTIZED = {t.name for t in GgmlType if t.traits.block_values > 1}


def named_types(tree):
    """Quantized types named in code: as a whole string, or as a member of the table."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in QUANTIZED:
            yield node.lineno, node.value
        elif isinstance(node, ast.Attribute) and node.attr in QUANTIZED:
            yield node.lineno, node.attr


def test_no_other_file_names_a_type():
    found = {
        f"{file}:{line}": name
        for path, tree in parsed(rf"\b({'|'.join(QUANTIZED)})\b")
        if (file := path.relative_to(ROOT).as_posix()) not in MAY_NAME
        for line, name in named_types(tree)
    }
    assert not found, "put what is known about a type into its row of quantize/ggml_types.py"


def test_the_search_finds_names():
    source = 'x = {"IQ4_NL": 1}; y = GgmlType.Q4_K; z = "such as Q6_K"'
    assert {name for _, name in named_types(ast.parse(source))} == {"IQ4_NL", "Q4_K"}


def test_every_packer_of_a_grid_has_its_name():
    assert {t.name for t in GgmlType if t.traits.grid} == set(PACKERS)
    sizes = [bits_per_weight(GgmlType[name]) for name in PACKERS]
    assert sizes == sorted(sizes), "the first that fits is the smallest"


def test_rows_agree_with_each_other():
    for t in GgmlType:
        assert t.traits.id == t.value == int(t)
        assert GgmlType(int(t)) is t
        for other in (t.traits.fallback, t.traits.gpu_time_of):
            assert not other or other in GgmlType.__members__
        if t.traits.fallback:
            assert GgmlType[t.traits.fallback].traits.block_values < t.traits.block_values
        assert t.traits.priced or not t.traits.measured, "the planner weighs what measured types cost in time"
        assert t.traits.error is not None or t.name in ONLY_MEASURED or not t.traits.measured
    with pytest.raises(ValueError, match="4"):
        GgmlType(4)
    assert {*LAYOUTS, *LATTICES} <= {t.name for t in (*MEASURED, *SMALL_BLOCKS)}
    assert LAYOUTS.keys().isdisjoint(LATTICES)
    assert decode_time(TIME_UNIT, "cpu") == decode_time(TIME_UNIT, "gpu") == 1.0


def test_what_is_derived_is_what_it_was():
    assert [t.name for t in ANCHORS] == ["Q3_K", "Q4_0"]
    assert {t.name for t in SMALL_BLOCKS} == {"Q4_0", "IQ4_NL", "Q4_1", "Q5_0", "Q5_1", "Q8_0"}
    assert set(PRICED) == set(MEASURED)
    assert {t.name for t in set(MEASURED) - set(USUAL)} == ONLY_MEASURED
    assert list(MIX_COSTS) == ["Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q3_K_M", "Q2_K"]
    assert (FILE_TYPES[15], FILE_TYPES[32], FILE_TYPES[38], len(FILE_TYPES)) == ("Q4_K_M", "BF16", "MXFP4", 35)
    for stem, label in {
        "qwen3-8b-Q4_K_M": "Q4_K_M",
        "m-UD-Q4_K_XL": "UD-Q4_K_XL",
        "gpt-oss-mxfp4_moe": "MXFP4_MOE",
        "m.fp16": "F16",
        "m-tq1_0": "TQ1_0",
        "m-iq3_xxs": "IQ3_XXS",
        "m-I8": "",
    }.items():
        assert from_file_name(stem) == label
