"""Access control: every route with every form of key, scopes, wrong keys, foreign pages, forms, secrets in logs."""

import logging
import os
import re
import socket
import subprocess
import sys
import urllib.parse

import httpx2
import pytest
from starlette.routing import Route

from engine.core.errors import InputFault
from engine.core.keys import KeyStore
from engine.server import middleware
from engine.server.all_routes import every_route
from engine.server.auth import Access, running_server_url
from engine.server.origin_check import AllowedOrigins
from tests.support.fakes.scripted import TOKEN, ScriptedServer
from tests.support.servers import ROOT, RunningServer, free_port, wait_for

KEY = "sk-the-key"
CALLERS = AllowedOrigins(hosts=("my.box",), origins=("http://app.example",))
OPEN = {"/", "/health", "/v1/health", "/docs", "/chat"}
MANAGEMENT = ("/tessera/", "/api/pull", "/api/create", "/api/copy", "/api/delete")
WRONG = {
    "nothing": {},
    "bearer": {"authorization": "Bearer wrong"},
    "bearer, lower case": {"authorization": "bearer wrong"},
    "no scheme": {"authorization": "sk-the-key"},
    "basic": {"authorization": "Basic c2stdGhlLWtleTo="},
    "empty bearer": {"authorization": "Bearer"},
    "x-api-key": {"x-api-key": "wrong"},
    "empty x-api-key": {"x-api-key": ""},
    "api-key": {"api-key": "wrong"},
    "cookie": {"cookie": "api_key=sk-the-key; token=management-token"},
    "prefix of the key": {"authorization": "Bearer sk-the"},
    "key and more": {"x-api-key": "sk-the-key2"},
    "forwarded": {"x-forwarded-for": "127.0.0.1", "x-real-ip": "127.0.0.1", "forwarded": "for=127.0.0.1"},
    "not ascii": {"x-api-key": "schl\u00fcssel".encode()},
}


@pytest.fixture(scope="module")
def locked(tmp_path_factory):
    """A server that requires a key and never locks clients out, so that all forms can be tried."""
    home = tmp_path_factory.mktemp("locked")
    store = KeyStore(home / "keys.json")
    access = Access(TOKEN, [KEY], store)
    access.failures.note = lambda address: None
    server = ScriptedServer(home / "home", access=access, callers=CALLERS)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def http(locked):
    with httpx2.Client(base_url=locked.url) as client:
        yield client


def routes(server):
    """Every route of the application, with its methods and its parameters filled in."""
    found = []
    for route in all_routes(every_route(server.state).routes):
        if isinstance(route, Route):
            path = re.sub(r"\{[^}]*\}", "x", route.path)
            found += [(method, path) for method in sorted(route.methods or ())]
    return found


def all_routes(routes):
    for route in routes:
        inner = getattr(route, "original_router", None)
        if inner is not None:
            yield from all_routes(inner.routes)
        else:
            yield route


@pytest.mark.timeout(400)  # about 1,500 requests, and wrong keys are answered slowly
def test_every_route_refuses_every_wrong_form_of_key(locked, http):
    tried = 0
    paths = routes(locked)
    assert len({p for _, p in paths}) > 50
    for method, path in paths:
        if path in OPEN:
            continue
        for form, headers in WRONG.items():
            answer = http.request(method, path, headers=headers)
            assert answer.status_code == 401, (method, path, form)
            tried += 1
    assert tried > 500


def test_management_refuses_a_key_that_only_chats(locked, http):
    for method, path in routes(locked):
        if path.startswith(MANAGEMENT):
            answer = http.request(method, path, headers={"authorization": f"Bearer {KEY}"})
            assert answer.status_code == 403, (method, path)


@pytest.mark.parametrize(
    "path",
    ["//tessera//v1/loaded", "/tessera/v1/../v1/loaded", "/%74essera/v1/loaded", "/./tessera/v1/loaded",
     "/tessera/v1/loaded/", "/TESSERA/v1/loaded", "/v1/%2e%2e/tessera/v1/loaded", "/health/../tessera/v1/loaded"],
)  # fmt: skip
def test_other_spellings_of_a_path_open_nothing(locked, path):
    with socket.create_connection(("127.0.0.1", locked.port), 60) as raw:
        raw.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while chunk := raw.recv(65536):
            answer += chunk
    assert int(answer.split()[1]) in {401, 404}


