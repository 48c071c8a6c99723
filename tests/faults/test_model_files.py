"""Broken files offered as models: a 4xx that names the file, and nothing dies."""

import random
import shutil

import httpx2
import pytest

from tests.support.servers import RunningServer

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def served(tmp_path_factory, bundled_model):
    home = tmp_path_factory.mktemp("broken")
    models = home / "models"
    models.mkdir()
    data = bundled_model.read_bytes()
    (models / "cut-in-header.gguf").write_bytes(data[:3000])
    (models / "cut-in-data.gguf").write_bytes(data[: len(data) // 2])
    (models / "noise.gguf").write_bytes(random.Random(1).randbytes(100_000))
    (models / "noise-with-magic.gguf").write_bytes(b"GGUF\x03\x00\x00\x00" + random.Random(2).randbytes(100_000))
    (models / "empty.gguf").write_bytes(b"")
    for name in ("vanishing", "shrinking-model"):
        shutil.copy(bundled_model, models / f"{name}.gguf")
    with_nan(bundled_model, models / "nan-model.gguf")
    running = RunningServer(home)
    yield running
    running.stop()


def ask(server, model):
    body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    return httpx2.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)


@pytest.mark.parametrize("name", ["cut-in-header", "cut-in-data", "noise", "noise-with-magic", "empty"])
def test_a_broken_file_is_named_with_the_reason(served, name):
    answer = ask(served, f"{name}.gguf")
    assert answer.status_code in (404, 422)
    error = answer.json()["error"]
    assert f"{name}" in error["message"]
    assert answer.headers["x-should-retry"] == "false"
    assert ask(served, "spark").status_code == 200


def test_a_file_damaged_after_it_was_listed_is_refused(served):
    path = served.home / "models" / "vanishing.gguf"
    listed = {m["id"] for m in httpx2.get(f"{served.url}/v1/models").json()["data"]}
    assert any("vanishing" in m for m in listed)
    path.write_bytes(path.read_bytes()[:5000])
    answer = ask(served, "vanishing.gguf")
    assert answer.status_code == 422
    assert "vanishing" in answer.json()["error"]["message"]
    assert ask(served, "spark").status_code == 200


def with_nan(source, target):
    """A copy of a model with NaN in its last norm."""
    from quantize.files.gguf_file import read_gguf

    tensor = next(t for t in read_gguf(source).tensors if t.name == "output_norm.weight")
    data = bytearray(source.read_bytes())
    data[tensor.offset : tensor.offset + 4] = b"\x00\x00\xc0\x7f"
    target.write_bytes(data)


def test_output_that_is_no_number_is_an_error_not_endless_text(served):
    answer = ask(served, "nan-model.gguf")
    assert answer.status_code >= 400
    assert "not a number" in answer.json()["error"]["message"]
    assert ask(served, "spark").status_code == 200


def test_a_file_that_shrinks_under_a_loaded_model_ends_only_its_runner(served):
    assert ask(served, "shrinking-model.gguf").status_code == 200
    with (served.home / "models" / "shrinking-model.gguf").open("r+b") as file:
        file.truncate(4096)
    answer = ask(served, "shrinking-model.gguf")
    # Either every page was already permanently in memory, or the runner died of a bus error and reported it.
    if answer.status_code != 200:
        assert answer.json()["error"]["code"] in ("runner_died", "bad_model_file", "not_finite")
    assert ask(served, "spark").status_code == 200
