"""Which of the offered models is recommended first."""

import pytest

from engine.library.recommended_models import recommend, starters

BY_ID = {starter.id: starter for starter in starters()}


@pytest.mark.parametrize(
    ("offered", "expected"),
    [
        # The largest that generates at reading speed, neither the fastest nor the largest.
        ({"qwen3-1.7b": 17.0, "qwen3-8b": 6.0, "qwen3-30b-a3b": 2.0}, ("qwen3-8b", "reading_speed")),
        ({"qwen3-1.7b": 4.0, "qwen3-8b": 1.0}, ("qwen3-1.7b", "quickest")),
        ({"qwen3-8b": 0.0, "qwen3-1.7b": 0.0}, ("qwen3-1.7b", "smallest")),
        # A model that only writes code is not suited to a first chat, however fast it is.
        ({"qwen2.5-coder-1.5b": 40.0, "qwen3-0.6b": 9.0}, ("qwen3-0.6b", "reading_speed")),
        ({"qwen2.5-coder-1.5b": 40.0}, ("qwen2.5-coder-1.5b", "reading_speed")),
        ({}, ("", "")),
    ],
)
def test_the_one_to_begin_with(offered, expected):
    assert recommend([(BY_ID[name], speed) for name, speed in offered.items()]) == expected
