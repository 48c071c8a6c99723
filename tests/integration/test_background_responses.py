"""Background responses with the official client."""

import json

import httpx2
import pytest

from tests.support.late import openai
from tests.support.servers import wait_for


@pytest.fixture
def client(qwen):
    with openai.OpenAI(base_url=f"{qwen.url}/v1", api_key="unused", max_retries=0) as made:
        yield made


def test_an_answer_in_the_background_is_polled(qwen, client):
    qwen.say("Hel", "lo", delay_s=2)  # slow enough to be observed
    made = client.responses.create(model="spark", input="Hi", background=True)
    assert (made.status, made.background) == ("queued", True)
    wait_for(lambda: client.responses.retrieve(made.id).status == "in_progress", what="it began")
    wait_for(lambda: client.responses.retrieve(made.id).status == "completed", what="it ended")
    done = client.responses.retrieve(made.id)
    assert done.output_text == "Hello"
    qwen.say("Again.")
    later = client.responses.create(model="spark", input="And?", previous_response_id=made.id)
    assert later.output_text == "Again."
    assert "Hello" in qwen.prompts()[-1]
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)


def test_a_stream_that_broke_is_followed_from_where_it_was(qwen, client):
    qwen.say("one ", "two ", "three ", "four", delay_s=0.1)
    with client.responses.create(model="spark", input="Hi", background=True, stream=True) as stream:
        seen = [next(iter(stream)) for _ in range(5)]
    response_id = seen[0].response.id
    last = seen[-1].sequence_number
    assert last == 4
    rest = list(client.responses.retrieve(response_id, stream=True, starting_after=last))
    assert [e.sequence_number for e in rest] == list(range(last + 1, last + 1 + len(rest)))
    assert rest[-1].type == "response.completed"
    assert rest[-1].response.output_text == "one two three four"
    whole = list(client.responses.retrieve(response_id, stream=True))
    assert [e.sequence_number for e in whole] == list(range(len(whole)))
    assert len(qwen.asked()) == 1


def test_an_answer_is_cancelled_and_its_generation_with_it(qwen, client):
    qwen.say(*["word "] * 500, delay_s=0.05)
    made = client.responses.create(model="spark", input="Hi", background=True)
    wait_for(lambda: client.responses.retrieve(made.id).status == "in_progress")
    with pytest.raises(openai.BadRequestError, match="still in_progress; wait for its end"):
        client.responses.create(model="spark", input="And?", previous_response_id=made.id)
    assert client.responses.cancel(made.id).status == "cancelled"
    with pytest.raises(openai.BadRequestError, match="was cancelled; continue the one before it"):
        client.responses.create(model="spark", input="And?", previous_response_id=made.id)
    runner = qwen.state.pool.loaded[0].runner
    wait_for(lambda: runner.active_requests == 0, what="the runner is idle")
    assert client.responses.cancel(made.id).status == "cancelled"


def test_what_was_not_made_in_the_background_is_neither_followed_nor_cancelled(qwen, client):
    qwen.say("Hello")
    made = client.responses.create(model="spark", input="Hi")
    with pytest.raises(openai.BadRequestError, match="the background"):
        client.responses.cancel(made.id)
    with pytest.raises(openai.BadRequestError, match="the background"):
        client.responses.retrieve(made.id, stream=True)
    with pytest.raises(openai.NotFoundError):
        client.responses.cancel("resp_none")
    with pytest.raises(openai.BadRequestError, match="needs store"):
        client.responses.create(model="spark", input="Hi", background=True, store=False)


def test_a_dead_runner_fails_the_answer(qwen, client):
    qwen.say("Hel", die=9)
    made = client.responses.create(model="spark", input="Hi", background=True)
    wait_for(lambda: client.responses.retrieve(made.id).status == "failed")
    assert client.responses.retrieve(made.id).error is not None


def test_input_tokens_and_pages_of_items(qwen, client):
    counted = client.responses.input_tokens.count(model="spark", input="Hi", instructions="Be brief.")
    qwen.say("ok")
    made = client.responses.create(
        model="spark",
        instructions="Be brief.",
        input=[{"role": "user", "content": text} for text in ("a", "b", "c")],
    )
    assert counted.input_tokens > 5
    listed = client.responses.input_items.list(made.id, limit=2)
    assert [i.content[0].text for i in listed.data] == ["c", "b"]
    assert listed.has_more
    assert [i.content[0].text for i in listed] == ["c", "b", "a"]
    for wrong in ({"limit": 0}, {"limit": 101}, {"after": "nobody"}):
        answer = httpx2.get(f"{qwen.url}/v1/responses/{made.id}/input_items", params=wrong)
        assert answer.status_code == 400, json.dumps(wrong)
