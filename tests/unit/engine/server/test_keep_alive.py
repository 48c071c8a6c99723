"""Ollama's durations, as its own client writes and reads them."""

import pytest

from engine.core.errors import InputFault
from engine.server.ollama.keep_alive import seconds


@pytest.mark.parametrize(
    ("duration", "expected"),
    [(".5h", 1800), ("+5m", 300), ("5.", 5), ("-.5s", -0.5), ("1h30m", 5400), ("0s", 0), ("300", 300), (-1, -1)],
)
def test_every_form_of_a_duration_is_read(duration, expected):
    assert seconds(duration, "keep_alive") == expected


@pytest.mark.parametrize("duration", ["--5m", "1h-5m", "", "+", ".", "5 m", "5d", "m"])
def test_what_is_no_duration_is_refused(duration):
    with pytest.raises(InputFault, match="is not a duration"):
        seconds(duration, "keep_alive")
