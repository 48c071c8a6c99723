"""The tool file_search of /v1/responses with OpenAI's client: search results, the model's input, citations."""

import json

import httpx2
import pytest

from tests.support.late import openai
from tests.support.servers import wait_for

QUESTION = "How often is high water?"


@pytest.fixture
def client(qwen):
    with openai.OpenAI(base_url=f"{qwen.url}/v1", api_key="unused", max_retries=0, timeout=60) as made:
        yield made


@pytest.fixture
def store(client):
    """A store with two files about the sea, one of them with a year."""
    tides = client.files.create(
        file=("tides.md", b"# Tides\n\nHigh water comes every twelve hours."), purpose="assistants"
    )
    moon = client.files.create(
        file=(
            "moon.md",
            b"# Moon\n\nThe moon pulls at the seas of the whole earth, and high water follows it around.",
        ),
        purpose="assistants",
    )
    made = client.vector_stores.create(name="sea", file_ids=[tides.id])
    client.vector_stores.files.create(made.id, file_id=moon.id, attributes={"year": 1998})
    wait_for(lambda: client.vector_stores.retrieve(made.id).file_counts.completed == 2, 60, "reading")
    yield made.id
    client.vector_stores.delete(made.id)


def tool(store, **more):
    return {"type": "file_search", "vector_store_ids": [store], **more}


def test_the_answer_is_made_from_what_was_found_and_cites_it(qwen, client, store):
    qwen.say("Every twelve hours [1].", " Not [7].")
    answer = client.responses.create(
        model="spark", input=QUESTION, tools=[tool(store)], include=["file_search_call.results"]
    )
    openai.types.responses.Response.model_validate(answer.model_dump())
    search, message = answer.output
    assert (search.type, search.status, search.queries) == ("file_search_call", "completed", [QUESTION])
    assert search.results[0].filename == "tides.md"
    assert "twelve hours" in search.results[0].text
    (cited,) = message.content[0].annotations
    assert (cited.type, cited.filename, cited.index) == ("file_citation", "tides.md", len("Every twelve hours "))
    assert cited.file_id == search.results[0].file_id
    (prompt,) = qwen.prompts()
    assert prompt.index("High water comes every twelve hours") < prompt.index(QUESTION)
    assert "file_search" not in prompt


def test_results_are_told_only_where_they_are_asked_for(qwen, client, store):
    qwen.say("Yes.")
    assert client.responses.create(model="spark", input=QUESTION, tools=[tool(store)]).output[0].results is None


def test_events_come_in_the_order_of_the_protocol(qwen, store):
    qwen.say("Every twelve hours [1].")
    body = {"model": "spark", "input": QUESTION, "stream": True, "tools": [tool(store)]}
    with httpx2.stream("POST", f"{qwen.url}/v1/responses", json=body) as answer:
        told = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: ")]
    kinds = [event["type"] for event in told]
    begun = ["created", "in_progress", "output_item.added"]
    searched = [f"file_search_call.{state}" for state in ("in_progress", "searching", "completed")]
    first = [*begun, *searched, "output_item.done", "output_item.added", "content_part.added", "output_text.delta"]
    assert kinds[: len(first)] == [f"response.{name}" for name in first]
    assert kinds.index("response.output_text.annotation.added") < kinds.index("response.output_text.done")
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    assert [item["type"] for item in told[-1]["response"]["output"]] == ["file_search_call", "message"]


def test_filters_and_the_number_of_results(qwen, client, store):
    qwen.say("Yes.")
    named = tool(store, filters={"type": "gte", "key": "year", "value": 1990})
    wanted = {"model": "spark", "input": QUESTION, "include": ["file_search_call.results"]}
    found = client.responses.create(tools=[named], **wanted).output[0].results
    assert [(result.filename, result.attributes) for result in found] == [("moon.md", {"year": 1998})]
    qwen.say("Yes.")
    assert len(client.responses.create(tools=[tool(store, max_num_results=1)], **wanted).output[0].results) == 1


def test_a_question_of_something_else_gets_no_passages(qwen, client, store):
    qwen.say("They do not say [1].")
    asked = client.responses.create(
        model="spark",
        input="Who invented bakelite resin?",
        tools=[tool(store)],
        include=["file_search_call.results"],
    )
    assert asked.output[0].results == []
    assert asked.output[1].content[0].annotations == []
    assert "twelve hours" not in qwen.prompts()[0]


@pytest.mark.parametrize("choice", ["none", {"type": "allowed_tools", "mode": "auto", "tools": [
    {"type": "function", "name": "ring"}]}])  # fmt: skip
def test_a_choice_without_it_searches_nothing(qwen, client, store, choice):
    qwen.say("Yes.")
    ring = {"type": "function", "name": "ring", "parameters": {"type": "object"}}
    answer = client.responses.create(model="spark", input=QUESTION, tools=[tool(store), ring], tool_choice=choice)
    assert [item.type for item in answer.output] == ["message"]


def test_a_talk_goes_on_without_the_old_passages(qwen, client, store):
    qwen.say("Every twelve hours [1].")
    first = client.responses.create(model="spark", input=QUESTION, tools=[tool(store)])
    qwen.say("So it is.")
    client.responses.create(model="spark", input="Really?", previous_response_id=first.id)
    assert "comes every" not in qwen.prompts()[-1]
    qwen.say("So it is.")
    history = [{"role": "user", "content": QUESTION}, *(item.model_dump() for item in first.output)]
    client.responses.create(model="spark", input=[*history, {"role": "user", "content": "Really?"}])
    assert "Every twelve hours [1]." in qwen.prompts()[-1]


def test_tokens_are_counted_with_what_is_found(client, store):
    asked = {"model": "spark", "input": QUESTION}
    alone = client.responses.input_tokens.count(**asked).input_tokens
    assert client.responses.input_tokens.count(**asked, tools=[tool(store)]).input_tokens > alone + 30


@pytest.mark.parametrize(
    ("tools", "param", "status"),
    [
        ([{"type": "file_search"}], "tools[0].vector_store_ids", 400),
        ([{"type": "file_search", "vector_store_ids": []}], "tools[0].vector_store_ids", 400),
        ([tool("vs_nothing")], "", 404),
        ([tool("a"), tool("b")], "tools[1]", 400),
        ([tool("a", max_num_results=51)], "tools[0].max_num_results", 400),
    ],
)
def test_what_cannot_be_searched_is_refused(qwen, tools, param, status):
    answer = httpx2.post(f"{qwen.url}/v1/responses", json={"model": "spark", "input": "Hi", "tools": tools})
    assert answer.status_code == status, answer.text
    assert param in (answer.json()["error"]["param"] or "")


def test_a_search_that_is_chosen_must_be_there(qwen):
    wanted = {"model": "spark", "input": "Hi", "tool_choice": {"type": "file_search"}}
    answer = httpx2.post(f"{qwen.url}/v1/responses", json=wanted)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tool_choice")
