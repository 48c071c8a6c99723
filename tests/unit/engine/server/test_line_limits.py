"""The end of a completion of several lines, however its text is split into tokens, and its time limits."""

from types import SimpleNamespace

import pytest

from engine.core.types import Done, Started, Timings, Usage
from engine.server.llama_server.stream import _Lines, ended


@pytest.mark.parametrize(
    ("text", "n_indent", "expected"),
    [
        ("a\n    b\n  c", 4, "a\n    b"),
        ("a\n    b\n\n    c\nd", 4, "a\n    b\n\n    c"),
        ("a\n\tb\nc", 1, "a\n\tb"),
        ("a\r\n    b\r\nc", 4, "a\r\n    b"),
        ("a\n\n\nb", 4, "a"),
        ("a\n\n", 2, "a\n\n"),
        ("a\rb", 2, "a\rb"),
        ("a\nb", 0, "a\nb"),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 3, 50])
def test_a_line_out_of_the_block_ends_the_text(text, n_indent, expected, size):
    lines, given = _Lines(n_indent), ""
    for at in range(0, len(text), size):
        given += lines.feed(text[at : at + size])
        if lines.ended:
            break
    assert given + ("" if lines.ended else lines.held) == expected


def test_times_at_the_end_of_an_answer_are_whole_microseconds():
    done = Done(
        finish_reason="stop",
        usage=Usage(prompt_tokens=3, completion_tokens=5),
        timings=Timings(prefill_s=0.00123456789, decode_s=0.0123456789),
    )
    started = Started(prompt_tokens=3, cached_tokens=0)
    times = ended(SimpleNamespace(id="m"), started, done, truncated=False)["timings"]
    assert (times["prompt_ms"], times["predicted_ms"]) == (1.235, 12.346)
    assert times["predicted_per_token_ms"] == pytest.approx(12.346 / 4)  # five tokens have four gaps
    assert times["predicted_per_second"] == pytest.approx(4 / 0.012346)
    times = ended(SimpleNamespace(id="m"), started, None, truncated=False, num_tokens=5)["timings"]
    assert (times["prompt_ms"], times["predicted_ms"], times["predicted_n"]) == (0.0, 0.0, 5)
    assert times["predicted_per_second"] == times["prompt_per_second"] == 0.0
    one = Done(finish_reason="stop", usage=Usage(completion_tokens=1), timings=Timings(decode_s=0.5))
    times = ended(SimpleNamespace(id="m"), started, one, truncated=False)["timings"]
    assert (times["predicted_per_token_ms"], times["predicted_per_second"]) == (0.0, 0.0)
