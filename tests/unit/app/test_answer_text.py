"""Streamed text wrapped between words, as a terminal of that width shows it."""

import unicodedata

import pytest

from app.cli.answer_text import WordWrap
from app.cli.line_editor import command_of, unknown_command, whole_text


def screen(written: str, columns: int) -> list[str]:
    """The lines of a terminal after that output; no line may exceed its width."""
    lines, column, at = [""], 0, 0
    while at < len(written):
        if written.startswith("\x1b[", at):
            end = next(i for i in range(at + 2, len(written)) if written[i].isalpha())
            count, kind = written[at + 2 : end], written[end]
            if kind == "D":
                column -= int(count)
            elif kind == "K":
                lines[-1] = lines[-1][:column]
            at = end + 1
            continue
        if written[at] == "\n":
            lines.append("")
            column = 0
        else:
            lines[-1] = lines[-1][:column] + written[at]
            column += 1
        at += 1
    assert all(sum(2 if unicodedata.east_asian_width(c) == "W" else 1 for c in line) < columns for line in lines)
    return [line.rstrip() for line in lines]


@pytest.mark.parametrize("piece", [1, 3, 7, 100])
def test_words_stay_whole_however_the_text_comes(piece):
    text = "The quick brown fox jumps over the lazy dog and runs away."
    wrap = WordWrap()
    written = "".join(wrap.feed(text[at : at + piece], 21) for at in range(0, len(text), piece))
    assert screen(written, 21) == ["The quick brown fox", "jumps over the lazy", "dog and runs away."]


def test_a_word_longer_than_the_line_is_cut_and_the_next_ones_follow():
    assert screen(WordWrap().feed("go to abcdefghijklmnop now", 11), 11) == ["go to", "abcdefghij", "klmnop now"]


def test_code_between_fences_is_left_as_it_is():
    code = "```python\nprint('a line of code that is longer than the terminal is wide')\n```\n"
    wrap = WordWrap()
    assert wrap.feed(code, 20) == code
    assert screen(wrap.feed("and words after it again", 20), 20) == ["and words after it", "again"]


def test_wide_letters_break_anywhere():
    assert screen(WordWrap().feed("日本語の文章です", 9), 9) == ["日本語の", "文章です"]


def test_a_terminal_one_column_wide_ends():
    assert WordWrap().feed("ab", 1) == "a\nb"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("/file notes.txt", ("file", "notes.txt")),
        ("/help", ("help", "")),
        ("/system Be brief.\nAlways.", ("system", "Be brief.\nAlways.")),
        ("/system\nBe brief.", ("system", "Be brief.")),
        ("/etc/hosts is what?", None),
        ("What is /etc?", None),
        ("//", None),
    ],
)
def test_what_is_a_command(line, expected):
    assert command_of(line) == expected


def test_a_command_that_there_is_not_comes_with_the_nearest():
    assert unknown_command("sav", ("save", "load")) == "There is no /sav. Did you mean /save?"
    assert "/help" in unknown_command("zzz", ("save", "load"))


def test_quotes_around_a_message_are_not_part_of_it():
    assert whole_text('"""\nline one\nline two\n"""') == "line one\nline two"
    assert whole_text('"""one line"""') == "one line"
    assert whole_text("  plain ") == "plain"
