"""Response text in the terminal: wraps between words and prints a summary at the end."""

import shutil
import sys
import unicodedata
from typing import TYPE_CHECKING

import click

from app.cli.echo import echo
from app.tools.types import shown_text

if TYPE_CHECKING:
    from app.answer_facts import AnswerFacts
    from engine.api.chat import Runaway

_TAB = 8
_FENCE = "```"
_SHOWN_PASSAGE = 60


class WordWrap:
    """Wraps streamed text between words.

    Writes each word as it arrives. If a word turns out too long for its line, it is erased and moved to the next
    line. Fenced code is not wrapped.
    """

    def __init__(self) -> None:
        self._column = 0
        self._word = ""
        self._line = ""
        self._code = False

    def feed(self, text: str, columns: int) -> str:
        """Output for this text on a terminal with this number of columns."""
        out: list[str] = []
        limit = max(columns - 1, 1)  # leave the last column free: terminals treat it differently
        for letter in text:
            if letter == "\n":
                self._end_line()
                out.append(letter)
                continue
            if len(self._line) <= len(_FENCE):
                self._line = (self._line + letter).lstrip()
            if self._code or self._line.startswith(_FENCE):
                out.append(letter)
                continue
            width = _TAB - self._column % _TAB if letter == "\t" else _cells(letter)
            if self._column + width > limit and self._column:
                if letter == " ":
                    out.append("\n")
                    self._column, self._word = 0, ""
                    continue
                out.append(self._broken(width, limit, _cells(self._word)))
            out.append(letter)
            self._column += width
            # Scripts with wide characters allow a line break between any two of them.
            self._word = "" if letter in " \t" or width > 1 else self._word + letter
        return "".join(out)

    def _broken(self, width: int, limit: int, word: int) -> str:
        """Output that ends this line and moves the current word to the next one."""
        moves = 0 < word < self._column and word + width <= limit
        next_line = self._word if moves else ""
        self._column = word if moves else 0
        self._word = next_line
        return f"\x1b[{word}D\x1b[K\n{next_line}" if moves else "\n"

    def _end_line(self) -> None:
        if self._line.startswith(_FENCE):
            self._code = not self._code
        self._column, self._word, self._line = 0, "", ""


def _cells(text: str) -> int:
    """Number of terminal columns that a text takes."""
    return sum(
        2 if unicodedata.east_asian_width(c) in "WF" else 0 if unicodedata.category(c) in {"Mn", "Me", "Cf"} else 1
        for c in text
    )


class AnswerText:
    """Streams a response to stdout; wraps between words if stdout is a terminal."""

    def __init__(self) -> None:
        self._wrap = WordWrap() if sys.stdout.isatty() else None

    def write(self, text: str) -> None:
        shown = shown_text(text)
        if self._wrap is not None:
            shown = self._wrap.feed(shown, shutil.get_terminal_size().columns)
        click.echo(shown, nl=False)
        sys.stdout.flush()


def runaway_text(runaway: "Runaway", more: str) -> str:
    """Explain why the loop guard ended a response; `more` describes how to continue it."""
    if runaway.kind == "noise":
        why = "The answer was ended: it had turned into noise. A lower --temperature helps."
    else:
        shown = runaway.passage
        shown = shown if len(shown) <= _SHOWN_PASSAGE else shown[:_SHOWN_PASSAGE] + "…"
        why = f"The answer was stopped: it repeated the same text {runaway.times} times (“{shown}”)."
    return f"{why} {more}"


def print_end(facts: "AnswerFacts", *, stopped: bool, more: str) -> None:
    """Print to stderr how a response ended and its speed; `more` is added if the loop guard ended it."""
    if facts.ran_on:
        echo(shown_text(facts.ran_on), dim=True, err=True)
    if facts.runaway and not stopped:
        echo(runaway_text(facts.runaway, more), fg="yellow", err=True)
    if stopped:
        echo("stopped", dim=True, err=True)
    elif facts.usage and facts.timings:
        timings = facts.timings
        speed = f"{timings.tok_s:.1f} tok/s, first token after {timings.ttft_s * 1000:.0f} ms"
        if timings.joules:
            speed += f", {timings.joules:.1f} J ({timings.tokens_per_joule:.3g} tokens per joule)"
        cut = ", cut at the limit" if facts.finish_reason == "length" and not facts.runaway else ""
        echo(f"{facts.usage.completion_tokens} tokens, {speed}{cut}", dim=True, err=True)
