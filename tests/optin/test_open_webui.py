"""Open WebUI's unmodified backend in front of a Tessera server with the real model, offline.

    TESSERA_CLIENTS=FOLDER python -m pytest tests/optin/test_open_webui.py -o addopts= -q -s

Not run in CI: it downloads about 400 MB. Its login is off. Its own models for documents and speech are omitted, so
torch is not needed. Results: log-archive.md.
"""

import json
import os
import re
import subprocess
import sys
import time
from importlib.metadata import Distribution
from pathlib import Path

import httpx2
import pytest

from tests.support.fakes.ssh_hosts import free_port
from tests.support.servers import RunningServer, wait_for

pytestmark = pytest.mark.timeout(1800)
MODEL = "smollm2-135m-instruct"
OVER = {"openai": MODEL, "ollama": f"{MODEL}:latest"}
ASK = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
SHORT = {"temperature": 0, "max_tokens": 40}
# Models, databases and readers of documents that no conversation asks for.
LEFT_OUT = {
    "accelerate", "anthropic", "ddgs", "docx2txt", "einops", "fake-useragent", "faster-whisper", "msoffcrypto-tool",
    "opencv-python-headless", "opensearch-py", "pandas", "psycopg", "pyarrow", "pymysql", "pypandoc", "python-pptx",
    "pyxlsb", "rapidocr", "sentence-transformers", "sentencepiece", "soundfile", "transformers", "xlrd",
    "youtube-transcript-api",
}  # fmt: skip


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The installed `open-webui`."""
    folder = Path(os.environ.get("TESSERA_CLIENTS") or tmp_path_factory.mktemp("clients")) / "open-webui"
    bin_folder = folder / ("Scripts" if sys.platform == "win32" else "bin")
    python, done = bin_folder / "python", folder / "installed"
    if not done.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [str(python), "-m", "pip", "install", "-q"]
        subprocess.run([*pip, "--no-deps", "open-webui"], check=True)
        [about] = folder.glob("**/open_webui-*.dist-info")
        wanted = [r for r in Distribution.at(about).requires or () if "extra ==" not in r]
        names = {r: re.match(r"[\w.-]+", r)[0].lower() for r in wanted}
        subprocess.run([*pip, *(r for r in wanted if names[r] not in LEFT_OUT)], check=True)
        done.write_text(Distribution.at(about).version)
    print("Open WebUI", done.read_text())
    return bin_folder / "open-webui"


@pytest.fixture(scope="module")
def tessera(real_model, tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    (home / "models").mkdir()
    (home / "models" / f"{MODEL}.gguf").symlink_to(real_model)
    running = RunningServer(home)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def webui(program, tessera, tmp_path_factory):
    """Its backend, signed in: it knows our server by both of its protocols and nothing outside."""
    folder, port = tmp_path_factory.mktemp("webui"), free_port()
    nowhere = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(folder), "DATA_DIR": str(folder / "data"), "NO_PROXY": "127.0.0.1",
        "WEBUI_AUTH": "False", "WEBUI_SECRET_KEY": "of this test", "OFFLINE_MODE": "true",
        "ENABLE_VERSION_UPDATE_CHECK": "false", "ANONYMIZED_TELEMETRY": "False", "SCARF_NO_ANALYTICS": "true",
        "RAG_EMBEDDING_ENGINE": "openai", "RAG_OPENAI_API_BASE_URL": f"{tessera.url}/v1",
        "RAG_OPENAI_API_KEY": "unused", "RAG_EMBEDDING_MODEL": MODEL,
        "OPENAI_API_BASE_URLS": f"{tessera.url}/v1", "OPENAI_API_KEYS": "unused", "OLLAMA_BASE_URL": tessera.url,
        "CORS_ALLOW_ORIGIN": f"http://127.0.0.1:{port}", **nowhere,
    }  # fmt: skip
    log = folder / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [str(program), "serve", "--host", "127.0.0.1", "--port", str(port)],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=600) as http:

        def ready():
            assert process.poll() is None, log.read_text()[-4000:]
            try:
                return http.get("/health").status_code == 200
            except httpx2.TransportError:
                return False

        try:
            wait_for(ready, 300, "the start of Open WebUI")
            signed = http.post("/api/v1/auths/signin", json={"email": "", "password": ""})
            assert signed.status_code == 200, signed.text
            http.headers["authorization"] = f"Bearer {signed.json()['token']}"
            yield http
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            (folder / "ended").write_text(str(process.returncode))


def told(answer):
    """The text of a whole answer in OpenAI's form."""
    assert answer.status_code == 200, answer.text
    [choice] = answer.json()["choices"]
    return choice["message"]["content"]


