"""Many texts are embedded in int8 if that is faster than llama.cpp and the vectors are nearly the same."""

import time

import numpy as np
import pytest

from engine.runner.int8_embedder import NotQuick, QuickTexts
from engine.runner.llama.batch.embed import MIN_TEXTS, QuickChoice
from engine.runner.onnx_libraries import onnxruntime
from engine.runner.protocol import LoadSettings
from quantize.onnx.folder import convert_gguf
from tests.support.models.bert_shape import write_bert

pytestmark = pytest.mark.native
TEXTS = [[2, 5, 6, 7, 3], [2, *range(5, 45), 3], [2, 9, 3], [2, *range(40, 12, -1), 3]]


def cosine(a, b):
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def in_floats(source, folder, tokens):
    """Rows of all tokens by the float32 graph, (tokens, embd)."""
    if not folder.exists():
        convert_gguf(source, folder)
    session = onnxruntime().InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    ids = np.array([tokens], np.int64)
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    return session.run(None, feeds)[0][0]


@pytest.mark.parametrize("mean", [False, True])
def test_the_vectors_are_nearly_those_of_floats_in_any_company(tmp_path, mean):
    source = write_bert(tmp_path / "bert.gguf", mean=mean)
    texts = QuickTexts(source, 2)
    together = texts.many(TEXTS)
    for tokens, found in zip(TEXTS, together, strict=True):
        rows = in_floats(source, tmp_path / "floats", tokens)
        expected, other = (rows.mean(axis=0), rows[0]) if mean else (rows[0], rows.mean(axis=0))
        assert cosine(found, expected) > max(0.998, cosine(found, other))
        assert (texts.many([tokens])[0] == found).all()


def test_what_is_no_encoder_of_texts_is_refused(tmp_path):
    with pytest.raises(NotQuick, match="no BERT that embeds"):
        QuickTexts(write_bert(tmp_path / "rank.gguf", rank=True), 1)
    cut = write_bert(tmp_path / "cut.gguf")
    cut.write_bytes(cut.read_bytes()[:-2000])
    with pytest.raises(NotQuick):
        QuickTexts(cut, 1)


class Exact:
    """llama.cpp's side: the vectors of the float graph, times `sign`, in this much CPU time."""

    def __init__(self, source, folder, *, seconds, sign=1):
        self.source, self.folder, self.seconds, self.sign, self.asked = source, folder, seconds, sign, 0

    def __call__(self, tokens):
        self.asked += 1
        row = self.sign * in_floats(self.source, self.folder, tokens)[0].astype(np.float64)
        until = time.process_time() + self.seconds
        while time.process_time() < until:
            pass
        return row


def choice(source, **changed):
    return QuickChoice(LoadSettings(path=str(source), n_ctx=64, embeddings=True, **changed), 2)


def test_it_is_taken_where_it_is_faster_and_measured_once(tmp_path):
    source = write_bert(tmp_path / "bert.gguf")
    exact, chosen = Exact(source, tmp_path / "floats", seconds=0.2), choice(source)
    assert not chosen.wanted(MIN_TEXTS - 1)
    assert chosen.wanted(MIN_TEXTS)
    found = chosen.rows(TEXTS, exact)
    assert min(cosine(row, exact(text)) for text, row in zip(TEXTS, found, strict=True)) > 0.995
    asked = exact.asked
    assert chosen.wanted(1)  # the remaining texts of a job are read in the same way
    assert chosen.rows(TEXTS[:1], exact) is not None
    assert exact.asked == asked


@pytest.mark.parametrize("changed", [{"seconds": 0.0, "sign": -1}, {"seconds": 0.05, "sign": -1}])
def test_other_vectors_are_never_taken(tmp_path, changed):
    source = write_bert(tmp_path / "bert.gguf")
    chosen = choice(source)
    assert chosen.rows(TEXTS, Exact(source, tmp_path / "floats", **changed)) is None
    assert not chosen.wanted(1000)


def test_what_is_not_faster_is_not_taken(tmp_path):
    source = write_bert(tmp_path / "bert.gguf")
    known = {tuple(t): in_floats(source, tmp_path / "floats", t)[0].astype(np.float64) for t in TEXTS}
    chosen = choice(source)
    assert chosen.rows(TEXTS, lambda tokens: known[tuple(tokens)]) is None  # no time at all
    assert not chosen.wanted(1000)


@pytest.mark.parametrize("changed", [{"devices": ("Vulkan0",)}, {"n_gpu_layers": 4}, {"repack": False}])
def test_elsewhere_than_on_the_processor_it_is_not_tried(tmp_path, changed):
    assert not choice(write_bert(tmp_path / "bert.gguf"), **changed).wanted(1000)
