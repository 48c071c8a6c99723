"""The publishers' own clients, installed from their registries, make every call that the server supports.

    python -m pytest tests/optin/test_client_sdks.py -o addopts= -q

Not run in CI: they are downloaded. TESSERA_CLIENTS names a folder that stores the installation. The answers are
scripted, so that conversations with tools are the same each time; one test runs the bundled model.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fakes.scripted import TOKEN, ScriptedServer
from tests.support.servers import RunningServer

pytestmark = pytest.mark.timeout(900)
ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).parent / "clients"
HERMES = ROOT / "tests" / "data" / "templates" / "Qwen-Qwen3-0.6B.jinja"
HELLO = ("Hello", " there")
CALL = ("<tool_call>\n", '{"name": "get_weather", ', '"arguments": {"city": "Paris"}}', "\n</tool_call>")
SUNNY = ("It is sunny.",)
PLACE = ('{"city": "Rome", ', '"days": 3}')
THOUGHT = ("<think>\nHm.\n</think>\n\n", *HELLO)

ANSWERS = {
    ("openai", "sync"): [
        HELLO, HELLO, CALL, SUNNY, CALL, PLACE, PLACE, HELLO, HELLO, HELLO, ("More.",), CALL, PLACE,
    ],
    ("openai", "async"): [HELLO, HELLO, CALL, PLACE, HELLO, HELLO, HELLO],
    ("anthropic", "sync"): [HELLO, HELLO, HELLO, THOUGHT, CALL, SUNNY, CALL, PLACE],
    ("anthropic", "async"): [HELLO, HELLO, CALL],
    ("ollama", "sync"): [HELLO, HELLO, THOUGHT, CALL, SUNNY, CALL, PLACE, HELLO, HELLO, HELLO],
    ("ollama", "async"): [HELLO, HELLO, HELLO, CALL],
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return Path(os.environ.get("TESSERA_CLIENTS") or tmp_path_factory.mktemp("clients"))


@pytest.fixture(scope="module")
def python(folder):
    program = folder / "sdk" / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    if not program.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder / "sdk")], check=True)
        packages = ("openai", "anthropic", "ollama", "pydantic")
        subprocess.run([str(program), "-m", "pip", "install", "-q", *packages], check=True)
    return program


@pytest.fixture
def server(tmp_path):
    running = ScriptedServer(tmp_path / "home", template=HERMES.read_text("utf-8"))
    yield running
    running.stop()


def passes(*command, cwd=None):
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert done.stdout.startswith("every call passed")


@pytest.mark.parametrize(("client", "part"), ANSWERS, ids=lambda name: name)
def test_python_client(python, server, client, part):
    for answer in ANSWERS[client, part]:
        server.say(*answer)
    passes(python, PROGRAMS / f"{client}_calls.py", server.url, part, TOKEN)
    assert len(server.asked()) >= len(ANSWERS[client, part])


def test_npm_clients(folder, server):
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    home = folder / "npm"
    home.mkdir(exist_ok=True)
    wanted = ("openai", "@anthropic-ai/sdk")
    if not all((home / "node_modules" / name).exists() for name in wanted):
        subprocess.run(["npm", "install", "--no-audit", "--no-fund", *wanted], cwd=home, check=True, timeout=600)
    shutil.copy(PROGRAMS / "calls.mjs", home)
    for answer in (HELLO, HELLO, CALL, HELLO, HELLO, HELLO, HELLO, CALL):
        server.say(*answer)
    passes("node", "calls.mjs", server.url, cwd=home)


REAL = """
import sys, openai, anthropic, ollama
from pydantic import BaseModel

class Place(BaseModel):
    city: str
    days: int

url, model = sys.argv[1], "spark"
ask = [{"role": "user", "content": "Name a city."}]
client = openai.OpenAI(base_url=url + "/v1", api_key="unused", max_retries=0)
model = client.models.list().data[0].id
parsed = client.chat.completions.parse(model=model, messages=ask, response_format=Place, max_tokens=200)
assert isinstance(parsed.choices[0].message.parsed, Place)
stream = client.chat.completions.create(model=model, messages=ask, max_tokens=30, stream=True)
assert "".join(c.choices[0].delta.content or "" for c in stream if c.choices)
tool = {"type": "function", "function": {"name": "look", "parameters": Place.model_json_schema()}}
called = client.chat.completions.create(
    model=model, messages=ask, tools=[tool], tool_choice="required", max_tokens=200)
Place.model_validate_json(called.choices[0].message.tool_calls[0].function.arguments)
assert client.responses.parse(model=model, input="A city?", text_format=Place).output_parsed.city is not None
assert len(client.embeddings.create(model=model, input="one").data[0].embedding) > 4
claude = anthropic.Anthropic(base_url=url, api_key="unused", max_retries=0)
assert claude.messages.create(model=model, max_tokens=20, messages=ask).usage.output_tokens > 0
formed = ollama.Client(host=url).chat(model, ask, format=Place.model_json_schema(), options={"num_predict": 200})
Place.model_validate_json(formed.message.content)
print("every call passed")
"""


def test_the_bundled_model_answers_all_three(python, tmp_path):
    (tmp_path / "home").mkdir()
    running = RunningServer(tmp_path / "home")
    try:
        passes(python, "-c", REAL, running.url)
    finally:
        running.stop()