@pytest.mark.parametrize("header", ["authorization", "x-api-key", "api-key"])
def test_the_key_opens_in_every_form(locked, http, header):
    value = f"Bearer {KEY}" if header == "authorization" else KEY
    assert http.get("/v1/models", headers={header: value}).status_code == 200


def test_errors_come_in_the_shape_of_the_protocol(http):
    assert http.post("/v1/messages", json={}).json()["error"]["type"] == "authentication_error"
    assert isinstance(http.post("/api/chat", json={}).json()["error"], str)
    assert http.post("/v1/chat/completions", json={}).json()["error"]["code"] == "invalid_api_key"


def test_keys_with_scopes_are_made_used_and_revoked(locked, http):
    token = {"authorization": f"Bearer {TOKEN}"}
    made = http.post("/tessera/v1/keys", json={"name": "phone"}, headers=token).json()
    boss = http.post("/tessera/v1/keys", json={"name": "boss", "scopes": ["chat", "manage"]}, headers=token).json()
    assert http.post("/tessera/v1/keys", json={"name": "phone"}, headers=token).status_code == 400
    listed = http.get("/tessera/v1/keys", headers=token)
    assert [k["name"] for k in listed.json()["keys"]] == ["phone", "boss"]
    assert made["key"] not in listed.text
    assert made["key"] not in locked.state.access.store._store.path.read_text()
    assert locked.state.access.store._store.path.stat().st_mode & 0o77 == 0
    phone = {"x-api-key": made["key"]}
    assert http.get("/v1/models", headers=phone).status_code == 200
    assert http.get("/tessera/v1/loaded", headers=phone).status_code == 403
    assert http.get("/tessera/v1/loaded", headers={"x-api-key": boss["key"]}).status_code == 200
    assert http.delete("/tessera/v1/keys/phone", headers=token).status_code == 204
    assert http.get("/v1/models", headers=phone).status_code == 401


def test_a_damaged_key_file_closes_the_server(tmp_path):
    path = tmp_path / "keys.json"
    path.write_text("[{")
    server = ScriptedServer(tmp_path / "home", access=Access(TOKEN, store=KeyStore(path)))
    try:
        assert httpx2.get(f"{server.url}/v1/models").status_code == 503
        assert httpx2.get(f"{server.url}/health").status_code == 200
        token = {"authorization": f"Bearer {TOKEN}"}
        assert httpx2.get(f"{server.url}/tessera/v1/loaded", headers=token).status_code == 200
    finally:
        server.stop()


def test_a_file_that_holds_no_key_lets_nobody_in_and_removing_the_last_key_lets_all_in(tmp_path):
    path = tmp_path / "keys.json"
    store = KeyStore(path)
    access = Access(TOKEN, store=store)
    assert not access.needs_key
    store.add("one", ("chat",))
    assert access.needs_key
    assert store.remove("one")
    assert not access.needs_key
    path.write_text("[]")
    assert Access(TOKEN, store=KeyStore(path)).needs_key


def test_a_second_server_of_one_home_leaves_the_first_findable(tmp_path):
    first = RunningServer(tmp_path)
    second = None
    try:
        told = (tmp_path / "state" / "server.json").read_text()
        port = free_port()
        command = [sys.executable, "-m", "app", "serve", "--port", str(port)]
        environment = {**os.environ, "TESSERA_HOME": str(tmp_path)}
        second = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
        wait_for(lambda: answers(f"http://127.0.0.1:{port}/health"), 90, "the second server")
        assert (tmp_path / "state" / "server.json").read_text() == told
        second.terminate()
        assert first.url in second.communicate(timeout=60)[1]
        assert (tmp_path / "state" / "server.json").read_text() == told
        first.process.kill()
        first.process.wait()
        assert running_server_url(tmp_path / "state" / "server.json", "http://127.0.0.1:1") is None
    finally:
        if second is not None and second.poll() is None:
            second.kill()
        if first.process.poll() is None:
            first.stop()


