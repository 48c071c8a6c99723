"""A real model in typical use: turns, documents, JSON, tools, two models, an answer that loops."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from app.attachments import document_text, read
from tests.support.servers import ROOT

NAME = "smollm2-135m-instruct"
pytestmark = pytest.mark.timeout(900)  # some 10 s each on an idle computer
CITY = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Paris", "Rome", "Oslo"]},
        "people": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["city", "people"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome", "Oslo"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def at_once(two):
    """Twice two answers: of one request, and of two concurrent ones."""
    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(two, (0, 10)))


def test_four_answers_of_a_json_schema_are_valid(real_server):
    def two(seed):
        body = real_server.ask(
            f"Give me a city and its people in millions as JSON. Number {seed}.", n=2, seed=seed, temperature=1.0,
            response_format={"type": "json_schema", "json_schema": {"schema": CITY}},
        )  # fmt: skip
        return body["choices"]

    for choices in at_once(two):
        assert len(choices) == 2
        for choice in choices:
            found = json.loads(choice["message"]["content"])
            assert choice["finish_reason"] == "stop"
            assert found.keys() == {"city", "people"}
            assert found["city"] in {"Paris", "Rome", "Oslo"}
            assert isinstance(found["people"], int)
            assert 0 <= found["people"] <= 99


def test_four_forced_tool_calls_are_valid(real_server):
    def two(seed):
        body = real_server.ask(
            f"How is the weather? Number {seed}.", n=2, seed=seed, temperature=1.0, max_tokens=96, tools=[WEATHER],
            tool_choice={"type": "function", "function": {"name": "weather"}},
        )  # fmt: skip
        return body["choices"]

    for choices in at_once(two):
        assert len(choices) == 2
        for choice in choices:
            assert choice["finish_reason"] == "tool_calls"
            (call,) = choice["message"]["tool_calls"]
            assert call["function"]["name"] == "weather"
            arguments = json.loads(call["function"]["arguments"])
            assert arguments.keys() == {"city"}
            assert arguments["city"] in {"Paris", "Rome", "Oslo"}


def test_two_models_answer_side_by_side(real_server):
    with ThreadPoolExecutor(2) as pool:
        real = pool.submit(real_server.text, "How many days are in a week?")
        toy = pool.submit(real_server.text, "Hello!", "spark")
        assert "7" in real.result() or "seven" in real.result()
        assert toy.result().strip()
    listed = {m["id"]: m["state"] for m in real_server.http.get("/v1/models").json()["data"]}
    assert (listed[NAME], listed["spark"]) == ("loaded", "loaded")


def test_a_question_about_a_document_is_answered_from_it(real_server, tmp_path):
    file = tmp_path / "club.md"
    file.write_text(
        "# Chess club\n\nThe club meets on Thursday at seven in the evening. The fee is 35 euros a year. "
        "The president is Ingrid Holm. Tournaments are held in the library."
    )
    document = read(file)
    attached = document_text(file.name, document.text)
    for question, fact in (
        ("On which day does the club meet?", "Thursday"),
        ("Who is the president?", "Ingrid Holm"),
    ):
        assert fact in real_server.text(f"{attached}\n\n{question}")
        assert fact not in real_server.text(question)


def test_the_terminal_ends_an_answer_that_loops_and_says_so(real_server):
    command = [
        sys.executable,
        "-m",
        "app",
        "chat",
        NAME,
        "-p",
        "Make a table of all countries and their capitals.",
        "-t",
        "0",
    ]
    env = {**os.environ, "TESSERA_HOME": str(real_server.running.home)}
    done = subprocess.run(
        [*command, "--max-tokens", "1000"], cwd=ROOT, env=env, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert "times (“" in done.stderr
    assert "--no-loop-guard" in done.stderr
    assert len(done.stdout) < 4000


def test_what_a_request_leaves_open_is_drawn_as_llama_cpp_would(real_server):
    asked = {"messages": [{"role": "user", "content": "Hi"}], "model": NAME, "max_tokens": 2}
    open_ = real_server.http.post("/v1/chat/completions", json=asked).json()["tessera"]["sampling"]
    assert {name: told["value"] for name, told in open_.items()} == {
        "temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05,
    }  # fmt: skip
    neutral = {"temperature": 1, "top_p": 1, "top_k": 0, "min_p": 0}
    said = real_server.http.post("/v1/chat/completions", json=asked | neutral).json()["tessera"]["sampling"]
    assert {told["source"] for told in said.values()} == {"request"}
    assert {name: told["value"] for name, told in said.items()} == neutral
    shown = real_server.http.get(f"/v1/models/{NAME}").json()["sampling"]
    assert shown == open_
