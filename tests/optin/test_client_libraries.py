"""Libraries in front of a local server, installed from their registry, with scripted answers.

    python -m pytest tests/optin/test_client_libraries.py -o addopts= -q

Not run in CI: they download several hundred MB. TESSERA_CLIENTS names a folder that stores the installation.
"""

import os
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from tests.support.fakes.scripted import TOKEN, ScriptedServer

pytestmark = pytest.mark.timeout(900)
ROOT = Path(__file__).resolve().parents[2]
HERMES = ROOT / "tests" / "data" / "templates" / "Qwen-Qwen3-0.6B.jinja"
PACKAGES = ("litellm", "langchain-openai", "llama-index-llms-openai-like", "schemathesis")
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'

LITELLM = """
import litellm, sys
base = sys.argv[1]
ask = [{"role": "user", "content": "Hi"}]
for model, url in (("openai/spark", base + "/v1"), ("ollama_chat/spark", base), ("anthropic/spark", base)):
    whole = litellm.completion(model=model, api_base=url, api_key="unused", messages=ask, max_tokens=20)
    print(">" + str(whole.choices[0].message.content))
"""
LANGCHAIN = """
import sys
from langchain_openai import ChatOpenAI
from langchain_core.tools import tool

@tool
def get_weather(city: str) -> str:
    "Weather of a city"
    return "sunny"

model = ChatOpenAI(model="spark", base_url=sys.argv[1] + "/v1", api_key="unused")
print(">" + str(model.invoke("Hi").content))
print(">" + str(model.bind_tools([get_weather]).invoke("Weather?").tool_calls[0]["args"]))
print(">" + str("".join(part.content for part in model.stream("Hi"))))
"""
LLAMA_INDEX = """
import sys
from llama_index.llms.openai_like import OpenAILike
model = OpenAILike(model="spark", api_base=sys.argv[1] + "/v1", api_key="unused", is_chat_model=True)
print(">" + str(model.complete("Hi").text))
print(">" + str("".join(part.delta for part in model.stream_complete("Hi"))))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    folder = Path(os.environ.get("TESSERA_CLIENTS") or tmp_path_factory.mktemp("clients")) / "libraries"
    program = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    if not program.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(program), "-m", "pip", "install", "-q", *PACKAGES], check=True)
    return program


@pytest.fixture
def server(tmp_path):
    running = ScriptedServer(tmp_path / "home", template=HERMES.read_text("utf-8"))
    yield running
    running.stop()


def run(python, program, server):
    done = subprocess.run(
        [str(python), "-c", program, server.url], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [line[1:] for line in done.stdout.splitlines() if line.startswith(">")]


def test_litellm_over_three_protocols(python, server):
    for word in ("one", "two", "three"):
        server.say(word)
    assert run(python, LITELLM, server) == ["one", "two", "three"]


def test_langchain(python, server):
    server.say("Hello")
    server.say(CALL)
    server.say("Bye", " now")
    assert run(python, LANGCHAIN, server) == ["Hello", "{'city': 'Paris'}", "Bye now"]


def test_llama_index(python, server):
    server.say("Hello")
    server.say("Bye", " now")
    assert run(python, LLAMA_INDEX, server) == ["Hello", "Bye now"]


# What would reach for a network, try devices, write the disk for long, or stream without an end.
NOT_FUZZED = "hub|/events|/stats|quantize|pull|/import|/link|/verify|/devices|/placement"
CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance",
    "response_schema_conformance", "ignored_auth", "unsupported_method", "allow_header_conformance",
)  # fmt: skip


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", ["707", "808", "909"])
def test_schemathesis_finds_nothing(python, server, tmp_path, seed):
    """No 5xx, no answer that differs from the page, no management call without a key."""
    server.state.access.failures.note = lambda address: None  # it guesses keys without an end
    httpx2.get(f"{server.url}/openapi.json", timeout=120)  # made once; it waits for it 10 s only
    done = subprocess.run(
        [
            *(str(python), "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json", "--url", server.url),
            *("--checks", ",".join(CHECKS), "--exclude-path-regex", NOT_FUZZED, "--phases", "examples,fuzzing"),
            *("--max-examples", "15", "--request-timeout", "30", "--header", f"Authorization: Bearer {TOKEN}"),
            *("--continue-on-failure", "--seed", seed),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=1700,
        check=False,
    )
    print(done.stdout[-3000:])
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
