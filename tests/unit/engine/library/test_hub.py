"""The hub client over real sockets against the fake hub: search, listings, names, refusals."""

import base64
import contextlib
import gzip
import hashlib
import itertools
import json
import logging
import socket
import threading
import time

import pytest

from engine.core.errors import InputFault
from engine.jobs.jobs import JobContext
from engine.library import errors
from engine.library.hub import client as hub_client
from engine.library.hub.client import HubClient
from engine.library.hub.file_selection import files_of
from engine.library.hub.plan import RemoteFile, about, plan_repository
from engine.library.hub.repository import choices_of, first_paragraph, is_safe_name, projectors_of
from engine.library.hub.types import RepoFile, Repository
from tests.support.fakes.downloads import SPARK, download
from tests.support.fakes.fake_hub import FakeFile

_CARD = """---
license: mit
---

# Name

[![badge](https://a/b.svg)](https://a)

<p align='center'><img src=x></p>

**Spark** is a [small](https://x) model for
`tests` of everything.

More text that is not shown at all.
"""


@pytest.mark.parametrize(
    ("card", "paragraph"),
    [
        ("", ""),
        ("---\nlicense: mit\ntags: [a, b]\n---\n# Name\n\n", ""),
        (_CARD, "Spark is a small model for tests of everything."),
        ("Too short.\n\n- a list with quite a lot of words in it\n\n| a | table | of | many | words | here |", ""),
        ("word " * 100, " ".join(["word"] * 55) + " word…"),
        ("One\x1b[31m line with \u202e control characters.", "One [31m line with control characters."),
    ],
)
def test_the_first_paragraph_of_a_model_card_is_plain_text(card, paragraph):
    assert first_paragraph(card) == paragraph


