"""Bodies that would need too much memory are refused before they are parsed; strings may have any content."""

import json
import random
import time

import msgspec
import pytest

from engine.core import json_bounds
from engine.core.errors import InputFault
from engine.server import body
from engine.server.body import MAX_OBJECTS, MAX_VALUES, check_counts
from engine.server.response_store.responses import size_of

MANY = {
    "messages": lambda: [{"role": "user", "content": "a"}] * (MAX_OBJECTS + 1),
    "ids": lambda: list(range(MAX_VALUES + 1)),
    "unknown": lambda: {f"k{i}": 0 for i in range(MAX_VALUES + 1)},
    "empty lists": lambda: [[]] * (MAX_VALUES + 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("made", MANY.values(), ids=MANY.keys())
def test_too_many_values_are_refused(made):
    with pytest.raises(InputFault, match="more than"):
        check_counts(json.dumps(made()).encode())


@pytest.mark.parametrize(
    "text",
    [
        "{},[" * 1_000_000,
        '"{' * 500_000,
        "\\" * 1_000_001,
        '\\"{,' * 500_000,
        "\\\\" * 300_000 + '"' + "{" * 400_000,
    ],
)
def test_what_a_long_text_says_is_not_counted(text):
    check_counts(json.dumps({"messages": [{"role": "user", "content": text}]}).encode())


def test_counts_are_exact_wherever_the_text_is_cut(monkeypatch):
    picks = random.Random(3)
    for _ in range(200):
        keys = ["".join(picks.choices('\\"{[,a', k=picks.randrange(6))) for _ in range(8)]
        raw = json.dumps([{key: [key] for key in keys} for _ in range(4)]).encode()
        objects = 4
        monkeypatch.setattr(json_bounds, "_COUNTED_BYTES", picks.randrange(1, 40))
        monkeypatch.setattr(body, "MAX_OBJECTS", objects)
        check_counts(raw)
        monkeypatch.setattr(body, "MAX_OBJECTS", objects - 1)
        with pytest.raises(InputFault):
            check_counts(raw)


def test_the_size_of_a_conversation_takes_no_time_for_long_texts():
    """The event loop measures it; encoding the texts would block all other requests."""
    items = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x" * (8 << 20)}]}] * 8

    def cpu_s(work):
        began = time.thread_time()
        work()
        return time.thread_time() - began

    assert min(cpu_s(lambda: size_of(items)) for _ in range(3)) < cpu_s(lambda: msgspec.json.encode(items)) / 10
    assert size_of(items) > 64 << 20
