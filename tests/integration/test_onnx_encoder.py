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
from tests.support.runner_calls import answered

TEXTS = ["one two three", "tiles w1 w2 w3 w4 w5 one", "two", "tile unknownword one"]


def with_runner(engine, path, work, *, quick=False):
    async def main():
        runner = await RunnerProcess.start(engine, str(path))
        try:
            settings = LoadSettings(path=str(path), n_ctx=64, embeddings=True, n_threads=1, repack=quick)
            await runner.load(settings)  # weights as stored in the file
            return await work(runner)
        finally:
            await runner.stop()

    return asyncio.run(main())


async def embedded(runner, inputs, query=None, *, quick=False):
    done = await runner.embed(inputs, query=query, quick=quick)
    return np.stack([np.frombuffer(v, "<f4") for v in done.vectors]), done.token_counts


def rows(engine, path, inputs, query=None, *, quick=False):
    return with_runner(engine, path, lambda runner: embedded(runner, inputs, query, quick=quick), quick=quick)


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

    async def work(runner):
        with pytest.raises(ContextOverflow):
            await embedded(runner, ["one " * 40], query)
        return await embedded(runner, TEXTS, query)

    expected, _ = rows("onnx", tmp_path / "open", TEXTS, query)
    found, _ = with_runner("onnx", tmp_path / "fixed", work)
    assert np.allclose(found, expected, atol=1e-4)


def test_many_inputs_that_may_be_quick_keep_their_order_and_nearly_their_vectors(models):
    source, _ = models[False]
    inputs = [" ".join(["one", "tile", *(f"w{n}" for n in range(i, i + 9))]) for i in range(40)]
    (ours, counts), (theirs, wanted) = (rows("llama", source, inputs, quick=quick) for quick in (True, False))
    assert counts == wanted
    assert ((ours * theirs).sum(axis=1) > 0.995).all()
    assert ((ours @ theirs.T).argmax(axis=1) == np.arange(len(inputs))).all()


def test_padding_changes_nothing(models):
    async def work(runner):
        alone = [(await embedded(runner, [text]))[0] for text in TEXTS[:2]]
        return np.concatenate(alone), (await embedded(runner, TEXTS))[0]

    alone, together = with_runner("onnx", models[False][1], work)
    assert np.allclose(together[:2], alone, atol=1e-5)


IMPOSSIBLE = (
    (["one " * 99], None, "101 tokens"),
    ([[999]], None, "Token ids"),
    (["x"], "y", "no ranking head"),
    ([], None, "nothing"),
)


def test_what_cannot_be_embedded_is_refused_and_an_encoder_generates_nothing(models):
    async def work(runner):
        for inputs, query, said in IMPOSSIBLE:
            with pytest.raises(InputFault, match=said):
                await embedded(runner, inputs, query)
        with pytest.raises(InputFault, match="generates none"):
            await answered(runner, GenerationRequest(prompt="hi"))
        return await embedded(runner, TEXTS)

    _, counts = with_runner("onnx", models[False][1], work)
    assert len(counts) == len(TEXTS)