@pytest.mark.parametrize("repeated", ["[ ", "![ ", "<a ", "](", "*"])
def test_a_hostile_model_card_takes_no_time(repeated):
    words = "A model that does what its card says, and no more."
    card = "w " * 10 + repeated * (65536 // len(repeated))
    began = time.process_time()
    assert first_paragraph(f"{card}\n\n{words}") == words
    assert time.process_time() - began < 1


def test_search_finds_and_follows_pages(hub, client):
    for index in range(7):
        hub.add(f"org/Model-{index}-GGUF", {}, gguf={"total": 8_000_000_000, "architecture": "qwen3"})
    hub.add("org/Model-safetensors", {}, tags=("transformers",))
    hub.page = 3
    found = client.search("model", limit=6)
    assert [hit.repo for hit in found] == [f"org/Model-{i}-GGUF" for i in range(6)]
    assert (found[0].n_params, found[0].architecture) == (8_000_000_000, "qwen3")
    assert len(client.search("", gguf_only=False, limit=50)) == 8
    assert client.search("nothing like it") == ()


def test_a_list_that_goes_on_at_another_host_is_not_followed(hub, client):
    """The next page is requested with the user's token, which only the hub may get."""
    for index in range(4):
        hub.add(f"org/Model-{index}-GGUF", {})
    hub.page, hub.next_page_at = 2, hub.storage
    found = client.search("model", limit=4)
    assert [hit.repo for hit in found] == [
        "org/Model-0-GGUF",
        "org/Model-1-GGUF",
    ]
    assert len([path for _, path, _ in hub.requests if path.startswith("/api/models")]) == 1


def test_storage_is_asked_without_the_users_token(hub, spark):
    file = next(iter(spark.files))
    with HubClient(hub.endpoint, token="hf_secret_canary").stream(
        f"{hub.storage}/org/Spark-GGUF/resolve/main/{file}", "org/Spark-GGUF", 0, 4
    ) as response:
        assert "authorization" not in response.request.headers


def test_a_mirrors_password_is_sent_to_it_and_written_nowhere(hub, catalogue, spark):
    client = HubClient(hub.endpoint.replace("://", "://ida:pass%21@"))
    download(client, catalogue).run(JobContext())
    sent = {headers.get("authorization") for _, path, headers in hub.requests if path.startswith("/api/")}
    assert sent == {"Basic " + base64.b64encode(b"ida:pass!").decode()}
    hub.faults.server_error = 9
    with pytest.raises(errors.HubUnreachable) as caught:
        client.repository("org/Spark-GGUF")
    notes = b"".join(path.read_bytes() for path in catalogue.paths.models.rglob("*.json"))
    for text in (client.endpoint, repr(client), str(caught.value), notes.decode()):
        assert "pass" not in text
        assert "127.0.0.1" in text


def test_a_listing_has_sizes_hashes_and_choices(hub, client, spark):
    spark.files["split-Q4_K_M-00001-of-00002.gguf"] = FakeFile(b"a")
    spark.files["split-Q4_K_M-00002-of-00002.gguf"] = FakeFile(b"bb")
    spark.files["half-Q8_0-00001-of-00002.gguf"] = FakeFile(b"a")
    spark.files["mmproj-F16.gguf"] = FakeFile(b"a")
    found = client.repository("org/Spark-GGUF")
    assert found.revision == "c" * 40
    assert found.license == "apache-2.0"
    assert [(c.label, len(c.files), c.size_bytes) for c in choices_of(found)] == [
        ("Q4_K_M", 2, 3),
        ("F16", 1, SPARK.stat().st_size),
    ]
    assert choices_of(found)[1].files[0].sha256 == hashlib.sha256(SPARK.read_bytes()).hexdigest()
    assert [f.name for f in projectors_of(found)] == ["mmproj-F16.gguf"]
    full = choices_of(found)[1]
    assert "mmproj-F16.gguf" in {f.name for f in files_of(found, full)}
    assert "mmproj-F16.gguf" not in {f.name for f in files_of(found, full, vision=False)}


@pytest.mark.parametrize(
    "name",
    ["../x", "a/../b", "/etc/passwd", "C:\\x", "C:x", "a\\b", "a\0b", "a\nb", "", "a//b", ".", "..", "...", "con",
     "aux.gguf",
     ".x", ".tessera.json", "a/.b",
     "x.", " x", "x ", "a/" * 9 + "b", "y" * 201, "~/x", "a/~root/x", "\udcff", 'a"b', "a|b", "a*", "NUL.txt"],
)  # fmt: skip
def test_names_that_could_lead_elsewhere(name):
    assert not is_safe_name(name)


@pytest.mark.parametrize(
    "name", ["a", "model-00001-of-00002.gguf", "Q4_K_M/m.gguf", "ünï/模型 (1).gguf", "a.b/c.d"]
)
def test_names_that_are_fine(name):
    assert is_safe_name(name)


def test_a_repository_that_names_files_elsewhere_gets_none_of_them(hub, client, catalogue, spark):
    spark.files["../../escape-Q4_0.gguf"] = FakeFile(SPARK.read_bytes())
    spark.files["/abs-Q5_0.gguf"] = FakeFile(SPARK.read_bytes())
    spark.files[".tessera.json"] = FakeFile(b"{}")  # the note in which Tessera stores the expected hashes
    found = client.repository("org/Spark-GGUF")
    assert [c.label for c in choices_of(found)] == ["F16"]
    assert [file.name for file in found.files] == ["spark-F16.gguf", "README.md"]
    for repo in ("../x", "a/b/c", "a/..", "x\0y", "", "org/con"):
        with pytest.raises(InputFault):
            client.repository(repo)


def test_not_found_and_gated(hub, client, caplog, monkeypatch):
    with pytest.raises(errors.RepositoryNotFound):
        client.repository("org/absent")
    hub.add("org/gated", {"m-Q8_0.gguf": SPARK.read_bytes()}, gated=True)
    with pytest.raises(errors.RepositoryNotFound, match="revision"):
        client.repository("org/gated", "nope")
    caplog.set_level(logging.DEBUG)
    with pytest.raises(errors.GatedRepository) as caught:
        client.repository("org/gated")
    assert not caught.value.has_token
    with pytest.raises(errors.GatedRepository) as caught:
        HubClient(hub.endpoint, token="hf_secret_canary").repository("org/gated")
    assert caught.value.has_token
    monkeypatch.setenv("HF_TOKEN", hub.token)
    assert HubClient(hub.endpoint).repository("org/gated").files
    shown = caplog.text + str(caught.value) + repr(caught.value.facts()) + repr(HubClient(hub.endpoint))
    assert "canary" not in shown
    assert hub.token not in shown


def test_offline_mode_sends_nothing(hub, client, spark, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(errors.Offline):
        client.repository("org/Spark-GGUF")
    assert hub.requests == []


def test_a_hub_that_does_not_answer(client, hub):
    with pytest.raises(errors.HubUnreachable, match="no server answers there"):
        HubClient("http://127.0.0.1:9").repository("org/x")
    with pytest.raises(errors.HubUnreachable):
        HubClient("http://127.0.0.1:9").search("x")
    hub.faults.server_error = 1
    with pytest.raises(errors.HubUnreachable) as caught:
        client.repository("org/x")
    assert caught.value.status == 503
    hub.faults.too_many, hub.faults.retry_after = 1, "17"
    with pytest.raises(errors.RateLimited) as limited:
        client.repository("org/x")
    assert limited.value.retry_after_s == 17


def test_no_telemetry_and_no_request_beyond_the_asked_one(hub, client, spark):
    client.repository("org/Spark-GGUF")
    assert [(method, path.partition("?")[0]) for method, path, _ in hub.requests] == [
        ("GET", "/api/models/org/Spark-GGUF")
    ]
    agent = hub.requests[0][2]["user-agent"]
    assert agent.startswith("tessera/")
    assert "torch" not in agent
    assert "agent/" not in agent


class Liar:
    """A hub that sends what a test sets, whatever was requested; `sent` counts the bytes that were read."""

    def __init__(self):
        self.parts, self.sent, self.requests = (), 0, 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._answer, args=(self._listener.accept()[0],), daemon=True).start()

    def _answer(self, connection):
        with connection, contextlib.suppress(OSError):
            while b"\r\n\r\n" not in connection.recv(65536):
                pass
            self.requests += 1
            for part in self.parts() if callable(self.parts) else self.parts:
                connection.sendall(part)
                self.sent += len(part)

    def close(self):
        self._listener.close()


@pytest.fixture
def liar(hub):  # `hub` sets the environment
    running = Liar()
    yield running
    running.close()


def head(status=200, *headers):
    return "\r\n".join([f"HTTP/1.1 {status} X", *headers, "connection: close", "", ""]).encode("latin-1")


def endless(first, chunk=b" " * (1 << 20)):
    return lambda: itertools.chain([first], itertools.repeat(chunk))


_GZIP = gzip.compress(b"[" + b" " * 10_000_000 + b"]")
_LIES = {
    "an answer without end": endless(head() + b"["),
    "an error without end": endless(head(500)),
    "a redirect without end": endless(head(302, "location: http://127.0.0.1:9/")),
    "redirects in a circle": [head(302, "location: /again", "content-length: 0")],
    "a redirect to no address": [head(302, "location: http://[", "content-length: 0")],
    "compressed": [head(200, "content-encoding: gzip", f"content-length: {len(_GZIP)}"), _GZIP],
    "no JSON": [head(), b"<html>"],
    "no text": [head(), b"\xff\xfe\x00"],
    "a number": [head(), b"1"],
    "numbers": [head(), b"[1, 2]"],
    "nested": [head(), b"[" * 200_000],
    "two million values": [head(), b"[" + b"0," * 2_100_000 + b"0]"],
    "names of no repository": [head(), b'[{"id": {}, "tags": 3}]'],
    "texts for numbers": [head(), b'[{"id": "a/b", "downloads": "many"}]'],
    "a status that is none": [b"HTTP/1.1 abc\r\n\r\n"],
    "a head without end": endless(b"HTTP/1.1 200 OK\r\n", b"x: y\r\n" * 1000),
}


@pytest.mark.parametrize("lie", _LIES)
def test_a_hub_that_lies_is_reported_and_takes_little(liar, lie):
    liar.parts = _LIES[lie]
    client = HubClient(liar.endpoint)
    for ask in (lambda: client.search("x"), lambda: client.repository("a/b")):
        liar.sent = 0
        with pytest.raises(errors.HubUnreachable) as caught:
            ask()
        assert "Traceback" not in str(caught.value)
        assert liar.sent < 100 << 20


def test_pages_without_results_end(liar):
    liar.parts = [head(200, f'link: <{liar.endpoint}/api/models?cursor=x>; rel="next"', "content-length: 2"), b"[]"]
    assert HubClient(liar.endpoint).search("x") == ()
    assert liar.requests == 1


def test_a_hub_that_sends_a_byte_now_and_then_is_slow_for_a_while_only(liar, monkeypatch):
    monkeypatch.setattr(hub_client, "_SLOW_AFTER_S", 0.1)

    def drip():
        yield head()
        while True:
            time.sleep(0.02)
            yield b" "

    liar.parts = drip
    with pytest.raises(errors.HubUnreachable):
        HubClient(liar.endpoint).search("x")


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        (["retry-after: 17"], 17),
        (["retry-after: \xb2"], 30),
        (["retry-after: " + "9" * 400], 86_400),
        (["retry-after: Wed, 21 Oct 2026 07:28:00 GMT"], 30),
        (["retry-after: -5"], 30),
        (["ratelimit: limit=5, t=\xb3"], 30),
        (['ratelimit: "api";r=0;t=42'], 42),
    ],
)
def test_the_wait_that_a_hub_asks_for_is_bounded(liar, headers, seconds):
    liar.parts = [head(429, *headers, "content-length: 0")]
    with pytest.raises(errors.RateLimited) as caught:
        HubClient(liar.endpoint).repository("a/b")
    assert caught.value.retry_after_s == seconds


