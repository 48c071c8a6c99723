"""There is one list of KV cache types, and it agrees with the table of GGML's types."""

import ast

import pytest

from quantize.ggml_types import GgmlType
from quantize.kv_cache_types import CACHE_TYPES, K_DAMAGE, V_DAMAGE
from tests.support.sources import ROOT, parsed

ENOUGH = 4


def test_numbers_and_bits_are_those_of_ggml():
    for name, row in CACHE_TYPES.items():
        kind = GgmlType(row.ggml_type)
        assert kind.name == name.upper()
        assert row.bits == 8 * kind.traits.block_bytes / kind.traits.block_values
    assert list(K_DAMAGE) == list(V_DAMAGE)


@pytest.mark.slow
def test_no_other_module_lists_them():
    copies = []
    for file, tree in parsed(rf"['\"]({'|'.join(CACHE_TYPES)})['\"]"):
        for node in ast.walk(tree):
            if isinstance(node, ast.Tuple | ast.List | ast.Set | ast.Dict):
                items = node.keys if isinstance(node, ast.Dict) else node.elts
                words = {item.value for item in items if isinstance(item, ast.Constant)}
                if len(words & CACHE_TYPES.keys()) >= ENOUGH:
                    copies.append(f"{file.relative_to(ROOT)}:{node.lineno}")
    assert len(copies) == 1, copies
