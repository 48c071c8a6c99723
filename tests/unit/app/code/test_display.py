import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.code.edits.display import EditDisplay
from tests.support.examples import examples

BLOCK = "a.py\n<<<<<<< SEARCH\nold\n=======\nnew\n>>>>>>> REPLACE\n"
SHOWN = "a.py\n```diff\n-old\n+new\n```\n"


def shown(text, size=10_000):
    display = EditDisplay()
    items = [display.push(text[i : i + size]) for i in range(0, len(text), size)]
    return "".join(items) + display.finish()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Just words.", "Just words."),
        (BLOCK, SHOWN),
        ("Hi.\n\n" + BLOCK + "\nBye.", "Hi.\n\n" + SHOWN + "\nBye."),
        (BLOCK.replace("a.py\n", "a.py\n```python\n") + "```\nBye.\n", SHOWN + "Bye.\n"),
        (BLOCK.replace("a.py\n", "a.py\n```python\n") + "```\n\n```\nx\n```\n", SHOWN + "\n```\nx\n```\n"),
        ("```python\nx = 1\n```\n", "```python\nx = 1\n```\n"),
        (
            "```\na.py\n<<<<<<< SEARCH\no\n=======\nn\n>>>>>>> REPLACE\n```\n",
            "```\na.py\n```\n```diff\n-o\n+n\n```\n```\n```\n",
        ),
        ("a.py\n<<<<<<< SEARCH\nold\n=======\nne", "a.py\n```diff\n-old\n+ne\n```\n"),
        ("a ======= b\n=======\n", "a ======= b\n=======\n"),
        ("```", "```"),
    ],
)
def test_blocks_are_shown_as_diffs(text, expected):
    assert shown(text) == expected


TOKENS = st.sampled_from(
    ["<<<<<<< SEARCH", "=======", ">>>>>>> REPLACE", "```", "```python", "x", "", "`y`", "<z>"]
)


@settings(max_examples=examples(200), deadline=None)
@given(lines=st.lists(TOKENS, max_size=12), size=st.integers(1, 9))
def test_the_pieces_do_not_matter_and_no_text_is_lost(lines, size):
    text = "\n".join(lines)
    assert shown(text, size) == shown(text)
    for word in ("x", "`y`", "<z>"):
        assert shown(text, size).count(word) >= text.count(word)


def test_plain_text_streams_without_waiting_for_the_end_of_its_line():
    display = EditDisplay()
    assert display.push("Hello") == "Hello"
    assert display.push(" wor") == " wor"
    assert display.push("ld <") == "ld <"
