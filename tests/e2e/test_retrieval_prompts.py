"""A collection puts the prompts of the embedding model's training before passages and queries."""

import apsw
import httpx2
import numpy as np
import pytest

from engine.documents.store import embedded_text
from tests.support.models.bert_shape import write_bert
from tests.support.servers import RunningServer, wait_for

KNOWN = ("query", "passage", "represent", "this", "sentence", ":")
PASSAGE = "one two three tile"
QUESTION = "two tile"
trained_with = pytest.mark.parametrize(
    ("model", "question", "passage"),
    [
        ("multilingual-e5-small", "query: ", "passage: "),
        ("bge-small-en-v1.5", "Represent this sentence for searching relevant passages: ", ""),
        ("all-minilm-l6-v2", "", ""),
    ],
)


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """For each model: the client, the stored vector of the one passage, and the query's cosine with it."""
    home, place = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("texts")
    (home / "models").mkdir()
    for seed, name in enumerate(("multilingual-e5-small", "bge-small-en-v1.5", "all-minilm-l6-v2")):
        write_bert(home / "models" / f"{name}.gguf", seed=seed, known=KNOWN)
    (place / "w1.txt").write_text(PASSAGE)
    server = RunningServer(home)
    with httpx2.Client(
        base_url=server.url, headers={"authorization": f"Bearer {server.token}"}, timeout=60
    ) as client:

        def vector(model, text, **more):
            answer = client.post("/v1/embeddings", json={"model": model, "input": text, **more})
            assert answer.status_code == 200, answer.text
            return np.array(answer.json()["data"][0]["embedding"])

        def about(model):
            body = {"name": model, "sources": [str(place)], "embedding_model": model}
            made = client.post("/tessera/v1/collections", json=body).json()
            path = f"/tessera/v1/collections/{made['id']}"
            wait_for(lambda: client.get(path).json()["embedded"] == 1, 60, "the vector")
            (index,) = home.rglob(f"*{made['id']}*/index.db")
            blob = apsw.Connection(str(index)).execute("SELECT vector FROM vector").get
            stored = np.frombuffer(blob[4:], np.int8) * np.frombuffer(blob[:4], "<f4")[0]
            (hit,) = client.post(f"{path}/search", json={"query": QUESTION}).json()["passages"]
            return stored, hit["cosine"]

        about.client = client
        yield vector, about
    server.stop()


@trained_with
def test_what_is_read_is_what_the_model_was_trained_with(asked, model, question, passage):
    vector, about = asked
    read = embedded_text("w1", "", PASSAGE)
    wanted, plain = vector(model, passage + read), vector(model, "passage: " + read if not passage else read)
    stored, cosine = about(model)
    assert stored @ wanted > 0.999  # one byte per dimension
    assert stored @ plain < stored @ wanted - 0.01
    floor = 0.7 if "e5" in model else 0.0  # E5's cosines are between 0.7 and 1 and are rescaled
    assert abs(vector(model, question + QUESTION) @ stored - (floor + (1 - floor) * cosine)) < 2e-3
    assert abs(vector(model, "passage: " + QUESTION) @ stored - (floor + (1 - floor) * cosine)) > 2e-3


@trained_with
def test_an_input_type_puts_it_there_for_a_client(asked, model, question, passage):
    vector, _ = asked
    for kind in ("query", "search_query"):
        assert np.allclose(vector(model, QUESTION, input_type=kind), vector(model, question + QUESTION))
    for kind in ("passage", "document", "search_document"):
        assert np.allclose(vector(model, QUESTION, input_type=kind), vector(model, passage + QUESTION))
    assert np.allclose(vector(model, QUESTION, input_type="query"), vector(model, QUESTION)) == (not question)


@pytest.mark.parametrize(
    ("more", "status"), [({"input_type": "summary"}, 400), ({"input_type": "query", "input": [[3, 4]]}, 400)]
)
def test_an_input_type_that_cannot_be_honoured_is_refused(asked, more, status):
    _, about = asked
    answer = about.client.post("/v1/embeddings", json={"model": "all-minilm-l6-v2", "input": QUESTION, **more})
    assert answer.status_code == status
    assert answer.json()["error"]["param"] == "input_type"