def test_hashes_of_a_listing_never_name_a_path(hub, client, catalogue, spark):
    """Headers and descriptions are stored under the hash of their file."""
    paths = catalogue.paths
    for name, file in spark.files.items():
        for up in (1, 3, 6):
            file.sha256 = file.git_sha1 = "../" * up + f"of-{name}"
            assert plan_repository(client, paths, "org/Spark-GGUF", refresh=True).options[0].details is not None
            assert about(client, paths, client.repository("org/Spark-GGUF")) == ""
    assert not list(paths.cache.parent.parent.rglob("of-*"))
    for file in client.repository("org/Spark-GGUF").files:
        assert (file.sha256, file.git_sha1) == (None, None)


@pytest.mark.parametrize("size", [-1, 1 << 60])
def test_files_of_impossible_sizes_are_left_out(liar, size):
    listing = {"id": "a/b", "sha": "c" * 40, "siblings": [{"rfilename": "m-Q8_0.gguf", "size": size}]}
    raw = json.dumps(listing).encode()
    liar.parts = [head(200, f"content-length: {len(raw)}"), raw]
    assert HubClient(liar.endpoint).repository("a/b").files == ()


def test_other_bytes_than_requested_are_not_taken(liar):
    repository = Repository(
        repo="a/b", endpoint=liar.endpoint, revision="main", files=(RepoFile(name="x", size_bytes=100),)
    )
    file = RemoteFile(HubClient(liar.endpoint), repository, repository.files[0])
    liar.parts = [head(206, "content-range: bytes 0-9/100", "content-length: 10"), b"0123456789"]
    assert file.read_at(0, 10) == b"0123456789"
    with pytest.raises(errors.HubUnreachable, match="other bytes"):
        file.read_at(50, 10)
