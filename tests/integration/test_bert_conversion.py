"""BERT folders as GGUF and as ONNX give the same vectors as a plain numpy forward pass."""

import asyncio
import json
import sys

import numpy as np
import pytest

from engine.onnx.folder import pooling as onnx_pooling
from engine.runner.process import RunnerProcess
from engine.runner.protocol import LoadSettings
from quantize.convert.folder import ConvertRequest, convert
from quantize.errors import BadFile, UnsupportedModel
from quantize.onnx.folder import convert_gguf
from tests.support.models.bert_reference import embed, score
from tests.support.models.small_bert import write_bert_folder

TEXTS = ["The tile fits.", "small models", "THE SMALLER MODEL fits the tiles", "unknown wordling", "."]


def rows(engine, path, inputs, query=None):
    async def main():
        runner = await RunnerProcess.start(engine, str(path))
        try:
            settings = LoadSettings(path=str(path), n_ctx=64, embeddings=True, n_threads=1, repack=False)
            await runner.load(settings)  # weights as stored in the file
            done = await runner.embed(inputs, query=query)
            return np.stack([np.frombuffer(v, "<f4") for v in done.vectors]), done.token_counts
        finally:
            await runner.stop()

    return asyncio.run(main())


def gguf_of(folder, float_type="F32"):
    out = folder.with_suffix(".gguf")
    return out, convert(ConvertRequest(folder=folder, out=out, float_type=float_type), lambda *_: None)


def test_vectors_of_both_forms_are_the_formulas(tmp_path):
    folder = write_bert_folder(tmp_path / "bert")
    file, told = gguf_of(folder)
    wanted = embed(folder, TEXTS)
    llama, counts = rows("llama", file, TEXTS)
    onnx, same = rows("onnx", convert_gguf(file, tmp_path / "onnx").folder, TEXTS)
    assert counts == same
    assert told.architecture == "bert"
    assert told.notes == ("2 tensors that embeddings do not need were left out",)
    assert ((llama * wanted).sum(axis=1) > 0.9999).all()  # llama.cpp reads its activation from a 16-bit table
    assert ((onnx * wanted).sum(axis=1) > 0.999999).all()


def test_the_first_tokens_row_is_taken_where_the_folder_says_so(tmp_path):
    file, _ = gguf_of(write_bert_folder(tmp_path / "bert", pooling="cls"))
    onnx = convert_gguf(file, tmp_path / "onnx").folder
    (llama, _), (ours, _) = rows("llama", file, TEXTS), rows("onnx", onnx, TEXTS)
    assert ((llama * ours).sum(axis=1) > 0.9999).all()
    other, _ = gguf_of(write_bert_folder(tmp_path / "mean"))
    assert ((rows("llama", other, TEXTS)[0] * llama).sum(axis=1) < 0.99).any()


def test_a_reranker_keeps_its_head(tmp_path):
    folder = write_bert_folder(tmp_path / "ranker", ranks=True)
    file, told = gguf_of(folder)
    found, _ = rows("onnx", convert_gguf(file, tmp_path / "onnx").folder, TEXTS, "the tile")
    assert np.allclose(found[:, 0], score(folder, "the tile", TEXTS), atol=1e-4)
    assert any("segment" in note for note in told.notes)
    assert np.isfinite(rows("llama", file, TEXTS, "the tile")[0]).all()


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"hidden_act": "relu"}, "relu"),
        ({"position_embedding_type": "relative_key"}, "relative_key"),
        ({"architectures": ["RobertaModel"]}, "RobertaModel"),
    ],
)
def test_what_cannot_be_run_is_refused(tmp_path, changed, word):
    folder = write_bert_folder(tmp_path / "bert", **changed)
    with pytest.raises(UnsupportedModel, match=word):
        gguf_of(folder)


def test_a_cased_tokenizer_is_refused(tmp_path):
    folder = write_bert_folder(tmp_path / "bert")
    told = json.loads((folder / "tokenizer.json").read_text())
    told["normalizer"]["lowercase"] = False
    (folder / "tokenizer.json").write_text(json.dumps(told))
    with pytest.raises(UnsupportedModel, match="cased"):
        gguf_of(folder)


def test_missing_layers_are_named(tmp_path):
    folder = write_bert_folder(tmp_path / "bert")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(BadFile, match=r"blk\.2"):
        gguf_of(folder)


@pytest.mark.skipif(sys.platform == "win32", reason="making links needs a privilege there")
def test_a_pooling_folder_outside_of_the_model_is_not_read(tmp_path):
    folder = write_bert_folder(tmp_path / "bert", pooling="cls")
    (folder / "1_Pooling").rename(tmp_path / "outside")
    (folder / "1_Pooling").symlink_to(tmp_path / "outside")
    with pytest.raises(BadFile, match="leads out"):
        gguf_of(folder)
    with pytest.raises(BadFile, match="leads out"):
        onnx_pooling(folder)
