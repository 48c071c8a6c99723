"""Where a completion of several lines ends, however its text is cut into tokens."""

import pytest

from engine.server.llama_server.stream import _Lines


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
