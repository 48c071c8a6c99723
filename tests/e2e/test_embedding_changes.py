"""Which model embeds a collection: changes take effect, and an automatic choice stays while its model is there."""

import httpx2
import pytest

from tests.support.models.bert_shape import write_bert
from tests.support.servers import RunningServer, wait_for

FIRST, SECOND = "one-embeds", "two-embeds"


@pytest.fixture
def client(tmp_path):
    (tmp_path / "home" / "models").mkdir(parents=True)
    for seed, name in enumerate((FIRST, SECOND)):
        write_bert(tmp_path / "home" / "models" / f"{name}.gguf", seed=seed)
    server = RunningServer(tmp_path / "home")
    headers = {"authorization": f"Bearer {server.token}"}
    with httpx2.Client(base_url=server.url, headers=headers, timeout=60) as found:
        yield found
    server.stop()


def test_a_changed_embedding_model_embeds_all_passages_again(client, tmp_path):
    (place := tmp_path / "texts").mkdir()
    for number in range(3):
        (place / f"{number}.txt").write_text(f"one two three tile {number}")
    made = client.post("/tessera/v1/collections", json={"name": "texts", "sources": [str(place)]}).json()
    path = f"/tessera/v1/collections/{made['id']}"

    def embedded(number=3):
        shown = client.get(path).json()
        return shown["embedded_by"] if shown["embedded"] == shown["chunks"] == number else ""

    wait_for(embedded, 60, "the vectors")
    first = embedded()
    other = {FIRST: SECOND, SECOND: FIRST}[first]
    assert client.post(path, json={"embedding_model": other}).is_success
    wait_for(lambda: embedded() == other, 60, "the vectors of the other model, without a changed file")
    (hit, *_) = client.post(f"{path}/search", json={"query": "two tile"}).json()["passages"]
    assert hit["cosine"] is not None

    # Automatic again: the model with the vectors stays, also if the other one is loaded.
    assert client.post(path, json={"embedding_model": ""}).is_success
    assert client.post("/v1/embeddings", json={"model": first, "input": "x"}).is_success
    assert client.post(f"/tessera/v1/models/{other}/unload").is_success
    (place / "new.txt").write_text("one two three tile new")
    wait_for(lambda: embedded(4) == other, 60, "the vector of the new file")

    assert client.delete(f"/tessera/v1/models/{other}").is_success

    def moved():
        client.post(f"{path}/search", json={"query": "two tile"})
        return embedded(4) == first

    wait_for(moved, 90, "the vectors of the model that is left")
