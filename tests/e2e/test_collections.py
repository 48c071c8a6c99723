"""Collections over HTTP and in the terminal, with a real server."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from app.code.integrations.mcp_texts import MCP_PROGRAMS, mcp_command
from tests.support.models.bert_shape import write_bert
from tests.support.servers import ROOT, RunningServer, wait_for


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    running = RunningServer(tmp_path_factory.mktemp("collections"))
    yield running
    running.stop()


@pytest.fixture(scope="module")
def client(server):
    headers = {"authorization": f"Bearer {server.token}"}
    with httpx2.Client(base_url=server.url, headers=headers, timeout=60) as found:
        yield found


@pytest.fixture(scope="module")
def sea(client, tmp_path_factory):
    place = tmp_path_factory.mktemp("sea")
    (place / "tides.md").write_text("# Tides\n\nHigh water comes every twelve hours and twenty-five minutes.\n")
    (place / "herring.txt").write_text("The herring of the Baltic is smaller than that of the Atlantic.\n")
    (place / "broken.pdf").write_bytes(b"%PDF-1.7 nothing")
    made = client.post("/tessera/v1/collections", json={"name": "Sea", "sources": [str(place)]})
    assert made.status_code == 201, made.text
    path = f"/tessera/v1/collections/{made.json()['id']}"
    wait_for(lambda: client.get(path).json()["state"] == "ready", 60, "reading")
    return path


def test_a_passage_opens_its_page_at_its_place(client, sea):
    answer = client.post(f"{sea}/search", json={"query": "How often is high water?"}).json()
    assert answer["found"]
    passage = answer["passages"][0]
    assert passage["path"].endswith("tides.md")
    page = client.get(
        f"{sea}/documents/{passage['document']}/pages/{passage['page']}", params={"passage": passage["id"]}
    ).json()
    assert page["text"][page["start"] : page["end"]] == passage["text"]
    assert "twelve hours" in passage["text"]


def test_what_is_not_there_is_told_as_such(client, sea):
    answer = client.post(f"{sea}/search", json={"query": "Who won the chess championship of 1972?"}).json()
    assert not answer["found"]


def test_documents_are_listed_with_what_was_not_read(client, sea):
    every = client.get(f"{sea}/documents", params={"limit": 2}).json()
    assert len(every["documents"]) == 2
    rest = client.get(f"{sea}/documents", params={"limit": 2, "after": every["after"]}).json()
    assert len(rest["documents"]) == 1
    assert rest["after"] is None
    (broken,) = client.get(f"{sea}/documents", params={"problems": True}).json()["documents"]
    assert broken["state"] == "failed"
    assert broken["problem"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "param"),
    [
        ("POST", "", {"name": "x", "sources": ["relative"]}, 400, "sources"),
        ("POST", "", {"name": "x", "sources": ["/nowhere/at/all"]}, 400, "sources"),
        ("POST", "", {"name": "Sea"}, 400, "name"),
        ("GET", "/nothing", None, 404, "collection"),
        ("POST", "/Sea/search", {"query": ""}, 400, "query"),
        ("POST", "/Sea/search", {"query": "x", "ways": "meaning"}, 400, "ways"),
        ("POST", "/Sea", {"remove": ["/not/a/source"]}, 400, "remove"),
        ("GET", "/Sea/documents/99999", None, 404, "document"),
        ("GET", "/Sea/documents/1/pages/99999", None, 404, "page"),
    ],
)
def test_what_cannot_be_done_is_refused_with_its_reason(client, sea, method, path, body, status, param):
    answer = client.request(method, f"/tessera/v1/collections{path}", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


def ask(client, question, **more):
    body = {"model": "spark", "messages": [{"role": "user", "content": question}], "max_tokens": 24, **more}
    return client.post("/v1/chat/completions", json=body)


def test_documents_that_fit_are_given_whole(client, sea):
    answer = ask(client, "How often is high water?", collection="Sea")
    assert answer.status_code == 200, answer.text
    grounds = answer.json()["tessera"]["collection"]
    assert (grounds["mode"], grounds["documents"]) == ("whole", 3)
    assert {p["path"].rsplit("/", 1)[-1] for p in grounds["passages"]} == {"tides.md", "herring.txt"}
    assert answer.json()["usage"]["prompt_tokens"] > grounds["tokens"] > 20


def test_passages_come_before_the_answer_and_the_check_with_its_end(client, sea):
    more = {"collection": {"id": "Sea", "mode": "passages", "passages": 1}, "stream": True}
    lines = [
        line[6:]
        for line in ask(client, "How often is high water?", **more).text.split("\n")
        if line[:6] == "data: "
    ]
    told = [chunk["tessera"]["collection"] for chunk in map(json.loads, lines[:-1]) if "tessera" in chunk]
    assert told[0]["mode"] == "passages"
    assert len(told[0]["passages"]) == 1
    assert "checked" not in told[0]
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in map(json.loads, lines[:-1]) if c["choices"])
    for sentence in told[-1].get("checked", []):
        assert text[sentence["start"] : sentence["end"]].strip()


def test_a_weak_match_is_told_and_the_nearest_passages_are_given(client, sea):
    more = {"collection": {"id": "Sea", "mode": "passages"}}
    for question in (
        "Who won the chess championship of 1972?",
        "What is this about?",
        "Which herring won at chess?",
    ):
        grounds = ask(client, question, **more).json()["tessera"]["collection"]
        assert (grounds["mode"], grounds.get("found", False)) == ("passages", False), question
        assert grounds["why"].startswith("Weak match"), question
        assert grounds["passages"], question
    assert grounds["passages"][0]["path"].endswith("herring.txt")


def test_an_empty_collection_gives_nothing_and_says_so(client, tmp_path):
    made = client.post("/tessera/v1/collections", json={"name": "Empty", "sources": [str(tmp_path)]}).json()
    path = f"/tessera/v1/collections/{made['id']}"
    wait_for(lambda: client.get(path).json()["state"] == "ready", 60, "reading")
    more = {"collection": {"id": "Empty", "mode": "passages"}}
    grounds = ask(client, "How often is high water?", **more).json()["tessera"]["collection"]
    client.delete(path)
    assert (grounds["mode"], grounds["why"]) == ("none", "The collection contains no text for the model yet.")


@pytest.fixture(scope="module")
def towns(client, tmp_path_factory):
    place = tmp_path_factory.mktemp("towns")
    for number in range(30):
        name = f"Town{number:02}"
        founded = f"The carpenter Ida{number:02} founded {name} in the year {1500 + number}."
        (place / f"{name}.txt").write_text(f"{founded}\n")
        (place / f"mayor{number:02}.txt").write_text(f"The mayor of {name} guards a secret pebble.\n")
    body = {"name": "Towns", "sources": [str(place)], "embedding_model": "none"}
    path = f"/tessera/v1/collections/{client.post('/tessera/v1/collections', json=body).json()['id']}"
    wait_for(lambda: client.get(path).json()["state"] == "ready", 60, "reading")
    yield path
    client.delete(path)


def given(client, *questions):
    """The tuple (found, names of the given documents) for the last of the queries."""
    told = [{"role": "user", "content": questions[0]}]
    for question in questions[1:]:
        told += [{"role": "assistant", "content": "It says so there."}, {"role": "user", "content": question}]
    asked = {"model": "spark", "messages": told, "max_tokens": 2, "collection": {"id": "Towns", "mode": "passages"}}
    grounds = client.post("/v1/chat/completions", json=asked).json()["tessera"]["collection"]
    return grounds.get("found", False), [Path(passage["path"]).stem for passage in grounds["passages"]]


BOTH = "Which carpenter founded Town07 and which mayor guards the pebble of Town21?"


def test_a_question_with_two_parts_gets_the_passages_of_both(client, towns):
    found, names = given(client, BOTH)
    assert found
    assert {"Town07", "mayor21"} <= set(names[:4])


def test_a_whole_question_is_searched_by_itself_and_one_that_points_back_with_its_topic(client, towns):
    assert given(client, BOTH, "Who founded Town12?") == given(client, "Who founded Town12?")
    assert given(client, "Who founded Town12?")[1][0] == "Town12"
    assert "Town07" in given(client, "Who founded Town07?", "And in which year was that?")[1]
    assert "mayor09" in given(client, "Who founded Town09?", "When was it?", "And who guards its pebble?")[1]
    assert given(client, "Who founded Town07?", "And Town12?")[1][0] in {"Town12", "mayor12"}


def test_only_open_collections_answer_other_programs(client, server, sea):
    with httpx2.Client(base_url=server.url, timeout=60) as stranger:
        refused = ask(stranger, "high water", collection="Sea")
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "collection_not_found")
        assert "Sea" not in refused.json()["error"]["message"].replace("'Sea'", "")
        client.post(sea, json={"open": True})
        assert ask(stranger, "high water", collection="Sea").status_code == 200
        client.post(sea, json={"open": False})
        assert ask(stranger, "high water", collection="Sea").status_code == 404


def test_strangers_see_no_collections(server, sea):
    assert httpx2.get(f"{server.url}/tessera/v1/collections").status_code == 401


def test_the_terminal_makes_searches_and_removes(in_process, monkeypatch, server, sea, tmp_path):
    (tmp_path / "note.txt").write_text("The ferry to Tunö leaves at seven.")
    monkeypatch.setenv("TESSERA_HOME", str(server.home))

    def run(*arguments):
        done = in_process("collections", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "1 document, 1 page, " in run("add", "notes", str(tmp_path))
    assert "leaves at seven" in run("search", "notes", "when does the ferry leave")
    assert "broken.pdf" in run("unread", "Sea")
    (unread,) = [row for row in json.loads(run("unread", "Sea", "--json"))["unread"] if "broken.pdf" in row["path"]]
    assert unread["page"] is None
    assert f"{unread['path']}: {unread['reason']}" in run("unread", "Sea")
    assert json.loads(run("unread", "notes", "--json")) == {"unread": []}
    assert "notes" in run("list")
    run("remove", "notes")
    assert "notes" not in run("list")
    assert (tmp_path / "note.txt").exists()


def test_a_search_without_passages_says_why(in_process, monkeypatch, server, sea, client, tmp_path):
    monkeypatch.setenv("TESSERA_HOME", str(server.home))
    made = client.post("/tessera/v1/collections", json={"name": "Blank", "sources": [str(tmp_path)]}).json()
    path = f"/tessera/v1/collections/{made['id']}"
    wait_for(lambda: client.get(path).json()["state"] == "ready", 60, "reading")
    for name, question, code, reason in (
        ("Blank", "when does the ferry leave", 1, "Blank contains no text"),
        ("Sea", "xylographic quixotry", 1, "No passage of Sea contains a word of the question."),
        ("Nowhere", "when", 3, "Nowhere"),
        ("Sea", " ", 2, "the question is empty"),
    ):
        done = in_process("collections", "search", name, question)
        assert (done.returncode, done.stdout) == (code, ""), done.stderr
        assert reason in done.stderr
    client.delete(path)


@pytest.mark.parametrize("streamed", [False, True])
def test_only_from_the_documents_refuses_without_the_model(client, sea, streamed):
    def ask(question):
        body = {
            "model": "spark", "messages": [{"role": "user", "content": question}], "max_tokens": 4,
            "stream": streamed, "collection": {"id": sea.rsplit("/", 1)[1], "only": True},
        }  # fmt: skip
        if not streamed:
            answer = client.post("/v1/chat/completions", json=body).json()
            return answer["choices"][0]["message"]["content"], answer["usage"]["completion_tokens"]
        body["stream_options"] = {"include_usage": True}
        lines = client.post("/v1/chat/completions", json=body).text.splitlines()
        chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        texts = [c["delta"].get("content") or "" for chunk in chunks for c in chunk["choices"]]
        return "".join(texts), chunks[-1]["usage"]["completion_tokens"]

    refusal = "The documents of Sea do not say this: no passage fits the question."
    assert ask("Who won the chess championship of 1972?") == (refusal, 0)
    text, tokens = ask("How often is high water?")
    assert text != refusal
    assert tokens > 0


async def _session(streams, work):
    from mcp import ClientSession

    async with streams as (read, write, *_), ClientSession(read, write) as session:
        await session.initialize()
        return await work(session)


def _told(result):
    return json.loads("".join(part.text for part in result.content))


def _mcp(server, *arguments):
    env = {**os.environ, "TESSERA_HOME": str(server.home), "PYTHONPATH": str(ROOT)}
    return [sys.executable, "-m", "app", "mcp", *arguments], env


def test_an_mcp_client_reads_the_named_collections_and_no_others(server, client, sea, tmp_path):
    from mcp import StdioServerParameters
    from mcp.client.stdio import stdio_client

    (tmp_path / "diary.txt").write_text("The salary of Ms Zebrafinch is secret.")
    made = client.post("/tessera/v1/collections", json={"name": "Diary", "sources": [str(tmp_path)]}).json()
    wait_for(lambda: client.get(f"/tessera/v1/collections/{made['id']}").json()["state"] == "ready", 60, "reading")

    async def work(session):
        tools = (await session.list_tools()).tools
        assert {tool.name for tool in tools} == {"list_collections", "search", "read_page", "ask"}
        assert all(tool.annotations.read_only_hint for tool in tools)
        found = _told(await session.call_tool("search", {"question": "How often is high water?"}))
        passage = found["passages"][0]
        assert (found["found"], passage["collection"]) == (True, "Sea")
        assert "twelve hours" in passage["text"]
        place = {name: passage[name] for name in ("collection", "document", "page")}
        page = _told(await session.call_tool("read_page", place))
        assert page["file"].endswith("tides.md")
        assert "High water" in page["text"]
        answer = _told(
            await session.call_tool("ask", {"question": "How often is high water?", "collection": "sea"})
        )
        assert [p["file"] for p in answer["passages"]]
        for tool in ("search", "ask"):
            refused = await session.call_tool(tool, {"question": "salary", "collection": "Diary"})
            assert refused.is_error
            assert "Zebrafinch" not in str(refused)
            assert "There is no collection 'Diary' here. Collections: Sea" in refused.content[0].text
        gone = await session.call_tool("read_page", {**place, "document": 99_999})
        assert (gone.is_error, "Sea has no page" in gone.content[0].text) == (True, True)
        empty = await session.call_tool("search", {"question": ""})
        assert empty.content[0].text == "Error executing tool search: question is empty."
        for arguments in ({"query": "salary"}, {}):  # no address, no type names: words that a model can act on
            wrong = await session.call_tool("search", arguments)
            expected = "question: Field required. Arguments of search: question, collection, limit."
            assert (wrong.is_error, wrong.content[0].text) == (True, expected)
        every = _told(await session.call_tool("search", {"question": "salary of Zebrafinch", "limit": 20}))
        assert {p["collection"] for p in every["passages"]} <= {"Sea"}

    # as Cursor and others start it: by the text of the Connect page
    cursor = next(each for each in MCP_PROGRAMS if each.name == "Cursor")
    text = cursor.text(mcp_command(("Sea",), {"TESSERA_HOME": str(server.home)}))
    parameters = StdioServerParameters(**json.loads(text)["mcpServers"]["tessera-sea"], cwd=str(tmp_path))
    # Its default is the stderr of the test that imported it first, which may be closed by now.
    with (tmp_path / "stderr.txt").open("w", encoding="utf-8") as errors:
        asyncio.run(asyncio.wait_for(_session(stdio_client(parameters, errlog=errors), work), 90))
    client.delete(f"/tessera/v1/collections/{made['id']}")


def test_an_mcp_client_goes_on_after_a_restart_of_the_server(tmp_path):
    """Editors keep this command running for days."""
    from mcp import StdioServerParameters
    from mcp.client.stdio import stdio_client

    (tmp_path / "home").mkdir()
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "ferry.txt").write_text("The ferry to Tunö leaves at seven.")
    running = [RunningServer(tmp_path / "home")]
    headers = {"authorization": f"Bearer {running[0].token}"}
    with httpx2.Client(base_url=running[0].url, headers=headers, timeout=60) as http:
        body = {"name": "Notes", "sources": [str(tmp_path / "notes")]}
        path = f"/tessera/v1/collections/{http.post('/tessera/v1/collections', json=body).json()['id']}"
        wait_for(lambda: http.get(path).json()["state"] == "ready", 60, "reading")

    async def work(session):
        for _ in range(2):
            found = _told(await session.call_tool("search", {"question": "when does the ferry leave"}))
            assert "leaves at seven" in found["passages"][0]["text"]
            running.pop().stop()
            running.append(RunningServer(tmp_path / "home"))

    command, env = _mcp(running[0], "Notes")
    parameters = StdioServerParameters(command=command[0], args=command[1:], env=env, cwd=str(ROOT))
    try:
        with (tmp_path / "stderr.txt").open("w", encoding="utf-8") as errors:  # its default may be closed by now
            asyncio.run(asyncio.wait_for(_session(stdio_client(parameters, errlog=errors), work), 90))
    finally:
        running.pop().stop()


def test_mcp_over_http_needs_the_printed_token(server, sea):
    import httpx2 as httpx
    from mcp.client.streamable_http import streamable_http_client

    command, env = _mcp(server, "Sea", "--http", "0")
    with subprocess.Popen(command, cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True) as process:
        try:
            url = process.stderr.readline().split()[-1]
            token = process.stderr.readline().split()[-1]
            assert httpx.post(url, json={}).status_code == 401
            assert httpx.post(url, json={}, headers={"authorization": "Bearer wrong"}).status_code == 401

            async def work(session):
                return (await session.call_tool("list_collections", {})).structured_content["result"]

            async def over_http():
                async with httpx.AsyncClient(headers={"authorization": f"Bearer {token}"}) as http:
                    return await _session(streamable_http_client(url, http_client=http), work)

            (shown,) = asyncio.run(asyncio.wait_for(over_http(), 60))
            assert shown["name"] == "Sea"
        finally:
            process.terminate()


def test_mcp_names_the_collections_that_there_are(server, sea):
    command, env = _mcp(server)
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "Name the collections that may be read. Collections: Sea" in done.stderr


def test_a_reranker_that_appears_in_the_library_orders_the_passages(client, towns, tmp_path):
    """A dummy-weight model: it tests the runner, not the quality of the ranking."""
    asked = {"query": "Which mayor guards a secret pebble?"}
    assert client.post(f"{towns}/search", json=asked).json()["reranked_by"] == ""
    model = write_bert(tmp_path / "tiny-rank.gguf", rank=True)
    assert client.post("/tessera/v1/models/import", json={"path": str(model)}).is_success
    wait_for(lambda: client.post(f"{towns}/search", json=asked).json()["reranked_by"], 60, "the reranker")
    answer = client.post(f"{towns}/search", json=asked).json()
    assert answer["reranked_by"] == "tiny-rank"
    assert answer["notes"] == [note for note in answer["notes"] if "reranked" not in note]
    scores = [passage["relevance"] for passage in answer["passages"]]
    assert len(scores) > 1
    assert scores == sorted(scores, reverse=True)
    assert client.post(towns, json={"reranker": "none"}).status_code == 200
    assert client.post(f"{towns}/search", json=asked).json()["reranked_by"] == ""


@pytest.mark.parametrize(("name", "reason"), [("no-rank", "could not rerank"), ("gone-rank", "is not available")])
def test_a_reranker_that_cannot_work_is_said_and_the_search_goes_on(client, towns, tmp_path, name, reason):
    model = write_bert(tmp_path / f"{name}.gguf", rank=name == "gone-rank", seed=47)
    assert client.post("/tessera/v1/models/import", json={"path": str(model)}).is_success
    wait_for(lambda: client.get(f"/tessera/v1/models/{name}").status_code == 200, 60, "the model")
    assert client.post(towns, json={"reranker": name}).status_code == 200
    if name == "gone-rank":
        assert client.delete(f"/tessera/v1/models/{name}").is_success

    def notes():
        answer = client.post(f"{towns}/search", json={"query": "Which mayor guards a secret pebble?"}).json()
        assert answer["passages"]
        assert answer["reranked_by"] == ""
        return [note for note in answer["notes"] if name in note and reason in note]

    try:
        wait_for(notes, 60, "the reason")  # the list of models is requested every ten seconds
    finally:
        client.post(towns, json={"reranker": "none"})


def test_mcp_of_an_unknown_collection_fails(server, sea):
    command, env = _mcp(server, "Nowhere")
    done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert done.returncode == 3, done.stderr
    assert "There is no collection 'Nowhere' here." in done.stderr


@pytest.mark.parametrize("name", ["work/2026", "..", "100 % [a]?#", "a/documents"])
def test_a_collection_with_any_name_is_shown_and_removed(in_process, monkeypatch, server, client, tmp_path, name):
    monkeypatch.setenv("TESSERA_HOME", str(server.home))
    (tmp_path / "a.txt").write_text("The cormorant dives.")
    (tmp_path / "link.txt").symlink_to("a.txt")
    source = f"{tmp_path}/x/../"
    (tmp_path / "x").mkdir()
    made = client.post("/tessera/v1/collections", json={"name": name, "sources": [source]})
    assert made.json()["sources"] == [str(tmp_path)]

    def run(*arguments):
        done = in_process("collections", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("refresh", name)
    assert "cormorant" in run("search", name, "cormorant")
    assert "Skipped: 1 hidden, linked or ignored path" in run("show", name)
    assert "link.txt: links are not followed" in run("unread", name)
    run("remove", name, "--source", source)
    run("remove", name)
    assert name not in [each["name"] for each in client.get("/tessera/v1/collections").json()["collections"]]
