"""Importance matrices: written, read back, and refused if damaged."""

import gguf
import numpy as np
import pytest

from quantize.errors import BadFile
from quantize.files.imatrix import Importance, read_imatrix, write_imatrix


def entries():
    rng = np.random.default_rng(0)
    return {
        "blk.0.attn_q.weight": Importance(rng.random((1, 64)).astype(np.float32), np.array([1024], np.float32)),
        "blk.0.ffn_up_exps.weight": Importance(
            rng.random((4, 32)).astype(np.float32), np.array([7, 0, 100, 1], np.float32)
        ),
    }


def test_what_was_written_is_read_back(tmp_path):
    path = tmp_path / "i.gguf"

    write_imatrix(path, entries(), "text.txt", 512)

    found = read_imatrix(path)
    assert found.keys() == entries().keys()
    for name, entry in entries().items():
        assert np.array_equal(entry.sums, found[name].sums)
        assert np.array_equal(entry.counts, found[name].counts)


def test_the_file_has_the_shape_that_llama_cpp_writes(tmp_path):
    path = tmp_path / "i.gguf"
    write_imatrix(path, entries(), "text.txt", 512)

    file = gguf.GGUFReader(path)

    assert file.fields["general.type"].contents() == "imatrix"
    assert file.fields["imatrix.datasets"].contents() == ["text.txt"]
    assert file.fields["imatrix.chunk_count"].contents() == 2
    assert file.fields["imatrix.chunk_size"].contents() == 512
    shapes = {t.name: list(t.shape) for t in file.tensors}
    assert shapes["blk.0.ffn_up_exps.weight.in_sum2"] == [32, 4]
    assert shapes["blk.0.ffn_up_exps.weight.counts"] == [1, 4]


def test_an_expert_that_was_never_seen_counts_every_column_alike():
    entry = entries()["blk.0.ffn_up_exps.weight"]

    assert np.array_equal(entry.mean(1), np.ones(32))
    assert np.array_equal(entry.mean(2), entry.sums[2] / 100)


def _spoil(tmp_path, tensor, value):
    path = tmp_path / "i.gguf"
    write_imatrix(path, entries(), "text.txt", 512)
    found = next(t for t in gguf.GGUFReader(path).tensors if t.name == tensor)
    with path.open("r+b") as file:
        file.seek(int(found.data_offset))
        file.write(np.float32(value).tobytes())
    return path


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
def test_values_that_cannot_be_are_refused(tmp_path, value):
    with pytest.raises(BadFile, match="attn_q"):
        read_imatrix(_spoil(tmp_path, "blk.0.attn_q.weight.in_sum2", value))


def test_a_model_is_not_an_importance_matrix():
    with pytest.raises(BadFile, match="not an importance matrix"):
        read_imatrix("assets/models/spark-f16.gguf")


def test_a_truncated_matrix_is_refused(tmp_path):
    path = tmp_path / "i.gguf"
    write_imatrix(path, entries(), "text.txt", 512)
    path.write_bytes(path.read_bytes()[:-64])

    with pytest.raises(BadFile, match="incomplete"):
        read_imatrix(path)
