"""The loop guard detects real loops, and does not stop long texts that a reader would accept."""

import json
import math

import numpy as np
import pytest

from engine.runner.generation.sequence import NoiseWatch, RepeatWatch
from tests.support.long_texts import DATA, long_texts

LOOPS = [json.loads(line) for line in (DATA / "loops.jsonl").read_text(encoding="utf-8").splitlines()]
PASSAGE = (
    "The old dragon walked through the village and asked every {} baker for a loaf of warm bread before night. "
)
KINDS = (
    "red",
    "tall",
    "happy",
    "tired",
    "young",
    "angry",
    "gentle",
    "sleepy",
    "clever",
    "brave",
    "honest",
    "proud",
)


def watch(text, piece=7):
    guard = RepeatWatch()
    for at in range(0, len(text), piece):
        guard.feed(text[at : at + piece])
        if guard.found:
            return guard.found, at
    return None, len(text)


@pytest.fixture(scope="module")
def texts():
    return long_texts()


def test_there_are_many_long_texts_of_every_kind(texts):
    assert len(texts) >= 300
    assert {kind for kind, _, _ in texts} == {"code", "table", "list", "data", "song", "translation", "prose"}


@pytest.mark.slow
def test_no_long_text_is_taken_for_a_loop(texts):
    wrong = [(kind, name, found) for kind, name, text in texts if (found := watch(text, 32)[0]) is not None]
    assert wrong == []


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop["prompt"][:30])
def test_real_loops_are_found(loop):
    found, at = watch(loop["text"])
    assert found is not None
    assert found.kind == "loop"
    assert found.times >= 3
    assert " ".join(found.passage.split()[:1]) in loop["text"]
    assert at <= len(loop["text"])


@pytest.mark.parametrize("piece", [1, 3, 50, 10_000])
def test_small_changes_count_as_the_same(piece):
    cycle = "".join(PASSAGE.format(KINDS[i % 3]) for i in range(24))
    fresh = "".join(PASSAGE.format(kind) for kind in KINDS * 2)
    counted = "".join(f"{i}. The sky is blue and the grass is green in summer.\n" for i in range(1, 60))
    for text in (cycle, fresh, counted):
        assert watch(text, piece)[0] is not None, text[:100]


@pytest.mark.parametrize("unit", ["!", "0, ", "ha", "\n", "的", "你好。", "abcdefghijklmnopqrstuvwxyz012345"])
def test_short_things_without_end_are_found(unit):
    assert watch(unit * (6000 // len(unit)))[0] is not None


def test_a_passage_that_comes_twice_is_no_loop():
    text = (DATA / "poems.txt").read_text(encoding="utf-8")
    assert watch(text + text)[0] is None
    assert watch(text * 4)[0] is not None


def test_a_very_long_text_is_followed_in_bounded_memory():
    guard = RepeatWatch()
    for i in range(40_000):
        guard.feed(f"word{i} and {i * 7} more ")
    assert guard.found is None
    assert len(guard._words) <= 16_000
    assert len(guard._last_seen) <= 16_000
    guard.feed("the same words once more " * 80)
    assert guard.found is not None


def noise(nats, tokens=300, size=1000):
    """A guard after tokens of this surprise each."""
    guard = NoiseWatch()
    row = np.zeros(size, np.float32)
    for _ in range(tokens):
        guard.before(row)
        guard.sampled(math.log(size) - nats)
    return guard


def test_tokens_that_the_model_itself_finds_unlikely_are_noise():
    assert noise(6.0).found is not None
    assert noise(6.0).found.nats == pytest.approx(6.0, abs=0.05)
    assert noise(6.0, tokens=200).found is None
    assert noise(4.2).found is None
