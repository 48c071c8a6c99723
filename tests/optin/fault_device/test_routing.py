"""A GPU that computes wrongly behind the real server: found before the first answer, avoided, and reported.

Opt-in: `python -m pytest tests/optin/fault_device/test_routing.py`. Needs g++; the plugin is installed as
the pack of a Vulkan backend, so detection, dispatch, loads and fallbacks are those of a real GPU.
"""

import hashlib
import json
import sys
from pathlib import Path

import httpx2
import msgspec
import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from devices.backends.libraries import library_folder
from devices.kernel_packs.abi import headers_hash, installed_abi
from devices.kernel_packs.manifest import Manifest, PackFile, this_platform
from devices.kernel_packs.store import PackStore
from tests.optin.fault_device.plugin import build
from tests.support.servers import RunningServer, wait_for

QUESTION = {"model": "spark", "messages": [{"role": "user", "content": "What is a token?"}], "temperature": 0}


@pytest.fixture(scope="module")
def pack(tmp_path_factory) -> Path:
    work = ROOT / "build" / "fault_device"
    data = build(work).read_bytes()
    folder = tmp_path_factory.mktemp("pack")
    (folder / "libggml-vulkan.so").write_bytes(data)
    abi = installed_abi(library_folder())
    file = PackFile(name="libggml-vulkan.so", num_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    found = Manifest(
        format=1, name="fault-device", version=abi.ggml_version, backend="vulkan", platform=this_platform(),
        ggml_version=abi.ggml_version, headers=headers_hash(library_folder().parent / "include"), files=(file,),
    )  # fmt: skip
    (folder / "manifest.json").write_bytes(msgspec.json.encode(found))
    return folder


@pytest.fixture
def home(tmp_path, pack) -> Path:
    store = PackStore(tmp_path / "kernels")
    store.use(store.add(pack))
    return tmp_path


def ask(home: Path, fault: str) -> tuple[dict, dict, dict]:
    """The answer, the loaded model's placement, and the stored results."""
    server = RunningServer(home, env={"GGML_FAULT_DEVICE": fault})
    try:
        answer = httpx2.post(f"{server.url}/v1/chat/completions", json=QUESTION, timeout=120)
        assert answer.status_code == 200, answer.text + server.log
        headers = {"Authorization": f"Bearer {server.token}"}
        asked = httpx2.get(f"{server.url}/tessera/v1/models/spark/placement", headers=headers, timeout=30)
        placed = asked.json()["placement"]
    finally:
        server.stop()
    path = home / "state" / "device_checks.json"
    return answer.json(), placed, json.loads(path.read_text())["data"] if path.exists() else {}


@pytest.fixture(scope="module")
def right_answer(tmp_path_factory) -> str:
    return ask(tmp_path_factory.mktemp("cpu"), "")[0]["choices"][0]["message"]["content"]


def test_a_sound_device_is_used_and_compared_once(home, right_answer):
    answer, placed, verdicts = ask(home, "")
    assert answer["choices"][0]["message"]["content"] == right_answer
    assert placed["device"] == "vulkan:fault0"
    (verdict,) = verdicts.values()
    assert not verdict["wrong"]
    assert verdict["check"]["kld_mean"] < 0.001
    again = ask(home, "")[2]
    assert [v["checked_at"] for v in again.values()] == [verdict["checked_at"]]


@pytest.mark.parametrize(
    ("fault", "device", "flash", "operation"),
    [
        ("mode=lane;amount=3;op=FLASH_ATTN_EXT", "vulkan:fault0", "off", "flash attention"),
        (
            "mode=scale;amount=1.1;op=MUL_MAT;rows=one",
            "cpu",
            None,
            "matrix multiplication (f16, one token)",
        ),
        ("mode=nan;op=RMS_NORM;after=40", "cpu", None, "normalization (f32, one token)"),
        ("mode=rotate;op=GLU;rows=many", "cpu", None, "gated activation (f32, several tokens)"),
    ],
)
def test_a_wrong_device_is_routed_away_and_told(home, right_answer, fault, device, flash, operation):
    answer, placed, verdicts = ask(home, fault)
    assert answer["choices"][0]["message"]["content"] == right_answer
    assert placed["device"] == device
    if flash:
        assert placed["settings"]["flash_attn"] == flash
    assert any(v["wrong"] for v in verdicts.values())
    assert any("wrong results with Fault0" in reason for reason in placed["reasons"])
    assert any(f"({operation}" in reason for reason in placed["reasons"])
    notes = " ".join(answer["tessera"]["notes"])
    assert f"{operation} on Fault0 is wrong with this driver" in notes
    known = ask(home, fault)[0]  # the next start knows: no failing attempt is repeated
    assert known["choices"][0]["message"]["content"] == right_answer
    assert "notes" not in known.get("tessera", {})


@pytest.mark.parametrize("fault", ["mode=fail;op=MUL_MAT;after=20", "mode=abort;op=ROPE;after=5", "limit=20000000"])
def test_a_device_that_fails_leaves_the_answer_to_the_processor(home, right_answer, fault):
    answer, _, _ = ask(home, fault)
    assert answer["choices"][0]["message"]["content"] == right_answer


def test_a_device_that_becomes_wrong_while_it_serves_is_found_in_its_answers(home, right_answer):
    """The load's checks pass; from the 25,000th product on, all are wrong: detected, quarantined, reported."""
    (home / "state").mkdir()
    (home / "state" / "canary.json").write_text(json.dumps({"version": 1, "data": {"computing_s": 1e5}}))
    env = {"GGML_FAULT_DEVICE": "mode=rotate;op=MUL_MAT;after=25000", "TESSERA_FAULT_RULES": str(home / "rules")}
    server = RunningServer(home, env=env)
    headers = {"Authorization": f"Bearer {server.token}"}
    long = {**QUESTION, "max_tokens": 256, "ignore_eos": True}

    def asked(**changes):
        answer = httpx2.post(f"{server.url}/v1/chat/completions", json={**QUESTION, **changes}, timeout=120)
        assert answer.status_code == 200, answer.text + server.log[-3000:]
        return answer.json()

    def get(path):
        return httpx2.get(f"{server.url}/tessera/v1/{path}", headers=headers, timeout=30).json()

    try:
        assert asked()["choices"][0]["message"]["content"] == right_answer
        assert get("models/spark/placement")["placement"]["device"] == "vulkan:fault0"
        tokens = 0
        while not get("canary")["found"]:
            assert tokens < 20 * 256, get("canary")
            tokens += asked(**long)["usage"]["completion_tokens"]
            compared = get("canary")["answers"]
            wait_for(lambda before=compared: get("canary")["answers"] > before or not get("canary")["waiting"])
        print(f"found after {tokens} tokens: {get('canary')['found']}")
        placed = get("models/spark/placement")["placement"]
        assert placed["device"] == "cpu"
        assert any("computed wrongly on this computer" in reason for reason in placed["reasons"])
        answer = asked()
        assert answer["choices"][0]["message"]["content"] == right_answer
        assert "may be wrong" in " ".join(answer["tessera"]["notes"])
        (rule,) = json.loads((home / "rules" / "found_here.json").read_text())
        assert rule["when"]["architectures"] == "llama"
    finally:
        server.stop()
