"""Receipts over HTTP and `tessera replay`: the same text bit for bit, and every kind of change reported."""

import json
import os
import struct
import subprocess
import sys

import httpx2
import pytest

from quantize.files.gguf_file import read_gguf
from tests.support.servers import ROOT, RunningServer

pytestmark = pytest.mark.e2e
QUESTION = [{"role": "user", "content": "Tell me about the river and the old house."}]


def copies(bundled_model, models):
    """Copies of the bundled model with only another template, and with only other weights."""
    data = bundled_model.read_bytes()
    template = b"'<|im_start|>' + message.role"
    assert data.count(template) == 1
    (models / "retold.gguf").write_bytes(data.replace(template, b"'<|im_start|>' + 'assistant' "))
    damaged = bytearray(data)
    tensor = next(t for t in read_gguf(bundled_model).tensors if t.name == "output_norm.weight")
    span = slice(tensor.offset, tensor.offset + tensor.nbytes)
    damaged[span] = struct.pack(
        f"<{tensor.nbytes // 4}f", *struct.unpack(f"<{tensor.nbytes // 4}f", data[span])[::-1]
    )
    (models / "other.gguf").write_bytes(bytes(damaged))


@pytest.fixture(scope="module")
def served(tmp_path_factory, bundled_model):
    home = tmp_path_factory.mktemp("receipts")
    (home / "models").mkdir()
    copies(bundled_model, home / "models")
    running = RunningServer(home)
    yield running
    running.stop()


def asked(server, **options):
    body = {"model": "spark", "messages": QUESTION, "max_tokens": 12, "deterministic": True, **options}
    return httpx2.post(f"{server.url}/v1/chat/completions", json=body, timeout=120)


@pytest.fixture(scope="module")
def answer(served):
    found = asked(served, receipt=True)
    assert found.status_code == 200, found.text
    return found.json()


def replayed(server, receipt, **options):
    headers = {"authorization": f"Bearer {server.token}"}
    body = {"receipt": receipt, **options}
    found = httpx2.post(f"{server.url}/tessera/v1/replay", json=body, headers=headers, timeout=240)
    assert found.status_code == 200, found.text
    return found.json()


def exchanged(found):
    return {entry["part"]: entry.get("same") for entry in found["exchanged"]}


def test_the_answer_says_what_is_promised_and_a_receipt_comes_only_when_asked_for(served, answer):
    told = asked(served).json()["tessera"]
    assert told["deterministic"]["promised"] is True
    assert "receipt" not in told
    assert answer["tessera"]["receipt"]["answer"]["num_chars"] >= len(answer["choices"][0]["message"]["content"])


@pytest.mark.parametrize(
    ("options", "word"), [({"deterministic": False}, "deterministic: true"), ({"n": 2}, "one answer")]
)
def test_a_receipt_that_is_not_possible_is_refused(served, options, word):
    found = asked(served, receipt=True, **options)
    assert found.status_code == 400
    assert found.json()["error"]["param"] == "receipt"
    assert word in found.json()["error"]["message"]


def test_sampled_answers_are_the_same_without_a_seed(served):
    first, second = (asked(served, temperature=1.2).json()["choices"][0]["message"] for _ in range(2))
    assert first == second


def test_the_command_gives_the_same_text_after_the_server_was_started_again(served, answer, tmp_path):
    file = tmp_path / "receipt.json"
    file.write_text(json.dumps(answer["tessera"]["receipt"]))
    served.stop()
    served.__init__(served.home)
    done = subprocess.run(
        [sys.executable, "-m", "app", "replay", str(file)],
        cwd=ROOT, env={**os.environ, "TESSERA_HOME": str(served.home)},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == answer["choices"][0]["message"]["content"] + "\n"
    assert "The same answer." in done.stderr


def test_streams_carry_receipts_and_constrained_answers_can_be_replayed(served):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    body = {"model": "spark", "messages": QUESTION, "max_tokens": 20, "stream": True, "receipt": True}
    body |= {"deterministic": True, "response_format": {"type": "json_object", "schema": schema}}
    receipt = None
    with httpx2.stream("POST", f"{served.url}/v1/chat/completions", json=body, timeout=120) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: {"):
                receipt = (json.loads(line[6:]).get("tessera") or {}).get("receipt") or receipt
    assert replayed(served, receipt)["same"]


def test_another_template_is_named_and_shown_to_be_the_cause(served, answer):
    found = replayed(served, answer["tessera"]["receipt"], explain=True, model="retold", old_model="spark")
    assert not found["same"]
    assert exchanged(found)["template"] is True
    assert exchanged(found)["file"] is False


def test_another_file_is_named_and_shown_to_be_the_cause(served, answer):
    found = replayed(served, answer["tessera"]["receipt"], explain=True, model="other", old_model="spark")
    assert not found["same"]
    assert exchanged(found) == {"file": True}


def test_another_plan_is_named_and_shown_to_be_the_cause(served, answer):
    receipt = answer["tessera"]["receipt"]
    served.stop()
    served.__init__(served.home, "--kv", "bf16")
    try:
        found = replayed(served, receipt, explain=True)
        assert not found["same"]
        assert exchanged(found)["plan"] is True
    finally:
        served.stop()
        served.__init__(served.home)


def test_other_recommended_sampling_is_named_and_shown_to_be_the_cause(served, answer):
    headers = {"authorization": f"Bearer {served.token}"}
    kept = {"values": {"temperature": 0.0, "repeat_penalty": 1.9}}
    url = f"{served.url}/tessera/v1/models/spark/sampling"
    assert httpx2.put(url, json=kept, headers=headers).status_code == 200
    try:
        found = replayed(served, answer["tessera"]["receipt"], explain=True)
        assert not found["same"]
        assert exchanged(found) == {"request": True}
    finally:
        httpx2.put(url, json={"values": {}}, headers=headers)


@pytest.mark.parametrize("part", ["engine", "kernels", "driver", "device", "adapters"])
def test_what_cannot_be_put_back_is_named_and_the_answer_is_compared(served, answer, part):
    receipt = json.loads(json.dumps(answer["tessera"]["receipt"]))
    receipt["parts"][part] = "another"
    found = replayed(served, receipt, explain=True)
    assert found["same"]
    assert found["changed"] == [part]
    assert "the same anyway" in found["exchanged"][0]["reason"]


@pytest.mark.parametrize(
    ("path", "value", "param"),
    [
        (("asked", "temperature"), 9e9, "receipt.temperature"),
        (("asked", "prompt"), [1 << 40], "receipt.prompt[0]"),
        (("format", "constraint"), {"kind": "lark", "source": "start: start start"}, "receipt.format.constraint"),
        (("format", "path"), "/etc/passwd", "receipt.format"),
        (("version",), 99, "receipt.version"),
    ],
)
def test_a_receipt_from_anywhere_is_checked_like_a_request(served, answer, path, value, param):
    receipt = json.loads(json.dumps(answer["tessera"]["receipt"]))
    place = receipt
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    headers = {"authorization": f"Bearer {served.token}"}
    found = httpx2.post(f"{served.url}/tessera/v1/replay", json={"receipt": receipt}, headers=headers, timeout=120)
    assert found.status_code == 400, found.text
    assert found.json()["error"]["param"] == param
