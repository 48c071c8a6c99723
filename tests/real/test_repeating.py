"""The same request gives the same answer on an idle server, whatever ran before.

tests/e2e/test_request_options.py has every protocol, tests/integration/test_repeating.py every kind of cache.
"""

import pytest

from tests.support.repeating import answer, chat, greedy

NAME = "smollm2-135m-instruct"
QUESTION = "What is the capital of Italy, and what is it known for?"
OTHER = "What is the capital of Italy, and how old is it?"
TURNS = [
    {"role": "user", "content": QUESTION},
    {"role": "assistant", "content": "Rome. It is known for the Colosseum, its fountains and its churches. " * 3},
    {"role": "user", "content": "Which of these is the oldest?"},
]


@pytest.mark.parametrize("way", [chat, greedy], ids=lambda way: way.__name__)
def test_the_answer_is_the_same_each_time(real_server, way):
    found = set()
    for other in (None, OTHER, None):
        if other:
            real_server.ask(other, seed=None, temperature=1.0, max_tokens=8)
        found.add(answer(real_server.http, NAME, way, QUESTION))
    assert len(found) == 1


@pytest.mark.parametrize("way", [chat, greedy], ids=lambda way: way.__name__)
def test_a_second_turn_is_the_same_with_and_without_the_first(real_server, way):
    first = answer(real_server.http, NAME, way, TURNS)
    real_server.ask(TURNS[:1], max_tokens=40)
    real_server.ask([*TURNS[:2], {"role": "user", "content": "And the newest?"}], temperature=1.0)
    assert answer(real_server.http, NAME, way, TURNS) == first


def test_after_unloading_too(real_server):
    first = answer(real_server.http, NAME, chat, QUESTION)
    gone = real_server.http.post("/api/generate", json={"model": NAME, "keep_alive": 0})
    assert gone.status_code == 200, gone.text
    assert answer(real_server.http, NAME, chat, QUESTION) == first
