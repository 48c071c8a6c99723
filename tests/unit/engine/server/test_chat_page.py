"""The expression that finds emphasis, code and links in the chat page, tested with Python's engine."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[4] / "engine" / "server" / "chat.html"
INLINE = re.compile(
    re.search(r"const INLINE = /(.*)/g;", PAGE.read_text())[1].replace("[^]", r"[\s\S]").replace(r"\/", "/")
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a `code` **b** *i* [x](http://y.z/a)", ["`code`", "**b**", "*i*", "[x](http://y.z/a)"]),
        ("``a`b`` and [a][b](https://c)", ["``a`b``", "[b](https://c)"]),
        ("2 * 3 * 4 and [x](javascript:alert)", []),
    ],
)
def test_marks_are_found(text, found):
    assert [match[0] for match in INLINE.finditer(text)] == found


@pytest.mark.parametrize("part", ["[", "`", "`a``", "*", "*a", "**a", "[a](", "[a](http://x", "[a", "``a`"])
def test_many_unclosed_marks_take_linear_time(part):
    """Quadratic time would take minutes."""
    assert sum(1 for _ in INLINE.finditer(part * (100_000 // len(part)))) <= 50_000
