"""Properties that hold for every text and every edit, searched for counterexamples."""

import difflib

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from app.code.edits.apply import apply_hunks, merge
from app.code.edits.locate import shifted
from app.code.edits.parse import contents, parse_answer, split
from app.code.edits.types import Applied, Hunk
from tests.support.examples import examples

# Few distinct lines, so that repeats, shifts and near misses are common.
LINE = st.sampled_from(
    [
        "",
        "a = 1",
        "    a = 1",
        "\ta = 1",
        "a = 2",
        "    b(a)",
        "b(a)",
        "b(a) ",
        "return value",
        "    return value",
        "}",
    ]
)
LINES = st.lists(LINE, max_size=14)
EOL = st.sampled_from(["\n", "\r\n"])
FAST = settings(max_examples=examples(400), deadline=None, suppress_health_check=[HealthCheck.too_slow])


def squeezed(lines):
    return ["".join(line.split()) for line in lines if line.strip()]


def occurrences(lines, piece):
    return [i for i in range(len(lines) - len(piece) + 1) if lines[i : i + len(piece)] == piece]


@pytest.mark.slow
@FAST
@given(lines=LINES, search=LINES, replace=LINES, eol=EOL, ended=st.booleans())
def test_a_hunk_changes_only_the_one_place_that_holds_its_text(lines, search, replace, eol, ended):
    text = eol.join(lines) + (eol if ended and lines else "")
    given_lines = contents(text)
    hunk = Hunk(path="a", kind="change", search=tuple(search), replace=tuple(replace), source="block")
    result = apply_hunks(text, [hunk])
    (outcome,) = result.outcomes
    exact = occurrences(given_lines, search) if search else []
    if not isinstance(outcome, Applied):
        assert result.text == text
        assert outcome.reason
        return
    assert len(exact) <= 1
    if exact:
        assert (outcome.match, outcome.first) == ("exact", exact[0] + 1)
    before, after = split(text), split(result.text)
    tail = len(before) - outcome.last
    assert after[: outcome.first - 1] == before[: outcome.first - 1] or not outcome.new_lines
    found = [content for content, _ in before[outcome.first - 1 : outcome.last]]
    assert squeezed(found) == squeezed(search)
    if tail:
        assert [c for c, _ in after[-tail:]] == [c for c, _ in before[-tail:]]
    middle = [c for c, _ in after[outcome.first - 1 : len(after) - tail]]
    assert squeezed(middle) == squeezed(replace)


@pytest.mark.slow
@FAST
@given(old=LINES, new=LINES, context=st.integers(0, 4), eol=EOL)
@example(old=[""], new=["a = 1", ""], context=0, eol="\n")
def test_a_true_diff_gives_the_new_text_or_refuses(old, new, context, eol):
    before = "".join(line + eol for line in old)
    diff = "\n".join(difflib.unified_diff(old, new, "a/f", "b/f", n=context, lineterm=""))
    answer = parse_answer(diff)
    result = apply_hunks(before, answer.hunks)
    if not answer.malformed and not result.refused and old and old != new:
        assert contents(result.text) == new


@pytest.mark.slow
@FAST
@given(lines=LINES, hunks=st.lists(st.tuples(LINES, LINES), max_size=4), chosen=st.sets(st.integers(0, 3)))
def test_a_subset_of_the_applied_hunks_is_merged_or_needs_another(lines, hunks, chosen):
    text = "".join(line + "\n" for line in lines)
    result = apply_hunks(
        text,
        [Hunk(path="a", kind="change", search=tuple(s), replace=tuple(r), source="block") for s, r in hunks],
    )
    assert merge(text, result.outcomes) == result.text
    kept = [o for i, o in enumerate(result.outcomes) if i in chosen and isinstance(o, Applied)]
    merged = merge(text, kept)
    again = apply_hunks(text, [o.hunk for o in kept])
    assert merged == (None if again.refused else again.text)
    changed = sum(len(o.new_lines) - (o.last - o.first + 1) for o in again.outcomes if isinstance(o, Applied))
    assert merged is None or len(split(merged)) == len(lines) + changed


EDIT_MARKS = ("<<<<<<< SEARCH", "=======", ">>>>>>> REPLACE", "a.py", "--- a/a.py", "+++ b/a.py", "@@", "...")
OTHER_MARKS = ("@@ -1,2 +1,2 @@", " x", "+y", "-x", "x", "", "```", "```diff", "\\ No newline", "+++ /dev/null")
TOKENS = st.sampled_from((*EDIT_MARKS, *OTHER_MARKS, "--- /dev/null"))


@pytest.mark.slow
@FAST
@given(answer=st.lists(TOKENS, max_size=25), text=st.sampled_from(["", "x\n", "x\ny\n", "y\nx\nx\n", "x"]))
def test_no_answer_breaks_the_reader_and_refusals_change_nothing(answer, text):
    read = parse_answer("\n".join(answer))
    for hunk in read.hunks:
        result = apply_hunks(text, [hunk])
        if result.refused:
            assert result.text == text


@FAST
@given(text=st.text(alphabet="a\r\n\f\u2028\x0b ", max_size=40))
def test_splitting_loses_nothing(text):
    assert "".join(a + b for a, b in split(text)) == text


@pytest.mark.parametrize(("line", "moved"), [("y = 1", "    y = 1"), ("    y = 1", "    y = 1")])
def test_a_first_line_that_lost_its_indentation_gets_the_files(line, moved):
    reindent = shifted(["x = 1", "    if x:"], ["    x = 1", "    if x:"])
    assert reindent(0, line) == moved
    assert reindent(1, "    if y:") == "    if y:"


@pytest.mark.parametrize(("name", "placed"), [("abcd", True), ("abc", False)])
def test_four_letters_place_a_hunk_whose_blanks_differ(name, placed):
    hunk = Hunk(path="a", kind="change", search=(name,), replace=("x",), source="block")
    (outcome,) = apply_hunks(f"1\n    {name}\n2\n", [hunk]).outcomes
    assert isinstance(outcome, Applied) is placed
