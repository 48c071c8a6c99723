import pytest

from app.code.completion.bench import keystrokes
from app.code.completion.neighbours import Neighbours
from app.code.completion.policy import offered, request_at, wants_block

BUFFER = "import os\n\n\ndef first(path):\n    |\n\n\ndef second():\n    return 1\n"
READ = "with open(path) as f:\n        return f.read()"


def request(text, **options):
    cursor = text.index("|")
    return request_at("a.py", text.replace("|", "", 1), cursor, **options)


@pytest.mark.parametrize(
    ("text", "block"),
    [
        ("def f():\n    |\n", True),
        ("def f(): |\n", True),
        ("x = |\n", True),
        ("x = fo|\n", False),
        ("call(|)\n", False),
        ("def f():\n    |return 1\n", False),
        ("|", False),
        ("if x {\n  |\n}\n", True),
    ],
)
def test_a_block_is_asked_for_only_where_one_may_begin(text, block):
    prefix, suffix = text.split("|")
    assert wants_block(prefix, suffix) == block


def test_a_wish_stops_at_the_line_or_lets_a_block_run():
    assert request("x = fo|\ny = 2\n").stop == ("\n",)
    assert request(BUFFER).multiline
    assert request(BUFFER).max_tokens > request("x = fo|\n").max_tokens


@pytest.mark.parametrize(
    ("text", "completion", "shown"),
    [
        (BUFFER, READ + "\n\n\ndef second():\n    return 1", READ),
        (BUFFER, "return 1\nx = 2\n", "return 1"),
        (BUFFER, "a()\n    a()\n    a()\n    a()", "a()\n    a()"),
        ("call(a, |)\n", "b, c)", "b, c"),
        ("x = [|]\n", "1, 2]", "1, 2"),
        ("x = fo|\n", "o.bar\nsecond line", "o.bar"),
        ("x = fo|\n", "   ", ""),
        (BUFFER, "\n\n", ""),
    ],
)
def test_what_is_offered_ends_where_it_should(text, completion, shown):
    assert offered(completion, request(text)) == shown


def test_what_follows_the_cursor_is_a_small_part_of_the_prompt():
    long = "".join(f"value_{n} = {n}\n" for n in range(3000))
    asked = request(long[:30_000] + "|" + long[30_000:], window_chars=8000)
    assert len(asked.gap.prefix) + len(asked.gap.suffix) <= 8400
    assert len(asked.gap.suffix) <= len(asked.gap.prefix) / 16
    assert long[30_000:].startswith(asked.gap.suffix)


@pytest.mark.process
def test_neighbours_are_the_definitions_of_names_near_the_cursor(index, project):
    (project / "use.py").write_text("from src.shapes import Circle, unit\n\nc = Circle()\n\n")
    index.refresh()
    neighbours = Neighbours(index)
    files = neighbours.around("use.py", "from src.shapes import Circle, unit\n\nc = Circle()\nd = ")
    assert [f.path for f in files] == ["src/shapes.py"]
    assert "class Circle:" in files[0].text
    assert "def unit" in files[0].text
    # While the line stays the same, so does the choice, whatever is typed.
    assert (
        neighbours.around("use.py", "from src.shapes import Circle, unit\n\nc = Circle()\nd = find_node(") is files
    )
    assert neighbours.around("src/shapes.py", "class Circle:\n") == ()


def test_keystrokes_type_the_text_and_keep_what_is_below():
    typed = list(keystrokes("ab\ncdef\ngh\n", 3, 3))
    assert typed == [("ab\nc\ngh\n", 4), ("ab\ncd\ngh\n", 5), ("ab\ncde\ngh\n", 6)]
