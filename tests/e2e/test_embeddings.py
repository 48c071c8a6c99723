"""Embeddings, reranking and tokenization with real models in real runners."""

import asyncio
import base64
import math
import threading

import httpx2
import numpy as np
import pytest

from engine.core.errors import ContextOverflow, InputFault
from engine.runner.llama.native.llama_api import start_backends
from engine.runner.process import RunnerProcess
from engine.runner.protocol import LoadSettings
from tests.support.late import openai
from tests.support.models.bert_shape import write_bert

pytestmark = pytest.mark.e2e


def in_runner(path, work, **settings):
    """Run `work(runner, facts)` with a runner for this model."""
    out = []

    async def go():
        runner = await RunnerProcess.start("llama", str(path))
        try:
            facts = await runner.load(LoadSettings(path=str(path), n_threads=1, **settings))
            out.append(await work(runner, facts))
        except BaseException as error:
            out.append(error)
        finally:
            await runner.stop()

    thread = threading.Thread(target=lambda: asyncio.run(go()))
    thread.start()
    thread.join()
    if isinstance(out[0], BaseException):
        raise out[0]
    return out[0]


def vectors(answer):
    return [np.frombuffer(v, "<f4") for v in answer.vectors]


def test_official_client_embeds_in_both_encodings(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
        texts = ["How do I list files?", "Show me the files of a folder.", "Bake bread."]
        packed = client.embeddings.create(model="spark", input=texts)  # the client requests base64
        plain = client.embeddings.create(model="spark", input=texts, encoding_format="float")
        short = client.embeddings.create(model="spark", input=texts[0], dimensions=16)
    assert len(packed.data) == 3
    for a, b in zip(packed.data, plain.data, strict=True):
        assert math.isclose(sum(x * x for x in a.embedding), 1, rel_tol=1e-4)
        assert a.embedding == pytest.approx(b.embedding, abs=1e-3)
    assert len(short.data[0].embedding) == 16
    assert math.isclose(sum(x * x for x in short.data[0].embedding), 1, rel_tol=1e-4)
    assert packed.usage.prompt_tokens == packed.usage.total_tokens > 3


def test_base64_holds_the_same_floats(server):
    body = {"model": "spark", "input": [[1, 2, 3]], "encoding_format": "base64"}
    text = httpx2.post(f"{server.url}/v1/embeddings", json=body).json()["data"][0]["embedding"]
    assert np.frombuffer(base64.b64decode(text), "<f4").shape == (256,)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": [[99999]]}, "input[0]"),
        ({"input": [[-1]]}, "input[0]"),
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": 100000}, "dimensions"),
        ({"encoding_format": "int8"}, "encoding_format"),
    ],
)
def test_a_bad_embedding_request_names_its_field(server, change, param):
    answer = httpx2.post(f"{server.url}/v1/embeddings", json={"model": "spark", "input": "x", **change})
    assert answer.status_code == 400
    assert param in (answer.json()["error"]["param"] or "")


def test_too_long_an_input_is_told_in_tokens(server):
    answer = httpx2.post(f"{server.url}/v1/embeddings", json={"model": "spark", "input": "word " * 5000})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
    assert error["prompt_tokens"] > error["context_tokens"] == 1024
    assert "input[0] has 5001 tokens or more, and this model reads at most 1024 of one text." in error["message"]
    assert "larger context" not in error["message"], "which would not help"


def test_a_chat_model_does_not_rerank(server):
    answer = httpx2.post(f"{server.url}/v1/rerank", json={"model": "spark", "query": "x", "documents": ["y"]})
    assert answer.status_code == 400
    assert "reranker" in answer.json()["error"]["message"]


def test_a_long_input_in_chunks_gives_the_mean_of_the_whole(bundled_model):
    async def work(runner, facts):
        lengths = (511, 512, 513, 514)  # a chunk has 512 tokens
        rows = await runner.embed([list(range(10, 10 + n)) for n in lengths], normalize=False)
        return dict(zip(lengths, vectors(rows), strict=True))

    mean = in_runner(bundled_model, work, n_ctx=1024)
    # The difference of two sums is one token's hidden state; across the chunk border it must be similar.
    inside = 512 * mean[512] - 511 * mean[511]
    across = 513 * mean[513] - 512 * mean[512]
    beyond = 514 * mean[514] - 513 * mean[513]
    size = np.linalg.norm(inside)
    assert 0.5 * size < np.linalg.norm(across) < 2 * size
    assert 0.5 * size < np.linalg.norm(beyond) < 2 * size


