"""An encoder's weights are multiplied in BF16 if the CPU is faster with that; the vectors stay the same."""

import numpy as np
import pytest

from engine.runner.llama.native.bfloat16 import write_bfloat16
from quantize.convert.checkpoint import bf16_to_f32
from quantize.errors import IncompleteFile
from quantize.files.gguf_file import read_gguf
from quantize.ggml_types import GgmlType
from tests.support.models.bert_shape import write_bert


def test_only_the_matrices_change_and_nothing_is_lost(tmp_path):
    source = write_bert(tmp_path / "bert.gguf")
    out = tmp_path / "out.gguf"
    assert write_bfloat16(source, out)
    before, after = read_gguf(source), read_gguf(out)
    assert {**before.metadata, "general.file_type": 32} == after.metadata
    assert [(t.name, t.shape) for t in before.tensors] == [(t.name, t.shape) for t in after.tensors]
    for old, new in zip(before.tensors, after.tensors, strict=True):
        raw, copied = before.tensor_bytes(old), after.tensor_bytes(new)
        if old.name.startswith("blk.") and len(old.shape) == 2:
            assert new.ggml_type is GgmlType.BF16
            wide = raw.view("<f4")
            assert np.abs(bf16_to_f32(copied.view("<u2")) - wide).max() <= np.abs(wide).max() * 2**-8
        else:
            assert new.ggml_type is old.ggml_type
            assert (copied == raw).all()
    assert not write_bfloat16(out, tmp_path / "again.gguf")


def test_a_file_that_is_cut_off_is_refused(tmp_path):
    source = write_bert(tmp_path / "bert.gguf")
    source.write_bytes(source.read_bytes()[:-2000])
    with pytest.raises(IncompleteFile):
        write_bfloat16(source, tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf").exists()
