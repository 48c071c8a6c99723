"""Model names work on every route; page origins are checked; errors leave the connection usable."""

import httpx2
import pytest

from engine.server.origin_check import AllowedOrigins
from tests.support.fakes.scripted import TOKEN, ScriptedServer
from tests.support.servers import wait_for

HI = [{"role": "user", "content": "Hi"}]
MANAGE = {"authorization": f"Bearer {TOKEN}"}
FIM_MARKS = {"pre": "<|fim_prefix|>", "suf": "<|fim_suffix|>", "mid": "<|fim_middle|>"}


def test_every_name_that_ollama_lists_works_on_every_route(qwen):
    [listed] = httpx2.get(f"{qwen.url}/api/tags", timeout=60).json()["models"]
    name = listed["model"]
    assert name == "spark:latest"
    bodies = {
        "/v1/chat/completions": {"messages": HI},
        "/v1/completions": {"prompt": "Hi"},
        "/v1/responses": {"input": "Hi"},
        "/v1/messages": {"messages": HI, "max_tokens": 4},
        "/v1/embeddings": {"input": "Hi"},
        "/tokenize": {"content": "Hi"},
        "/api/chat": {"messages": HI, "stream": False},
        "/api/show": {},
    }
    for path, body in bodies.items():
        answer = httpx2.post(f"{qwen.url}{path}", json={"model": name, **body}, timeout=60)
        assert answer.status_code == 200, (path, answer.text)
    assert httpx2.get(f"{qwen.url}/v1/models/{name}").json()["id"] == "spark"
    unknown = httpx2.post(
        f"{qwen.url}/v1/chat/completions", json={"model": "no:latest", "messages": HI}, timeout=60
    )
    assert unknown.status_code == 404
    assert "'no:latest'" in unknown.json()["error"]["message"]


def test_a_second_name_with_a_tag_keeps_it(qwen):
    with httpx2.Client(base_url=qwen.url, headers=MANAGE, timeout=60) as http:
        assert http.post("/api/copy", json={"source": "spark", "destination": "me/cp2:v1"}).status_code == 200
        names = [m["name"] for m in http.get("/api/tags").json()["models"]]
        assert names == ["spark:latest", "me/cp2:v1"]
        assert http.post("/v1/chat/completions", json={"model": "me/cp2:v1", "messages": HI}).status_code == 200
        assert http.request("DELETE", "/api/delete", json={"model": "me/cp2:v1"}).status_code == 200


@pytest.mark.parametrize("keep_alive", [300_000_000_000, 1e300, 10**400, "1000000000h", "9" * 400])
def test_a_model_kept_for_longer_than_dates_go_is_kept_for_ever(qwen, keep_alive):
    asked = {"model": "spark", "keep_alive": keep_alive}
    assert httpx2.post(f"{qwen.url}/api/generate", json=asked, timeout=60).status_code == 200
    listed = httpx2.get(f"{qwen.url}/api/ps", timeout=60)
    assert listed.status_code == 200, listed.text
    assert listed.json()["models"][0]["expires_at"] > "2100"
    assert qwen.state.pool.loaded[0].ttl_s is None


@pytest.fixture(scope="module")
def open_server(tmp_path_factory):
    callers = AllowedOrigins(local_pages=True, containers=False, apps=False)
    server = ScriptedServer(tmp_path_factory.mktemp("open") / "home", callers=callers)
    yield server
    server.stop()


APPS = ["app://obsidian.md", "vscode-webview://abc", "tauri://localhost", "vscode-file://vscode-app"]
LOCAL = ["http://localhost:3000", "http://127.0.0.1:5173", "https://ui.localhost"]
NEVER = ["null", "http://evil.example", "http://localhost.evil.example", "chrome-extension://abc", "file://"]


def ask(server, **headers):
    return httpx2.get(f"{server.url}/v1/models", headers=headers, timeout=60)


def test_who_may_call_by_default(qwen):
    assert ask(qwen, host=f"host.docker.internal:{qwen.port}").status_code == 200
    assert ask(qwen, host=f"0.0.0.0:{qwen.port}").status_code == 200
    assert ask(qwen, origin=qwen.url).status_code == 200
    assert ask(qwen, origin=qwen.url, **{"sec-fetch-site": "same-origin"}).status_code == 200
    for origin in APPS:
        answer = ask(qwen, origin=origin)
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, origin)
    for origin in LOCAL:
        answer = ask(qwen, origin=origin)
        assert (answer.status_code, "--local-pages" in answer.text) == (403, True), origin
    for origin in NEVER:
        answer = ask(qwen, origin=origin)
        assert (answer.status_code, f"--allow-origin {origin}" in answer.text) == (403, True), origin
    assert "--allow-host box.lan" in ask(qwen, host="box.lan:80").text


def test_a_page_under_a_containers_name_is_no_page_of_ours(qwen):
    host = f"host.docker.internal:{qwen.port}"
    assert ask(qwen, host=host, origin=f"http://{host}").status_code == 403


def test_each_switch_turns(open_server):
    for origin in LOCAL:
        assert ask(open_server, origin=origin).status_code == 200, origin
    for origin in NEVER:
        assert ask(open_server, origin=origin).status_code == 403, origin
    for origin in APPS:
        answer = ask(open_server, origin=origin)
        assert (answer.status_code, "--apps" in answer.text) == (403, True)
    refused = ask(open_server, host="host.docker.internal")
    assert (refused.status_code, "--containers" in refused.text) == (403, True)