def answers(url):
    try:
        return httpx2.get(url).status_code == 200
    except httpx2.HTTPError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="a folder in which nobody can make anything")
def test_a_home_that_cannot_be_written_is_told_and_served(tmp_path):
    port = free_port()
    command = [sys.executable, "-m", "app", "serve", "--port", str(port)]
    environment = {**os.environ, "TESSERA_HOME": "/proc/tessera"}
    server = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: server.poll() is not None or answers(f"http://127.0.0.1:{port}/health"), 90, "a server")
    finally:
        server.terminate()
    said = server.communicate(timeout=60)[1]
    assert "Traceback" not in said
    assert "/proc/tessera" in said
    assert "cannot be written" in said


def test_wrong_keys_are_slowed_down_and_the_owner_is_not(tmp_path):
    now = [0.0]
    server = ScriptedServer(tmp_path / "home", access=Access(TOKEN, [KEY]))
    server.state.access.failures._clock = lambda: now[0]
    try:
        url = f"{server.url}/v1/models"
        codes = [httpx2.get(url, headers={"x-api-key": f"guess {i}"}).status_code for i in range(12)]
        assert codes == [401] * 10 + [429] * 2
        wrong = httpx2.get(url, headers={"x-api-key": "one more"})
        assert (wrong.status_code, wrong.headers["retry-after"]) == (429, "61")
        assert httpx2.get(url, headers={"x-api-key": KEY}).status_code == 200
        assert httpx2.get(url, headers={"x-api-key": TOKEN}).status_code == 200
        now[0] = 61.0
        assert httpx2.get(url, headers={"x-api-key": "one more"}).status_code == 401
    finally:
        server.stop()


def test_asking_without_a_key_is_no_guess(locked, http):
    for _ in range(15):
        assert http.get("/v1/models").status_code == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 403),
        ({"host": "127.0.0.1.evil.example"}, 403),
        ({"host": ""}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://app.example.evil.example"}, 403),
        ({"origin": "http://127.0.0.1"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "text/plain;charset=UTF-8", "origin": "http://evil.example"}, 403),
        ({"content-type": "multipart/form-data; boundary=x"}, 415),
        ({"content-type": "application/x-www-form-urlencoded", "referer": "http://evil.example/"}, 415),
    ],
)
def test_pages_and_forms_are_refused(qwen, headers, status):
    body = b'{"model": "spark", "messages": [{"role": "user", "content": "x"}]}'
    answer = httpx2.post(f"{qwen.url}/v1/chat/completions", content=body, headers=headers)
    assert answer.status_code == status
    assert "access-control-allow-origin" not in answer.headers
    assert qwen.asked() == []


