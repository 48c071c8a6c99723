"""Files that cannot be loaded: llama.cpp's own reason, in the response and in the log, after one attempt."""

import io
import shutil
import wave

import httpx2
import pytest

from engine.server.speech import FILES
from tests.support.models.broken_models import BROKEN, write_broken
from tests.support.servers import RunningServer

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def running(tmp_path_factory, bundled_model):
    home = tmp_path_factory.mktemp("broken")
    (home / "models").mkdir()
    shutil.copy(bundled_model, home / "models" / "leaving.gguf")
    for kind in BROKEN:
        write_broken(bundled_model, home / "models" / f"{kind}.gguf", kind)
    speech = home / "speech"
    speech.mkdir()
    for name in FILES:
        (speech / name).write_bytes(b"no model")
    server = RunningServer(home, env={"TESSERA_SPEECH": str(speech)})
    yield server
    server.stop()


@pytest.mark.parametrize("kind", BROKEN)
def test_the_reason_is_told_after_one_try(running, kind):
    before = len(running.log)
    body = {"model": kind, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    got = httpx2.post(f"{running.url}/v1/chat/completions", json=body)
    error = got.json()["error"]
    assert (got.status_code, error["code"], got.headers["x-should-retry"]) == (422, "bad_model_file", "false")
    assert BROKEN[kind] in error["message"]
    assert f"{kind}.gguf cannot be loaded" in error["message"]
    log = [line for line in running.log[before:].splitlines() if f"model={kind} " in line]
    assert sum("admitted" in line for line in log) == 1, "a file that is wrong is tried once"
    (told,) = [line for line in log if "cannot be loaded" in line]
    assert BROKEN[kind] in told


@pytest.mark.parametrize(
    "path", ["/v1/responses", "/v1/messages", "/api/chat", "/v1/completions", "/v1/embeddings"]
)
def test_every_protocol_tells_it(running, path):
    body = {"model": "architecture", "max_tokens": 1, "input": "Hi", "prompt": "Hi"}
    if path in {"/v1/messages", "/api/chat"}:
        body = {"model": "architecture", "max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}]}
    if path == "/v1/responses":
        body = {"model": "architecture", "input": "Hi", "stream": True}
    got = httpx2.post(running.url + path, json=body)
    assert "unknown model architecture: 'llamaX'" in got.text
    assert got.status_code == (200 if path == "/v1/responses" else 422)


def test_a_speech_model_that_is_damaged_says_why(running):
    sound = io.BytesIO()
    with wave.open(sound, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(bytes(32_000))
    files = {"file": ("silence.wav", sound.getvalue(), "audio/wav")}
    got = httpx2.post(f"{running.url}/v1/audio/transcriptions", files=files, data={"model": "whisper-1"})
    assert got.status_code == 422, got.text
    assert got.json()["error"]["code"] == "bad_model_file"
    assert "silero_vad.onnx" in got.json()["error"]["message"]


def test_the_servers_own_models_still_answer(running):
    body = {"model": "spark", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    assert httpx2.post(f"{running.url}/v1/chat/completions", json=body).status_code == 200


@pytest.mark.parametrize("way", ["ollama", "tessera"])
def test_a_loaded_model_whose_file_is_gone_answers_is_listed_and_can_be_unloaded(running, bundled_model, way):
    file = running.home / "models" / "leaving.gguf"
    ask = {"model": "leaving", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    assert httpx2.post(f"{running.url}/v1/chat/completions", json=ask, timeout=60).status_code == 200
    file.unlink()
    try:
        assert httpx2.post(f"{running.url}/v1/chat/completions", json=ask, timeout=60).status_code == 200
        assert "leaving:latest" in [m["name"] for m in httpx2.get(f"{running.url}/api/ps").json()["models"]]
        assert httpx2.get(f"{running.url}/props?model=leaving").status_code == 200
        if way == "ollama":
            body = {"model": "leaving", "keep_alive": "0s"}
            assert httpx2.post(f"{running.url}/api/generate", json=body).json()["done_reason"] == "unload"
        else:
            token = {"authorization": f"Bearer {running.token}"}
            done = httpx2.post(f"{running.url}/tessera/v1/models/leaving/unload", headers=token)
            assert done.json()["unloaded"]
        assert "leaving:latest" not in [m["name"] for m in httpx2.get(f"{running.url}/api/ps").json()["models"]]
    finally:
        shutil.copy(bundled_model, file)
