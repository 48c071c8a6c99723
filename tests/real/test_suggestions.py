"""Tessera's suggested questions get correct answers: no sampling parameters set, tokens that repeat."""

import re

import httpx2
import pytest

from app.suggestions import FOR_A_MODEL, FOR_THE_TOY
from tests.support.servers import RunningServer

pytestmark = pytest.mark.timeout(900)  # some answers of a real model, on a busy computer
SEED = 1


@pytest.fixture(scope="module")
def installed(tmp_path_factory, installed_model):
    """A server of a fresh installation."""
    environment = {"TESSERA_INSTALLED_MODELS": str(installed_model)}
    running = RunningServer(tmp_path_factory.mktemp("installed"), env=environment)
    yield running
    running.stop()


def answer(server, model, question):
    # Answers of one batch affect each other's rounding; deterministic ones are the same in every run.
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "seed": SEED,
        "deterministic": True,
    }
    told = httpx2.post(f"{server.url}/v1/chat/completions", json=body, timeout=600).json()
    return told["choices"][0]


@pytest.mark.parametrize("suggestion", FOR_A_MODEL, ids=lambda s: s.question)
def test_the_real_model_knows_the_fact(installed, suggestion):
    choice = answer(installed, "default", suggestion.question)
    assert re.search(suggestion.fact, choice["message"]["content"], re.IGNORECASE), choice
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("suggestion", FOR_THE_TOY, ids=lambda s: s.question)
def test_the_toy_knows_the_fact(server, suggestion):
    choice = answer(server, "default", suggestion.question)
    assert re.search(suggestion.fact, choice["message"]["content"], re.IGNORECASE), choice
    assert choice["finish_reason"] == "stop"


def test_the_default_is_the_real_model_and_the_list_says_so(installed):
    rows = httpx2.get(f"{installed.url}/v1/models").json()["data"]
    told = {row["id"]: (row["default"], row["demo"], row["origin"]) for row in rows}
    assert told == {
        "smollm2-135m-instruct": (True, False, "installed"),
        "spark": (False, True, "bundled"),
    }
