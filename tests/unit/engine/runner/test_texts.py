"""Prompts are prepared in parallel with the model, and none waits for another request's constraint."""

import queue
import threading

import pytest

from engine.core.errors import ConstraintRefused
from engine.core.types import Constraint, GenerationRequest, Image
from engine.runner import protocol
from engine.runner.service import TokenizerPool, text_of

WAIT_S = 30
FORM = Constraint(kind="regex", source="a+")


class Letters:
    """One token per letter."""

    def tokenize(self, text, *, limit=None, **_):
        return [ord(c) for c in text][:limit]


@pytest.fixture
def desk():
    """(texts, delivered, sent, gate): a constraint is compiled once the gate is open."""
    delivered, sent, gate = queue.SimpleQueue(), queue.SimpleQueue(), threading.Event()

    def compiled(constraint):
        assert gate.wait(WAIT_S)
        if constraint.source == "bad":
            raise ConstraintRefused("it is bad")
        return f"compiled {constraint.source}"

    yield TokenizerPool(Letters(), 100, delivered.put, sent.put, compiled), delivered, sent, gate
    gate.set()


def submit(number, prompt="ab", **options):
    return protocol.Submit(id=number, request=GenerationRequest(prompt=prompt, **options))


def give(texts, message):
    texts.add(message, text_of(message))


def test_a_text_does_not_wait_for_the_constraint_of_another(desk):
    texts, delivered, _, gate = desk
    give(texts, submit(1, constraint=FORM))
    give(texts, submit(2))
    assert delivered.get(timeout=WAIT_S).message.id == 2
    gate.set()
    first = delivered.get(timeout=WAIT_S)
    assert (first.message.id, first.tokens, first.constraint) == (1, [97, 98], "compiled a+")


@pytest.mark.parametrize(
    ("options", "tokens"), [({"prompt": [5, 6]}, [5, 6]), ({"prompt": "x", "images": (Image(data=b"p"),)}, None)]
)
def test_ids_and_pictures_come_with_their_constraint_too(desk, options, tokens):
    texts, delivered, _, gate = desk
    gate.set()
    give(texts, submit(1, constraint=FORM, **options))
    found = delivered.get(timeout=WAIT_S)
    assert (found.tokens, found.constraint) == (tokens, "compiled a+")


def test_a_constraint_that_is_refused_is_told_and_a_cancelled_one_is_dropped(desk):
    texts, delivered, sent, gate = desk
    give(texts, submit(1, constraint=FORM))
    texts.cancel(1)
    give(texts, submit(2, constraint=Constraint(kind="regex", source="bad")))
    give(texts, submit(3, constraint=FORM))
    gate.set()
    assert delivered.get(timeout=WAIT_S).message.id == 3
    assert delivered.empty()
    fault = sent.get(timeout=WAIT_S)
    assert (fault.id, fault.code, fault.param) == (2, "invalid_request", "response_format")


def test_without_text_and_constraint_there_is_nothing_to_do():
    assert text_of(submit(1, prompt=[1])) is None
    assert text_of(submit(1, images=(Image(data=b"p"),))) is None
