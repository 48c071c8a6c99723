"""What one key stored is invisible to other keys; the user's own programs see all; without keys all is shared."""

import httpx2
import pytest

from engine.core.keys import KeyStore
from tests.support.servers import RunningServer, wait_for

MODEL = "spark"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    home = tmp_path_factory.mktemp("owners")
    store = KeyStore(home / "config" / "api-keys.json")
    keys = {name: store.add(name, ("chat",)) for name in ("one", "other")}
    keys["manager"] = store.add("manager", ("chat", "manage"))
    running = RunningServer(home)
    yield running, {**keys, "own": running.token}, store
    running.stop()


@pytest.fixture
def clients(server):
    running, keys, _ = server
    made = {
        name: httpx2.Client(base_url=running.url, headers={"authorization": f"Bearer {key}"}, timeout=60)
        for name, key in keys.items()
    }
    yield made
    for client in made.values():
        client.close()


def sent(client, method, path, **arguments):
    answer = client.request(method, path, **arguments)
    assert answer.status_code == 200, answer.text
    return answer.json()


def file(client):
    made = sent(client, "POST", "/v1/files", files={"file": ("a.txt", b"secret"), "purpose": (None, "user_data")})
    return f"/v1/files/{made['id']}", [("GET", ""), ("GET", "/content"), ("DELETE", "")]


def vector_store(client):
    path, _ = file(client)
    made = sent(client, "POST", "/v1/vector_stores", json={"name": "mine", "file_ids": [path.rpartition("/")[2]]})
    search = ("POST", "/search", {"json": {"query": "secret"}})
    name = ("POST", "", {"json": {"name": "changed"}})
    return f"/v1/vector_stores/{made['id']}", [("GET", ""), ("GET", "/files"), search, name, ("DELETE", "")]


def response(client):
    made = sent(client, "POST", "/v1/responses", json={"model": MODEL, "input": "hi", "max_output_tokens": 16})
    return f"/v1/responses/{made['id']}", [("GET", ""), ("GET", "/input_items"), ("DELETE", "")]


def background(client):
    body = {"model": MODEL, "input": "hi", "max_output_tokens": 16, "background": True}
    path = f"/v1/responses/{sent(client, 'POST', '/v1/responses', json=body)['id']}"
    wait_for(lambda: sent(client, "GET", path)["status"] not in {"queued", "in_progress"})
    followed = ("GET", "?stream=true")
    return path, [("GET", ""), followed, ("POST", "/cancel"), ("DELETE", "")]


def conversation(client):
    items = [{"role": "user", "content": "secret"}]
    made = sent(client, "POST", "/v1/conversations", json={"items": items})
    more = ("POST", "/items", {"json": {"items": items}})
    return f"/v1/conversations/{made['id']}", [("GET", ""), ("GET", "/items"), more, ("DELETE", "")]


KINDS = [file, vector_store, response, background, conversation]


def status(client, path, step):
    method, end, arguments = (*step, {})[:3]
    return client.request(method, path + end, **arguments).status_code


@pytest.mark.parametrize("kind", KINDS)
def test_another_key_finds_nothing_and_the_maker_everything(clients, kind):
    path, steps = kind(clients["one"])
    assert {status(clients["other"], path, step) for step in steps} <= {400, 404}
    for step in steps:
        assert status(clients["one"], path, step) == 200, step


