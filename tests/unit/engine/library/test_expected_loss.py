"""Facts read from the headers of an upload and its original."""

import pytest

from engine.library.hub.expected_loss import _merged, _Original, _plan, _Range, _Upload
from engine.library.hub.types import QuantVariant, RepoFile, Repository
from quantize.files.gguf_file import GgufFile, TensorInfo
from quantize.ggml_types import GgmlType, row_bytes


def upload(label, qtype, shapes, **metadata):
    """A model whose only file has these tensors, in this order."""
    tensors, offset = [], 4096
    for name, shape in shapes.items():
        rows = 1
        for side in shape[1:]:
            rows *= side
        size = rows * row_bytes(shape[0], qtype)
        tensors.append(TensorInfo(name, shape, qtype, offset, size))
        offset += size
    header = GgufFile("m", offset, 3, 32, metadata, {}, tuple(tensors), 4096, offset)
    file = RepoFile(name=f"m-{label}.gguf", size_bytes=offset, sha256=label)
    repository = Repository(repo="org/m", endpoint="", revision="", files=(file,))
    return _Upload(repository, QuantVariant(label=label, format="gguf", files=(file,)), (header,))


SHAPES = {
    "token_embd.weight": (1024, 32_000),
    "output_norm.weight": (1024,),
    "blk.0.ffn_up_exps.weight": (1024, 2048, 8),
    "blk.0.attn_q.weight": (1024, 1024),
}


def test_the_same_rows_of_both_are_read_and_few():
    exact, small = upload("F16", GgmlType.F16, SHAPES), upload("Q4_0", GgmlType.Q4_0, SHAPES)
    plan = _plan(_Original.of_gguf(exact), small)
    assert [t.name for t in plan.tensors] == [
        "token_embd.weight",
        "blk.0.ffn_up_exps.weight",
        "blk.0.attn_q.weight",
    ]
    for read, of, qtype in ((plan.original, exact, GgmlType.F16), (plan.upload, small, GgmlType.Q4_0)):
        assert sum(span.nbytes for span in read) < 0.015 * of.choice.size_bytes
        wanted = iter(read)
        for tensor in plan.tensors:
            info = of.tensors()[tensor.name][1]
            for run in tensor.runs:
                assert next(wanted) == (
                    0,
                    info.offset + run.first * row_bytes(1024, qtype),
                    run.count * row_bytes(1024, qtype),
                )
    assert plan.tensors[1].begin == sum(span.nbytes for span in plan.upload[: len(plan.tensors[0].runs)])


@pytest.mark.parametrize(
    ("shapes", "kind"),
    [
        ({**SHAPES, "blk.0.attn_q.weight": (1024, 512)}, "upload_of_other_model"),
        ({**SHAPES, "blk.0.attn_q.weight": (512, 1024)}, "upload_of_other_model"),
        ({**SHAPES, "token_embd.weight": (1024, 33_000)}, "upload_of_other_model"),
        ({n: s for n, s in SHAPES.items() if n != "blk.0.attn_q.weight"}, "upload_of_other_model"),
        ({**SHAPES, "token_embd.weight": (1024, 31_990)}, ""),  # the folder pads its vocabulary
    ],
)
def test_only_files_of_the_same_model_are_compared(shapes, kind):
    original = _Original.of_gguf(upload("F16", GgmlType.F16, SHAPES))
    plan = _plan(original, upload("Q4_0", GgmlType.Q4_0, shapes))
    assert getattr(plan, "kind", "") == kind


def test_a_file_of_a_few_huge_rows_is_not_read():
    shapes = {"blk.0.attn_q.weight": (1 << 28, 4)}
    plan = _plan(_Original.of_gguf(upload("F16", GgmlType.F16, shapes)), upload("Q4_0", GgmlType.Q4_0, shapes))
    assert plan.kind == "upload_rows_too_long"


def test_close_ranges_are_read_together_and_no_other_file_s():
    ranges = [_Range(0, 9000, 10), _Range(0, 0, 10), _Range(0, 100, 10), _Range(1, 120, 10), _Range(0, 10, 10)]
    assert _merged(ranges) == [
        (_Range(0, 0, 110), [1, 4, 2]),
        (_Range(0, 9000, 10), [0]),
        (_Range(1, 120, 10), [3]),
    ]