def test_a_packed_body_is_refused_by_its_name(qwen):
    headers = {"content-encoding": "gzip", "content-type": "application/json"}
    answer = httpx2.post(f"{qwen.url}/v1/chat/completions", content=b"\x1f\x8b\x08\x00", headers=headers)
    assert answer.status_code == 415
    assert "content-encoding" in answer.json()["error"]["message"]


def test_the_docs_page_works_without_a_network_and_with_its_own_key(qwen):
    page = httpx2.get(f"{qwen.url}/docs")
    assert page.status_code == 200
    assert "http://" not in page.text
    assert "https://" not in page.text
    assert "connect-src 'self'" in page.headers["content-security-policy"]


def test_a_bug_is_an_answer_that_is_logged_and_leaves_the_connection_open(qwen, monkeypatch, caplog):
    def broken(*args):
        raise ZeroDivisionError

    caplog.set_level("INFO", "engine.access")
    with httpx2.Client(base_url=qwen.url, timeout=60) as http:
        with monkeypatch.context() as patch:
            patch.setattr("engine.server.ollama.models._tag", broken)
            answer = http.get("/api/tags")
        assert answer.status_code == 500
        assert "connection" not in answer.headers
        assert answer.json()["error"].startswith("An internal error")
        wait_for(lambda: "route=/api/tags status=500" in caplog.text)  # logged after the response was sent
        assert http.get("/api/tags").status_code == 200


def test_what_a_path_can_be_asked_with_is_complete(qwen):
    answer = httpx2.request("PUT", f"{qwen.url}/v1/responses/resp_1")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "DELETE, GET"


@pytest.mark.parametrize("token", [10**30, -(10**30), 1 << 31, -1])
def test_no_token_is_larger_than_a_vocabulary(qwen, token):
    for path, body in {
        "/v1/embeddings": {"input": [token]},
        "/v1/completions": {"prompt": [[token]]},
        "/completion": {"prompt": [token]},
        "/detokenize": {"tokens": [token]},
        "/v1/chat/completions": {"messages": HI, "logit_bias": {str(token): 1}},
    }.items():
        answer = httpx2.post(f"{qwen.url}{path}", json={"model": "spark", **body}, timeout=60)
        assert answer.status_code == 400, (path, answer.text)


BUDGETS = [
    ("/v1/chat/completions", {"messages": HI, "thinking_budget": 99}, 99),
    ("/v1/chat/completions", {"messages": HI, "reasoning_effort": "low"}, 1024),
    ("/v1/chat/completions", {"messages": HI, "reasoning_effort": "high"}, None),
    ("/v1/chat/completions", {"messages": HI, "thinking_budget": -1}, None),
    ("/v1/responses", {"input": "Hi", "reasoning": {"effort": "medium"}}, 4096),
    ("/v1/responses", {"input": "Hi", "reasoning": {"max_tokens": 77}}, 77),
    (
        "/v1/messages",
        {"messages": HI, "max_tokens": 9, "thinking": {"type": "enabled", "budget_tokens": 1024}},
        1024,
    ),
    ("/v1/messages", {"messages": HI, "max_tokens": 9, "thinking": {"type": "disabled"}}, None),
    ("/api/chat", {"messages": HI, "think": "medium", "stream": False}, 4096),
    ("/api/generate", {"prompt": "Hi", "think": "low", "stream": False}, 1024),
]


@pytest.mark.parametrize(("path", "body", "budget"), BUDGETS, ids=range(len(BUDGETS)))
def test_every_protocols_budget_reaches_the_runner(qwen, path, body, budget):
    answer = httpx2.post(f"{qwen.url}{path}", json={"model": "spark", **body})
    assert answer.status_code == 200, answer.text
    given = qwen.asked()[-1]["reasoning"]
    if budget is None:
        assert given is None
    else:
        assert given == {
            "tokens": budget, "start": "<think>", "end": "</think>", "close": "\n</think>\n\n", "is_open": False,
        }  # fmt: skip


@pytest.fixture(scope="module")
def coder(tmp_path_factory):
    """A model with fill-in-the-middle support."""
    server = ScriptedServer(tmp_path_factory.mktemp("coder"), fim=FIM_MARKS)
    yield server
    server.stop()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"), [("/infill", {"input_prefix": "a"}), ("/v1/fim/completions", {"prompt": "a"})]
)
def test_unknown_names_of_editors_requests_are_told_whatever_they_are(coder, path, body, stream):
    """Asserts that unknown field names of any content and length are safe in the response header."""
    names = ("имя", "a\r\nX-Injected: 1", "long" * 25_000)
    coder.say("x")
    asked = {"model": "spark", **body, "stream": stream, **dict.fromkeys(names, 1)}
    answer = httpx2.post(f"{coder.url}{path}", json=asked, timeout=60)
    assert answer.status_code == 200, answer.text
    assert "x-injected" not in answer.headers
    told = answer.headers["x-tessera-ignored"]
    assert "???" in told
    assert "a??X-Injected: 1" in told
    assert len(told) < 300