@pytest.mark.parametrize("who", ["own", "manager"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_users_own_programs_see_all(clients, kind, who):
    path, steps = kind(clients["one"])
    for step in steps:
        assert status(clients[who], path, step) == 200, step


def test_lists_show_what_may_be_used(clients):
    mine, _ = file(clients["one"])
    for path, make in (("/v1/files", file), ("/v1/vector_stores", vector_store)):
        made = make(clients["one"])[0].rpartition("/")[2]
        assert made in [row["id"] for row in sent(clients["one"], "GET", f"{path}?limit=100")["data"]]
        assert made in [row["id"] for row in sent(clients["own"], "GET", f"{path}?limit=100")["data"]]
        assert made not in [row["id"] for row in sent(clients["other"], "GET", f"{path}?limit=100")["data"]]
    body = {"name": "theirs", "file_ids": [mine.rpartition("/")[2]]}
    assert clients["other"].post("/v1/vector_stores", json=body).status_code == 404


def test_an_answer_of_another_key_cannot_be_continued(clients):
    path, _ = response(clients["one"])
    talk, _ = conversation(clients["one"])
    item = sent(clients["one"], "GET", f"{path}")["output"][0]["id"]
    body = {"model": MODEL, "input": "and?", "max_output_tokens": 16}
    references = [
        {"previous_response_id": path.rpartition("/")[2]},
        {"conversation": talk.rpartition("/")[2]},
        {"input": [{"type": "item_reference", "id": item}]},
    ]
    for more in references:
        assert clients["other"].post("/v1/responses", json={**body, **more}).status_code in {400, 404}, more
        assert clients["one"].post("/v1/responses", json={**body, **more}).status_code == 200, more


def answered(client, *items):
    body = {"model": MODEL, "input": list(items), "max_output_tokens": 16}
    return sent(client, "POST", "/v1/responses", json=body)["id"]


def test_items_with_ids_of_their_clients_belong_to_their_keys(clients):
    texts = {name: f"words of {name}" for name in ("one", "other")}
    for name, text in texts.items():
        answered(clients[name], {"id": "item_1", "role": "user", "content": text})
    for name, text in texts.items():
        again = answered(clients[name], {"type": "item_reference", "id": "item_1"})
        (item,) = sent(clients[name], "GET", f"/v1/responses/{again}/input_items")["data"]
        assert item["content"][0]["text"] == text


def test_an_id_that_a_client_uses_twice_is_no_error(clients):
    twice = [{"id": "item_2", "role": "user", "content": text} for text in ("a", "b")]
    made = answered(clients["one"], *twice)
    again = answered(clients["one"], {"type": "item_reference", "id": "item_2"})
    (item,) = sent(clients["one"], "GET", f"/v1/responses/{again}/input_items")["data"]
    assert item["content"][0]["text"] == "b"
    for response_id in (made, again):
        assert sent(clients["one"], "DELETE", f"/v1/responses/{response_id}")["deleted"] is True


def test_a_vector_store_takes_no_name_from_a_collection(clients, tmp_path):
    (tmp_path / "a.txt").write_text("words")
    sent(clients["one"], "POST", "/v1/vector_stores", json={"name": "Papers"})
    body = {"name": "Papers", "sources": [str(tmp_path)]}
    made = clients["own"].post("/tessera/v1/collections", json=body)
    assert made.status_code in {200, 201}, made.text
    named = sent(clients["own"], "GET", "/tessera/v1/collections/Papers")
    assert named["id"].startswith("col_")


def test_names_of_collections_are_told_to_the_users_own_programs_only(clients, tmp_path):
    (tmp_path / "a.txt").write_text("words")
    body = {"name": "My divorce", "sources": [str(tmp_path)]}
    assert clients["own"].post("/tessera/v1/collections", json=body).status_code == 201
    search = {"type": "file_search", "vector_store_ids": ["nothing"]}
    requests = {
        "/v1/responses": {"model": MODEL, "input": "hi", "tools": [search]},
        "/v1/chat/completions": {
            "model": MODEL,
            "messages": [{"role": "user", "content": "hi"}],
            "collection": "x",
        },
    }
    for path, sent_body in requests.items():
        answers = {name: clients[name].post(path, json=sent_body) for name in ("one", "own")}
        assert {answer.status_code for answer in answers.values()} == {404}
        assert "My divorce" in answers["own"].text
        assert "My divorce" not in answers["one"].text


def test_one_keys_objects_do_not_evict_anothers(clients):
    kept, _ = conversation(clients["one"])
    for _ in range(520):
        sent(clients["other"], "POST", "/v1/conversations", json={})
    assert clients["one"].get(kept).status_code == 200


def test_when_the_last_key_is_gone_all_is_shared_again(server, clients):
    running, _, store = server
    path, _ = file(clients["one"])
    for key in store.all():
        store.remove(key.name)
    with httpx2.Client(base_url=running.url) as anyone:
        assert anyone.get(path).status_code == 200
