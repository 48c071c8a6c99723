"""Embeddings and rerank scores of ONNX Runtime against llama.cpp's, from the same weights."""

import asyncio

import numpy as np
import pytest

from engine.core.errors import ContextOverflow, InputFault
from engine.core.types import GenerationRequest
from engine.runner.process import RunnerProcess
from engine.runner.protocol import LoadSettings
from quantize.onnx.folder import convert_gguf
from quantize.onnx.request import FixedOptions
from tests.support.models.bert_shape import write_bert
from tests.support.models.onnx_bert import write_onnx_bert

TEXTS = ["one two three", "tiles w1 w2 w3 w4 w5 one", "two", "tile unknownword one"]


def rows(engine, path, inputs, query=None, *, quick=False):
    async def main():
        runner = await RunnerProcess.start(engine, str(path))
        try:
            settings = LoadSettings(path=str(path), n_ctx=64, embeddings=True, n_threads=1, repack=quick)
            await runner.load(settings)  # weights as stored in the file
            done = await runner.embed(inputs, query=query, quick=quick)
            return np.stack([np.frombuffer(v, "<f4") for v in done.vectors]), done.token_counts
        finally:
            await runner.stop()

    return asyncio.run(main())


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    made = {}
    for rank in (False, True):
        source = write_bert(folder / f"bert-{rank}.gguf", rank=rank)
        made[rank] = source, write_onnx_bert(source, folder / f"onnx-{rank}", rank=rank)
    return made


def test_embeddings_are_llama_cpps(models):
    source, folder = models[False]
    (ours, counts), (theirs, wanted) = rows("onnx", folder, TEXTS), rows("llama", source, TEXTS)
    assert counts == wanted
    assert np.allclose(np.linalg.norm(ours, axis=1), 1, atol=1e-5)
    assert ((ours * theirs).sum(axis=1) > 0.9999).all()  # llama.cpp reads its activation from a 16-bit table


def test_rerank_scores_are_llama_cpps(models):
    source, folder = models[True]
    (ours, _), (theirs, _) = (rows(e, p, TEXTS, "one tile") for e, p in (("onnx", folder), ("llama", source)))
    assert np.allclose(ours[:, 0], theirs[:, 0], rtol=0.02, atol=0.02)


@pytest.mark.parametrize("rank", [False, True])
def test_fixed_shapes_give_the_same_numbers(models, tmp_path, rank):
    """One text of 32 tokens per run, in operators that NPU compilers support; longer texts are refused."""
    source, _ = models[rank]
    convert_gguf(source, tmp_path / "open")
    convert_gguf(source, tmp_path / "fixed", fixed=FixedOptions(context=32))
    query = "one tile" if rank else None
    expected, found = (rows("onnx", tmp_path / name, TEXTS, query)[0] for name in ("open", "fixed"))
    assert np.allclose(found, expected, atol=1e-4)
    with pytest.raises(ContextOverflow):
        rows("onnx", tmp_path / "fixed", ["one " * 40], query)


def test_many_inputs_that_may_be_quick_keep_their_order_and_nearly_their_vectors(models):
    source, _ = models[False]
    inputs = [" ".join(["one", "tile", *(f"w{n}" for n in range(i, i + 9))]) for i in range(40)]
    (ours, counts), (theirs, wanted) = (rows("llama", source, inputs, quick=quick) for quick in (True, False))
    assert counts == wanted
    assert ((ours * theirs).sum(axis=1) > 0.995).all()
    assert ((ours @ theirs.T).argmax(axis=1) == np.arange(len(inputs))).all()


def test_padding_changes_nothing(models):
    _, folder = models[False]
    together, _ = rows("onnx", folder, TEXTS)
    alone = np.concatenate([rows("onnx", folder, [text])[0] for text in TEXTS[:2]])
    assert np.allclose(together[:2], alone, atol=1e-5)


@pytest.mark.parametrize(
    ("inputs", "query", "said"),
    [
        (["one " * 99], None, "101 tokens"),
        ([[999]], None, "Token ids"),
        (["x"], "y", "no ranking head"),
        ([], None, "nothing"),
    ],
)
def test_what_cannot_be_embedded_is_refused(models, inputs, query, said):
    with pytest.raises(InputFault, match=said):
        rows("onnx", models[False][1], inputs, query)


def test_an_encoder_generates_nothing(models):
    async def main():
        runner = await RunnerProcess.start("onnx", "x")
        try:
            await runner.load(LoadSettings(path=str(models[False][1]), n_ctx=64))
            async for _event in runner.generate(GenerationRequest(prompt="hi")):
                pass
        finally:
            await runner.stop()

    with pytest.raises(InputFault, match="generates none"):
        asyncio.run(main())
