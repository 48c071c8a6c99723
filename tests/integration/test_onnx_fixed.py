"""Fixed-shape graphs on ONNX Runtime's CPU: accuracy of their bits, chaining over chunks and steps, rollback."""

import asyncio
import os
from pathlib import Path

import numpy as np
import pytest

from engine.core.types import Delta, GenerationRequest, SamplingParams
from engine.runner.onnx.errors import LoadFailed
from engine.runner.onnx.service import FixedDecoder, read_facts
from engine.runner.process import RunnerProcess
from engine.runner.protocol import LoadSettings
from quantize.errors import InvalidOption
from quantize.files.gguf_split import read_gguf_model
from quantize.onnx.decoder import decoder_shape
from quantize.onnx.fixed_folder import CHUNK_TOKENS, GRAPHS, FixedNumbers
from quantize.onnx.folder import convert_gguf
from quantize.onnx.request import FixedOptions
from quantize.onnx.static_shapes import MASKED, FixedShape, FixedWeights

SPARK = Path(__file__).resolve().parents[2] / "assets/models/spark-f16.gguf"
TEXT = "Once upon a time there was a small house by the sea. " * 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("fixed") / "spark"
    done = convert_gguf(SPARK, out, fixed=FixedOptions(context=256))
    assert "8 bits" in done.notices[0]
    return out


@pytest.fixture(scope="module")
def decoder(folder):
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    sessions = [
        onnxruntime.InferenceSession(str(folder / f"{name}.onnx"), options, providers=["CPUExecutionProvider"])
        for name in GRAPHS
    ]
    return lambda: FixedDecoder(folder, read_facts(folder), sessions)


@pytest.fixture(scope="module")
def ids(folder):
    from tokenizers import Tokenizer

    found = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(TEXT, add_special_tokens=False).ids
    assert len(found) > CHUNK_TOKENS + 20
    return found[: CHUNK_TOKENS + 20]


def log_softmax(row):
    values = row.astype(np.float64)
    values -= values.max()
    return values - np.log(np.exp(values).sum())


def test_every_input_and_output_has_one_fixed_size(folder):
    import onnx

    for name in GRAPHS:
        graph = onnx.load(str(folder / f"{name}.onnx"), load_external_data=False).graph
        dims = [d for v in (*graph.input, *graph.output) for d in v.type.tensor_type.shape.dim]
        assert all(d.dim_value > 0 for d in dims)
        assert not {"Shape", "NonZero", "Range", "Expand"} & {node.op_type for node in graph.node}


def test_the_quantized_graphs_follow_the_model(decoder, ids):
    """Limits the KL divergence from the same model in float32, over the steps after a chained prompt."""
    model = read_gguf_model(SPARK)
    shape = decoder_shape(model)
    weights = FixedWeights(model, shape)
    facts = decoder()._facts
    whole = [facts.begin, *ids]
    at = FixedShape(shape, len(whole), 0, head=True)
    mask = np.triu(np.full((len(whole), len(whole)), MASKED, np.float32), 1)
    inputs = {"hidden": weights.get("token_embd.weight")[whole][None]}
    inputs["mask"] = np.tile(mask, (at.group, 1))[None, None]
    for layer in range(shape.layers):
        inputs[f"past.{layer}.key"] = np.zeros((1, shape.kv_heads, shape.head_dim, 0), np.float32)
        inputs[f"past.{layer}.value"] = np.zeros((1, shape.kv_heads, 0, shape.head_dim), np.float32)
    expected = FixedNumbers(weights).run(at, inputs, np.arange(len(whole)))["logits"][0]
    one = decoder()
    one.read(ids[:CHUNK_TOKENS])
    found = []
    for i in range(CHUNK_TOKENS, len(ids)):
        p, q = log_softmax(expected[i + 1]), log_softmax(one.step(ids[i]))
        found.append(float((np.exp(p) * (p - q)).sum()))
    assert np.mean(found) < 0.03
    assert one.length == len(whole)


def test_pieces_steps_and_taking_back_give_the_same(decoder, ids):
    one, other = decoder(), decoder()
    one.read(ids[:-1])
    for token in ids[:-1]:
        other.step(token)
    first, second = log_softmax(one.step(ids[-1])), log_softmax(other.step(ids[-1]))
    assert float((np.exp(first) * (first - second)).sum()) < 0.01
    assert first.argmax() == second.argmax()
    one.rewind(len(ids))
    assert np.array_equal(log_softmax(one.step(ids[-1])), first)
    one.rewind(0)
    assert one.length == 1


def test_it_answers_through_the_runner_and_reuses_what_it_read(folder):
    async def main():
        runner = await RunnerProcess.start("onnx", str(folder))
        try:
            facts = await runner.load(LoadSettings(path=str(folder), n_ctx=4096, n_threads=1, n_parallel=2))
            texts = []
            for prompt in ("Once upon a time", "Once upon a time", "Once upon a"):
                request = GenerationRequest(prompt=prompt, sampling=SamplingParams(temperature=0), max_tokens=8)
                pieces = [e async for e in runner.generate(request) if isinstance(e, Delta)]
                texts.append("".join(e.text for e in pieces))
            return facts, texts
        finally:
            await runner.stop()

    facts, texts = asyncio.run(main())
    assert facts.n_ctx == 255
    assert texts[0] == texts[1]
    assert all(texts)


def test_a_damaged_folder_is_refused(folder, tmp_path):
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    (copy / "embedding.bin").write_bytes(b"\0" * 100)
    with pytest.raises(LoadFailed, match=r"embedding\.bin"):
        FixedDecoder(copy, read_facts(copy), [_NoSession(), _NoSession()])
    (copy / "fixed.json").write_text('{"format": 1}')
    with pytest.raises(LoadFailed, match=r"fixed\.json"):
        read_facts(copy)


class _NoSession:
    def get_outputs(self):
        return []


def test_what_has_no_fixed_form_says_so(tmp_path):
    with pytest.raises(InvalidOption, match="--bits"):
        convert_gguf(SPARK, tmp_path / "a", fixed=FixedOptions(bits=5))
    with pytest.raises(InvalidOption, match="--context"):
        convert_gguf(SPARK, tmp_path / "b", fixed=FixedOptions(context=10))
    assert not any(tmp_path.iterdir())


def test_four_bits_halve_the_weights(folder, tmp_path):
    convert_gguf(SPARK, tmp_path / "four", fixed=FixedOptions(context=256, bits=4))
    eight, four = ((f / "fixed.onnx.data").stat().st_size for f in (folder, tmp_path / "four"))
    assert four < 0.6 * eight
