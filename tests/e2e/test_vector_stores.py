"""Files and vector stores with OpenAI's official client."""

import socket
from urllib.parse import urlsplit

import httpx2
import pytest

from tests.support.late import openai
from tests.support.servers import RunningServer, wait_for


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    running = RunningServer(tmp_path_factory.mktemp("stores"))
    yield running
    running.stop()


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as found:
        yield found


@pytest.fixture(scope="module")
def store(client):
    tides = client.files.create(
        file=("tides.md", b"# Tides\n\nHigh water comes every twelve hours."), purpose="assistants"
    )
    made = client.vector_stores.create(name="sea", file_ids=[tides.id], metadata={"who": "Ida"})
    wait_for(lambda: client.vector_stores.retrieve(made.id).status == "completed", 60, "reading")
    return made


def test_a_store_is_made_filled_and_searched(client, store):
    shown = client.vector_stores.retrieve(store.id)
    assert (shown.name, shown.metadata, shown.file_counts.completed) == ("sea", {"who": "Ida"}, 1)
    (result,) = client.vector_stores.search(store.id, query="How often is high water?").data
    assert (result.filename, result.content[0].type) == ("tides.md", "text")
    assert "twelve hours" in result.content[0].text
    assert 0 < result.score <= 1
    assert store.id in [each.id for each in client.vector_stores.list()]


def test_files_come_one_by_one_with_attributes_that_filter(client, store):
    sent = client.files.create(
        file=("gulls.txt", b"The kittiwake nests on cliffs by the sea."), purpose="assistants"
    )
    added = client.vector_stores.files.create_and_poll(sent.id, vector_store_id=store.id, attributes={"year": 1998})
    assert added.status == "completed"
    wanted = {"type": "gte", "key": "year", "value": 1990}
    found = client.vector_stores.search(store.id, query="kittiwake cliffs or high water", filters=wanted).data
    assert [result.filename for result in found] == ["gulls.txt"]
    none = {"type": "and", "filters": [wanted, {"type": "eq", "key": "year", "value": 3}]}
    assert client.vector_stores.search(store.id, query="kittiwake cliffs", filters=none).data == []
    content = client.vector_stores.files.content(sent.id, vector_store_id=store.id)
    assert "kittiwake" in content.data[0].text
    client.vector_stores.files.delete(sent.id, vector_store_id=store.id)
    wait_for(lambda: not client.vector_stores.search(store.id, query="kittiwake").data, 30, "the removal")
    assert client.files.content(sent.id).read() == b"The kittiwake nests on cliffs by the sea."


def test_files_are_listed_by_up_to_ten_thousand(client):
    assert client.files.list(limit=10_000).data is not None
    with pytest.raises(openai.BadRequestError, match="10000"):
        client.files.list(limit=10_001)


def test_a_batch_tells_which_file_failed(client, store):
    good = client.files.create(file=("a.txt", b"An eider dives."), purpose="assistants")
    bad = client.files.create(file=("b.pdf", b"%PDF-1.7 nothing"), purpose="assistants")
    odd = client.files.create(file=("c.exe", b"MZ\x90\0\x03"), purpose="assistants")
    ids = [good.id, bad.id, odd.id]
    batch = client.vector_stores.file_batches.create_and_poll(store.id, file_ids=ids)
    assert (batch.file_counts.completed, batch.file_counts.failed) == (1, 2)
    shown = client.vector_stores.files.retrieve(bad.id, vector_store_id=store.id)
    assert "damaged" in shown.last_error.message
    client.files.delete(good.id)
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(good.id)


@pytest.mark.parametrize(
    "act",
    [
        lambda c: c.vector_stores.retrieve("vs_nothing"),
        lambda c: c.files.retrieve("file-nothing"),
        lambda c: c.vector_stores.create(file_ids=["file-nothing"]),
    ],
    ids=["a store", "a file", "a file of a new store"],
)
def test_what_is_not_there_is_a_404(client, act):
    with pytest.raises(openai.NotFoundError):
        act(client)


def test_bad_requests_are_refused(client, store):
    with pytest.raises(openai.BadRequestError, match="purpose"):
        client.files.create(file=("a.txt", b"x"), purpose="fine-tune")
    with pytest.raises(openai.BadRequestError, match="filters"):
        client.vector_stores.search(store.id, query="x water", filters={"type": "like", "key": "a", "value": 1})


def test_metadata_cannot_take_the_place_of_attributes(client, store):
    with pytest.raises(openai.BadRequestError, match="attributes:file-1"):
        client.vector_stores.update(store.id, metadata={"attributes:file-1": "no JSON"})
    with pytest.raises(openai.BadRequestError, match="attributes:file-1"):
        client.vector_stores.create(metadata={"attributes:file-1": "no JSON"})


def test_attributes_stay_with_other_metadata_and_go_with_their_file(client, server):
    sent = client.files.create(file=("a.txt", b"An eider dives."), purpose="assistants")
    made = client.vector_stores.create(name="birds", metadata={"who": "Ida"})
    client.vector_stores.files.create(made.id, file_id=sent.id, attributes={"year": 1998})
    client.vector_stores.update(made.id, metadata={"who": "Ole"})
    assert client.vector_stores.retrieve(made.id).metadata == {"who": "Ole"}
    assert client.vector_stores.files.retrieve(sent.id, vector_store_id=made.id).attributes == {"year": 1998}
    stored = server.home / "config" / "collections.json"
    assert sent.id in stored.read_text()
    client.files.delete(sent.id)
    assert sent.id not in stored.read_text()


def test_a_page_in_a_browser_cannot_send_files(server):
    answer = httpx2.post(
        f"{server.url}/v1/files",
        files={"file": ("a.txt", b"x")},
        data={"purpose": "assistants"},
        headers={"sec-fetch-site": "cross-site"},
    )
    assert answer.status_code in (403, 415)


def test_the_users_own_collections_are_no_stores(client, server, tmp_path):
    (tmp_path / "secret.txt").write_text("The key lies under the mat.")
    made = httpx2.post(
        f"{server.url}/tessera/v1/collections",
        json={"name": "mine", "sources": [str(tmp_path)]},
        headers={"authorization": f"Bearer {server.token}"},
    ).json()
    with pytest.raises(openai.NotFoundError):
        client.vector_stores.search(made["id"], query="key")
    assert made["id"] not in [each.id for each in client.vector_stores.list()]


def test_an_upload_that_its_client_breaks_off_is_no_error(server):
    head = (
        "POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n"
        "Content-Type: multipart/form-data; boundary=b\r\n\r\n--b\r\n"
    )
    address = urlsplit(server.url)
    before = len(server.log)
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall(head.encode())
    wait_for(lambda: "route=/v1/files" in server.log[before:], what="the end of the upload")
    assert "Traceback" not in server.log[before:]