def test_the_model_is_listed_by_both_protocols(webui, tessera):
    listed = {row["id"]: row for row in webui.get("/api/models").json()["data"]}
    assert listed[OVER["openai"]]["owned_by"] == "openai"
    assert listed[OVER["ollama"]]["owned_by"] == "ollama"
    version = httpx2.get(f"{tessera.url}/api/version").json()["version"]
    assert webui.get("/ollama/api/version").json()["version"] == version


@pytest.mark.parametrize("protocol", OVER)
def test_a_chat_is_answered_whole_and_streamed(webui, protocol):
    webui.get("/api/models")
    body = {
        "model": OVER[protocol],
        "messages": ASK,
        "stream": False,
        "params": SHORT,
    }
    assert "Paris" in told(webui.post("/api/chat/completions", json=body))
    with webui.stream("POST", "/api/chat/completions", json={**body, "stream": True}) as answer:
        assert answer.status_code == 200
        lines = [line[6:] for line in answer.iter_lines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    chunks = [json.loads(line) for line in lines[:-1]]
    deltas = [c["choices"][0]["delta"].get("content") or "" for c in chunks if c.get("choices")]
    assert len([d for d in deltas if d]) > 3  # it came in pieces
    assert "Paris" in "".join(deltas)


@pytest.mark.parametrize("protocol", OVER)
@pytest.mark.parametrize("task", ["title", "tags"])
def test_its_tasks_after_a_turn(webui, protocol, task):
    webui.get("/api/models")
    talk = [*ASK, {"role": "assistant", "content": "The capital of France is Paris."}]
    body = {"model": OVER[protocol], "messages": talk, "chat_id": "local:test"}
    text = told(webui.post(f"/api/v1/tasks/{task}/completions", json=body))
    print(task, protocol, repr(text[:120]))
    assert text.strip()


def test_a_kept_conversation_is_answered_in_the_background(webui):
    """As its page does it, with all of its tools in the prompt; answer and title are written into it."""
    webui.get("/api/models")
    user = {"id": "u1", "parentId": None, "childrenIds": ["a1"], "role": "user", "content": ASK[0]["content"]}
    blank = {"id": "a1", "parentId": "u1", "childrenIds": [], "role": "assistant", "content": "", "model": MODEL}
    history = {"messages": {"u1": {**user, "timestamp": 1}, "a1": {**blank, "timestamp": 1}}, "currentId": "a1"}
    made = webui.post(
        "/api/v1/chats/new", json={"chat": {"title": "New Chat", "models": [MODEL], "history": history}}
    )
    assert made.status_code == 200, made.text
    chat = made.json()["id"]
    asked = webui.post(
        "/api/chat/completions",
        json={
            "model": MODEL, "messages": ASK, "stream": True, "params": SHORT,
            "chat_id": chat, "id": "a1", "session_id": "s", "parent_id": "u1", "user_message": user,
            "background_tasks": {"title_generation": True, "tags_generation": True},
        },
    )  # fmt: skip
    assert asked.status_code == 200, asked.text

    def kept():
        time.sleep(1.0)
        return webui.get(f"/api/v1/chats/{chat}").json()

    wait_for(lambda: "Paris" in kept()["chat"]["history"]["messages"]["a1"]["content"], 900, "the answer")
    wait_for(lambda: kept()["title"] and not webui.get(f"/api/tasks/chat/{chat}").json()["task_ids"], 600, "tasks")
    assert kept()["title"]
    print("title", repr(kept()["title"]))


def test_texts_are_embedded(webui):
    webui.get("/api/models")
    answer = webui.post("/api/embeddings", json={"model": OVER["openai"], "input": ["Hello", "you"]})
    assert answer.status_code == 200, answer.text
    assert [len(row["embedding"]) for row in answer.json()["data"]] == [576, 576]