@pytest.mark.parametrize("first", [True, False])
def test_a_request_that_names_two_hosts_is_refused(qwen, first):
    address = urllib.parse.urlsplit(qwen.url)
    hosts = [f"Host: {address.netloc}", "Host: evil.example"]
    lines = ["GET /v1/models HTTP/1.1", *(hosts if first else hosts[::-1]), "Connection: close", "", ""]
    with socket.create_connection((address.hostname, address.port), timeout=60) as peer:
        peer.sendall("\r\n".join(lines).encode())
        answer = b"".join(iter(lambda: peer.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"names its host twice" in answer


@pytest.mark.parametrize("value", [1e-320, 0.0, -1.0, 1e300])
def test_a_penalty_that_would_make_no_number_is_refused_by_name(qwen, value):
    body = {"model": "spark", "messages": [{"role": "user", "content": "x"}], "repeat_penalty": value}
    answer = httpx2.post(f"{qwen.url}/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert "repeat_penalty" in answer.json()["error"]["message"]
    assert qwen.asked() == []


def test_a_list_that_is_too_long_is_told_as_that(qwen):
    body = {"model": "spark", "messages": [{"role": "user", "content": "x"}], "stop": ["a"] * 10_000}
    answer = httpx2.post(f"{qwen.url}/v1/chat/completions", json=body)
    assert answer.status_code == 400
    said = answer.json()["error"]["message"]
    assert "stop" in said
    assert "64" in said


def test_curl_without_a_content_type_still_works(qwen):
    qwen.say("ok")
    headers = {"content-type": "application/x-www-form-urlencoded", "user-agent": "curl/8"}
    body = b'{"model": "spark", "messages": [{"role": "user", "content": "x"}]}'
    assert httpx2.post(f"{qwen.url}/v1/chat/completions", content=body, headers=headers).status_code == 200


def test_cors_is_for_listed_pages_only(locked, http):
    asks = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,x-stainless-lang",
    }
    listed = http.options("/v1/chat/completions", headers={"origin": "http://app.example", **asks})
    assert listed.status_code == 204
    assert listed.headers["access-control-allow-origin"] == "http://app.example"
    assert listed.headers["access-control-allow-headers"] == asks["access-control-request-headers"]
    assert "access-control-allow-credentials" not in listed.headers
    stranger = http.options("/v1/chat/completions", headers={"origin": "http://evil.example", **asks})
    assert stranger.status_code == 403
    key = {"authorization": f"Bearer {KEY}"}
    page = http.get("/v1/models", headers={"origin": "http://app.example", **key})
    assert page.headers["access-control-allow-origin"] == "http://app.example"
    assert http.get("/v1/models", headers={"host": "my.box", **key}).status_code == 200


FORMS = {"/v1/files", "/v1/audio/transcriptions"}
BODIES = [
    *("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages", "/v1/rerank"),
    *("/completion", "/infill", "/tokenize", "/api/chat", "/api/show", "/v1/vector_stores", "/v1/conversations"),
    *("/tessera/v1/keys", "/tessera/v1/collections", "/tessera/v1/quantize", *FORMS),
]


@pytest.mark.parametrize(
    ("limits", "status"),
    [
        ({"BODY_PAUSE_S": 0.2}, 408),
        ({"MAX_BODY_BYTES": 50}, 413),
        ({"SMALL_BODY_BYTES": 0, "MAX_HELD_BYTES": 0}, 503),
    ],
)
def test_a_body_beyond_a_limit_is_refused_by_every_route_that_reads_it(
    scripted, monkeypatch, caplog, limits, status
):
    """A body that pauses, is too large, or is one of too many, for routes that load with the server and later."""
    for name, limit in limits.items():
        monkeypatch.setattr(middleware, name, limit)
    answers = {}
    for path in BODIES:
        kind, body = "application/json", b'"' * 100
        if path in FORMS:
            kind = "multipart/form-data; boundary=x"
            body = b'--x\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n' + body
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\n"
            f"Authorization: Bearer {TOKEN}\r\nTransfer-Encoding: chunked\r\n\r\n{len(body):x}\r\n"
        )
        with socket.create_connection(("127.0.0.1", scripted.port), 60) as raw:
            raw.sendall(head.encode() + body + b"\r\n")
            answers[path] = int(raw.recv(100).split()[1])
    assert answers == dict.fromkeys(BODIES, status)
    assert "unexpected error" not in caplog.text


def test_a_client_that_closes_in_the_middle_of_a_body_is_no_error_of_the_server(scripted, caplog):
    caplog.set_level(logging.INFO, "engine.access")
    for path in BODIES:
        kind = "multipart/form-data; boundary=x" if path in FORMS else "application/json"
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\n"
            f"Authorization: Bearer {TOKEN}\r\nContent-Length: 1000\r\n\r\n--x\r\n"
        )
        with socket.create_connection(("127.0.0.1", scripted.port), 60) as raw:
            raw.sendall(head.encode())
    wait_for(lambda: all(f"route={path} " in caplog.text for path in BODIES), what="the lines of all requests")
    assert "unexpected error" not in caplog.text
    assert "status=500" not in caplog.text


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat"])
def test_deep_and_broken_json_is_a_400(qwen, path):
    for body in (b"[" * 100_000, b'{"a":' * 100_000, b"", b"null", b'"x"', b"\xff\xfe", b"{", b'{"model": NaN}'):
        answer = httpx2.post(f"{qwen.url}{path}", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 400


def test_one_line_a_request_and_no_secret_in_it(tmp_path, caplog):
    canaries = ["sk-canary-key", "canary-prompt", "canary-query", "canary-system", "canary-wrong", TOKEN]
    access = Access(TOKEN, [canaries[0]])
    with caplog.at_level(logging.DEBUG):
        server = ScriptedServer(tmp_path / "home", access=access)
        try:
            key = {"x-api-key": canaries[0]}
            server.say("canary-answer")
            body = {"model": "spark", "messages": [{"role": "user", "content": "canary-prompt"}]}
            good = httpx2.post(f"{server.url}/v1/chat/completions?x=canary-query", json=body, headers=key)
            bad = {**body, "temperature": "canary-prompt"}
            httpx2.post(f"{server.url}/v1/chat/completions", json=bad, headers=key)
            httpx2.post(
                f"{server.url}/v1/messages", json={"model": "spark", "system": "canary-system"}, headers=key
            )
            httpx2.get(f"{server.url}/v1/canary-query", headers={"x-api-key": "canary-wrong"})
            httpx2.get(f"{server.url}/tessera/v1/loaded", headers={"authorization": f"Bearer {TOKEN}"})
            assert httpx2.get(f"{server.url}/metrics", headers=key).text.count("canary") == 0
        finally:
            server.stop()
    lines = [r.getMessage() for r in caplog.records if r.name == "engine.access"]
    # The last line of another test's server may arrive late.
    lines = lines[next(n for n, line in enumerate(lines) if good.headers["x-request-id"] in line) :]
    assert len(lines) == 5
    assert "route=/v1/chat/completions status=200" in lines[0]
    everything = "\n".join(r.getMessage() + str(r.exc_info or "") for r in caplog.records if r.name != "httpx2")
    for canary in [*canaries, "canary-answer"]:
        assert canary not in everything


def test_stats_tell_speed_queue_memory_and_cache(scripted):
    url, token = f"{scripted.url}/tessera/v1/stats", {"authorization": f"Bearer {TOKEN}"}
    assert httpx2.get(url).status_code == 401
    httpx2.post(f"{scripted.url}/tessera/v1/models/spark/load", headers=token)

    def told():
        text = httpx2.get(url, params={"once": "true"}, headers=token).text
        assert text.startswith("event: stats\ndata: {")
        return text

    for field in ("tok_s", "cache_hit_frac", "queued", "rss_bytes", "kv_cells_total", "memory_available_bytes"):
        # A runner without a step for 1 s is listed without its numbers.
        wait_for(lambda field=field: f'"{field}":' in told(), what=field)
    assert httpx2.get(url, params={"interval": "0"}, headers=token).status_code == 400


@pytest.mark.parametrize("name", ["..%2f..%2fkeys.json", "%2e%2e%2fkeys.json", "a%00b", "%2fetc%2fpasswd"])
def test_names_in_paths_lead_nowhere(locked, http, name):
    """Asserts that unsafe ids of files, responses, conversations, stores and collections are not found."""
    tried = 0
    for route in all_routes(every_route(locked.state).routes):
        if not isinstance(route, Route) or "{" not in route.path:
            continue
        path = re.sub(r"\{[^}]*\}", name, route.path)
        for method in sorted((route.methods or set()) & {"GET", "DELETE"}):
            token = TOKEN if path.startswith(MANAGEMENT) else KEY
            answer = http.request(method, path, headers={"authorization": f"Bearer {token}"})
            tried += 1
            assert 400 <= answer.status_code < 500, (method, path, answer.status_code, answer.text)
    assert tried > 10


def test_an_uploaded_file_keeps_the_last_part_of_its_name_only(locked, http):
    key = {"authorization": f"Bearer {KEY}"}
    given = {"file": ("../../../../tmp/planted.txt", b"text", "text/plain")}
    answer = http.post("/v1/files", files=given, data={"purpose": "assistants"}, headers=key)
    assert answer.status_code == 200, answer.text
    assert answer.json()["filename"] == "planted.txt"


def test_a_key_needs_a_name_that_no_other_has(tmp_path):
    store = KeyStore(tmp_path / "keys.json")
    store.add("laptop", ("chat",))
    with pytest.raises(InputFault, match="There is already a key named 'laptop'"):
        store.add("laptop", ("chat",))
    for name in ("", " ", "x" * 101):
        with pytest.raises(InputFault, match="The name of a key has 1 to 100 characters"):
            store.add(name, ("chat",))
