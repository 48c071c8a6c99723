"""Missing execution providers, wrong releases, crashes and hangs are reported, and no other process ends."""

import json
import shutil
import subprocess

import pytest

from engine.message_catalog import sentence
from engine.onnx.discovery import discover, probe
from engine.onnx.providers import ADAPTERS, adapter_of
from quantize.onnx.folder import convert_gguf
from tests.support.late import openai
from tests.support.servers import RunningServer

RYZEN = ADAPTERS["RyzenAIExecutionProvider"]
# Possible behaviour of a vendor's library while it is loaded.
LIBRARIES = {
    "loads": "int answer(void) { return 0; }",
    "crashes": "#include <stdlib.h>\n__attribute__((constructor)) static void now(void) { abort(); }",
    "hangs": "#include <unistd.h>\n__attribute__((constructor)) static void now(void) { for (;;) pause(); }",
    "unresolved": "int xrt_device(void);\n__attribute__((constructor)) static void f(void) { xrt_device(); }",
}


@pytest.fixture(scope="session")
def stubs(tmp_path_factory):
    """Stub libraries by behaviour, built with the compiler that building llama.cpp needs as well."""
    folder = tmp_path_factory.mktemp("ryzen_ai_1.8.0") / "lib"
    folder.mkdir()
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    assert compiler, "a C compiler builds the stubs"
    made = {}
    for name, code in LIBRARIES.items():
        made[name] = folder / f"libonnxruntime_providers_ryzenai_{name}.so"
        command = [compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", str(made[name])]
        subprocess.run(command, input=code.encode(), check=True, capture_output=True)
    return made


def test_a_missing_runtime_says_what_to_install():
    report = probe(RYZEN, {})
    assert report.state == "not here"
    assert "Install AMD's Ryzen AI Software" in report.detail
    report = probe(RYZEN, {"RYZENAI_EP_PATH": "/opt/nowhere/lib.so"})
    assert (report.state, "/opt/nowhere/lib.so is missing" in report.detail) == ("not here", True)


def test_a_library_that_loads(stubs):
    report = probe(RYZEN, {"RYZENAI_EP_PATH": str(stubs["loads"])})
    assert report.state == "usable"
    assert report.detail == "release 1.8; not tried on hardware by this project"


@pytest.mark.parametrize(("name", "why"), [("crashes", "SIGABRT"), ("unresolved", "xrt_device")])
def test_a_library_that_does_not(stubs, name, why):
    report = probe(RYZEN, {"RYZENAI_EP_PATH": str(stubs[name])})
    assert report.state == "failed"
    assert why in report.detail
    assert "Ryzen AI Software" in report.detail


def test_a_library_that_hangs_is_given_up(stubs):
    report = probe(RYZEN, {"RYZENAI_EP_PATH": str(stubs["hangs"])}, timeout_s=3)
    assert (report.state, "no answer within 3 s" in report.detail) == ("failed", True)


@pytest.mark.parametrize("release", ["1.7.0", "1.9"])
def test_a_model_of_another_release(stubs, release):
    problem = sentence(RYZEN.problem(release, {"RYZENAI_EP_PATH": str(stubs["loads"])}))
    assert f"compiled for Ryzen AI {release[:3]}" in problem
    assert "1.8 is installed" in problem
    assert not RYZEN.problem("1.8.1", {"RYZENAI_EP_PATH": str(stubs["loads"])})


def test_discovery_names_every_provider_of_the_system():
    found = {r.provider: r for r in discover({}, system="linux")}
    assert found["CPUExecutionProvider"].state == "usable"
    assert {"RyzenAIExecutionProvider", "QNNExecutionProvider", "OpenVINOExecutionProvider"} <= found.keys()
    assert "CoreMLExecutionProvider" not in found
    assert adapter_of("ryzenai") is RYZEN


@pytest.mark.e2e
def test_the_server_survives_a_runtime_that_crashes(stubs, tmp_path, bundled_model):
    """A folder in AMD's format, on a computer whose Ryzen AI library crashes the process that loads it."""
    home = tmp_path / "home"
    folder = home / "models" / "local" / "spark_rai_1.8.0_npu_4K"
    folder.parent.mkdir(parents=True)
    convert_gguf(bundled_model, folder)
    config = json.loads((folder / "genai_config.json").read_text())
    config["model"]["decoder"]["session_options"]["provider_options"] = [{"RyzenAI": {}}]
    (folder / "genai_config.json").write_text(json.dumps(config))
    messages = [{"role": "user", "content": "hi"}]
    words = {"crashes": "SIGABRT|internal check|ended|could not load", None: "Install AMD's Ryzen AI Software"}
    for name, said in words.items():
        where = {"RYZENAI_EP_PATH": str(stubs[name])} if name else {"RYZENAI_EP_PATH": ""}
        server = RunningServer(home, env=where)
        try:
            with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:
                listed = {m.id for m in client.models.list()}
                rai = next(name for name in listed if "rai" in name)
                with pytest.raises(openai.APIStatusError, match=said):
                    client.chat.completions.create(model=rai, messages=messages)
                answer = client.chat.completions.create(model="spark", messages=messages, max_tokens=4)
                assert answer.choices[0].message.content
        finally:
            server.stop()
            (home / "state" / "server.json").unlink(missing_ok=True)
