"""Export for AMD NPUs: plain operators of opset 17, fixed sizes, the same numbers; missing Quark is reported."""

import sys

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from quantize.errors import InvalidOption
from quantize.onnx.folder import convert_gguf
from quantize.onnx.quark import QuarkFailed, calibration_texts, export
from quantize.onnx.request import FixedOptions
from tests.support.models.bert_shape import write_bert

TOKENS = 24


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_bert(tmp_path_factory.mktemp("bert") / "bert.gguf")


def rows(folder, given):
    session = ort.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    return session.run(None, given)[0]


def test_the_graph_is_plain_fixed_and_gives_the_same_rows(source, tmp_path):
    done = export(source, tmp_path / "amd", tokens=TOKENS, form="float")
    assert "no AMD NPU was tried" in done.notices[0]
    model = onnx.load(str(tmp_path / "amd" / "model.onnx"))
    onnx.checker.check_model(model)
    assert {o.version for o in model.opset_import if not o.domain} == {17}
    assert not any(node.domain for node in model.graph.node)
    assert all(d.dim_value > 0 for v in model.graph.input for d in v.type.tensor_type.shape.dim)
    convert_gguf(source, tmp_path / "ours", fixed=FixedOptions(context=TOKENS))
    rng = np.random.default_rng(3)
    given = {name: np.zeros((1, TOKENS), np.int32) for name in ("input_ids", "attention_mask", "token_type_ids")}
    given["input_ids"][0, :9] = rng.integers(1, 20, 9)
    given["attention_mask"][0, :9] = 1
    assert np.abs(rows(tmp_path / "amd", given) - rows(tmp_path / "ours", given)).max() < 1e-5


def test_quark_that_is_not_here_is_told_before_anything_is_written(source, tmp_path, monkeypatch):
    monkeypatch.delenv("TESSERA_QUARK_PYTHON", raising=False)
    with pytest.raises(QuarkFailed, match="pip install amd-quark"):
        export(source, tmp_path / "amd", form="a16w8")
    monkeypatch.setenv("TESSERA_QUARK_PYTHON", str(tmp_path / "nowhere"))
    with pytest.raises(QuarkFailed, match="which does not exist"):
        export(source, tmp_path / "amd", form="a16w8")
    assert not any(tmp_path.iterdir())


def test_an_environment_without_quark_fails_with_its_own_words_and_leaves_nothing(source, tmp_path, monkeypatch):
    monkeypatch.setenv("TESSERA_QUARK_PYTHON", sys.executable)
    with pytest.raises(QuarkFailed, match="No module named 'quark'"):
        export(source, tmp_path / "amd", tokens=TOKENS, form="a8w8")
    assert not any(tmp_path.iterdir())
    (tmp_path / "amd").mkdir()
    with pytest.raises(InvalidOption, match="exists already"):
        export(source, tmp_path / "amd", form="float")


def test_texts_for_the_ranges_differ_and_have_the_graphs_size(source):
    from quantize.files.gguf_split import read_gguf_model
    from quantize.onnx.encoder import wordpiece_json

    made = calibration_texts(wordpiece_json(read_gguf_model(source)), TOKENS)
    assert {values.shape for values in made.values()} == {(32, TOKENS)}
    assert made["attention_mask"].sum(1).min() > 2
    assert len({row.tobytes() for row in made["input_ids"]}) > 1