def test_packed_inputs_equal_single_ones(bundled_model):
    async def work(runner, facts):
        texts = [f"sentence number {i} about tiles" for i in range(40)]
        together = vectors(await runner.embed(texts))
        alone = [vectors(await runner.embed([t]))[0] for t in texts]
        return together, alone

    together, alone = in_runner(bundled_model, work, n_ctx=512)
    for a, b in zip(together, alone, strict=True):
        assert a == pytest.approx(b, abs=2e-3)


def test_an_encoder_embeds_and_generates_nothing(tmp_path):
    from engine.core.types import GenerationRequest

    path = write_bert(tmp_path / "tiny-bert.gguf")

    async def work(runner, facts):
        answer = await runner.embed([[1, 2, 3], [4, 5, 6, 7], [1, 2, 3]])
        with pytest.raises(ContextOverflow):
            await runner.embed([[1] * (facts.n_ctx + 1)])
        whole = await runner.embed([[1] * facts.n_ctx])
        with pytest.raises(InputFault, match="generates none"):
            async for _ in runner.generate(GenerationRequest(prompt=[1])):
                pass
        return facts, vectors(answer), whole

    facts, rows, whole = in_runner(path, work, n_ctx=4096, embeddings=True)
    assert facts.capabilities == ("embedding",)
    assert facts.n_ctx == 64
    assert whole.token_counts == [64]
    assert rows[0] == pytest.approx(rows[2], abs=1e-5)
    assert not np.allclose(rows[0], rows[1], atol=1e-3)
    assert np.linalg.norm(rows[0]) == pytest.approx(1, abs=1e-5)


def test_a_reranker_scores_documents(tmp_path):
    path = write_bert(tmp_path / "tiny-rank.gguf", rank=True)

    async def work(runner, facts):
        answer = await runner.embed(["one two", "three", "one two"], query="one")
        with pytest.raises(InputFault, match="ranks documents"):
            await runner.embed(["one"])
        return facts, answer

    facts, answer = in_runner(path, work, n_ctx=4096, embeddings=True)
    assert facts.capabilities == ("rerank",)
    assert answer.width == 1
    scores = [float(v[0]) for v in vectors(answer)]
    assert scores[0] == pytest.approx(scores[2], abs=1e-5)
    assert scores[0] != pytest.approx(scores[1], abs=1e-6)


def test_tokenize_and_back(server):
    text = "Tiles, größer 🧩"
    tokens = httpx2.post(f"{server.url}/tokenize", json={"model": "spark", "content": text}).json()["tokens"]
    back = httpx2.post(f"{server.url}/detokenize", json={"tokens": tokens}).json()["content"]
    assert back == text
    pieces = httpx2.post(
        f"{server.url}/tokenize", json={"model": "spark", "content": text, "with_pieces": True}
    ).json()["tokens"]
    assert [p["id"] for p in pieces] == tokens
    assert httpx2.post(f"{server.url}/detokenize", json={"tokens": [-1]}).status_code == 400
    assert httpx2.post(f"{server.url}/tokenize", json={"model": "spark"}).status_code == 400


def test_lm_studio_list_tells_the_loaded_context(server):
    httpx2.post(f"{server.url}/tokenize", json={"model": "spark", "content": "x"})
    listed = httpx2.get(f"{server.url}/api/v0/models").json()["data"]
    [entry] = [model for model in listed if model["id"] == "spark"]
    assert entry["state"] == "loaded"
    assert entry["loaded_context_length"] == 1024
    assert entry["type"] == "llm"
    assert httpx2.get(f"{server.url}/api/v0/models/spark").json() == entry


def test_an_encoder_runs_in_bf16_where_that_is_faster_and_gives_the_same_vectors(tmp_path):
    path = write_bert(tmp_path / "bert.gguf")
    texts = ["one two three", "tile s", "two w1 w2 w3 tile"]

    async def work(runner, facts):
        return facts.description, vectors(await runner.embed(texts))

    plain, exact = in_runner(path, work, embeddings=True, repack=False)  # weights as stored in the file
    description, fast = in_runner(path, work, embeddings=True)
    told = start_backends().llama_print_system_info()
    able = all(name in told for name in (b"AVX512_BF16 = 1", b"LLAMAFILE = 1"))
    assert ("BF16" in description) == able
    assert "BF16" not in plain
    assert all(a @ b > 0.999 for a, b in zip(exact, fast, strict=True))
    assert any((a != b).any() for a, b in zip(exact, fast, strict=True)) == able
