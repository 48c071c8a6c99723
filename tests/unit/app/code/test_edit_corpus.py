"""A corpus of generated edits: each applies exactly where its author intended, or is refused with a reason.

The author of a case knows the true place by construction (line numbers), never through the code under test.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from app.code.edits.apply import apply_hunks
from app.code.edits.parse import parse_answer
from app.code.edits.types import Applied, Refused

WORDS = (
    "alpha",
    "beta",
    "gamma",
    "delta",
    "kappa",
    "sigma",
    "omega",
    "total",
    "count",
    "index",
    "buffer",
    "frame",
)


@dataclass
class Case:
    file: str
    answer: str
    expected: str | None  # the whole new file, or None: must be refused


def function(rng: random.Random, name: str) -> list[str]:
    lines = [f"def {name}({', '.join(rng.sample(WORDS, 2))}):"]
    for _ in range(rng.randint(3, 7)):
        a, b = rng.sample(WORDS, 2)
        lines.append(f"    {a} = {b} * {rng.randint(2, 99)} + {name}_{rng.randint(0, 10**6)}")
        if rng.random() < 0.4:
            lines += [f"    if {a} > {rng.randint(0, 9)}:", f"        {b} -= {rng.randint(1, 10**6)}"]
    return [*lines, "    return None", "", ""]


def source(rng: random.Random, functions: int = 6) -> list[str]:
    lines = ["import os", "", ""]
    for number in range(functions):
        lines += function(rng, f"job_{number}_{rng.choice(WORDS)}")
    return lines[:-2]


def pick(rng: random.Random, lines: list[str], size: int = 3) -> int:
    """A header whose lines are unique by their numbers and never blank."""
    good = [
        i
        for i in range(len(lines) - size)
        if all(line.strip() for line in lines[i : i + size]) and sum("_" in x for x in lines[i : i + size]) >= 2
    ]
    return rng.choice(good)


def changed(rng: random.Random, piece: list[str]) -> list[str]:
    """Change, insert or delete a line of a chunk, and leave the others unchanged."""
    new = list(piece)
    where = rng.randrange(len(new))
    indent = new[where][: len(new[where]) - len(new[where].lstrip())]
    action = rng.choice(("change", "insert", "delete"))
    fresh = f"{indent}fresh_{rng.randint(0, 10**9)} = True"
    if action == "change":
        new[where] = fresh
    elif action == "insert":
        new.insert(where, fresh)
    else:
        del new[where]
    return new


def block(search: list[str], replace: list[str], path: str = "a.py") -> str:
    return "\n".join([path, "<<<<<<< SEARCH", *search, "=======", *replace, ">>>>>>> REPLACE", ""])


def joined(lines: list[str], eol: str = "\n") -> str:
    return "".join(line + eol for line in lines)


def replaced(lines: list[str], start: int, size: int, new: list[str]) -> list[str]:
    return lines[:start] + new + lines[start + size :]


def plain(rng: random.Random) -> Case:
    lines = source(rng)
    start = pick(rng, lines)
    piece = lines[start : start + 3]
    new = changed(rng, piece)
    return Case(joined(lines), block(piece, new), joined(replaced(lines, start, 3, new)))


def moved(rng: random.Random) -> Case:
    """Lines were added above since the answer's author saw the file, so a diff's line numbers are stale."""
    lines = source(rng)
    start = pick(rng, lines)
    piece = lines[start : start + 3]
    new = changed(rng, piece)
    lines = function(rng, "newcomer") + lines
    start += lines.index("import os")
    answer = block(piece, new) if rng.random() < 0.5 else diff(piece, new, start - 20)
    return Case(joined(lines), answer, joined(replaced(lines, start, 3, new)))


def diff(piece: list[str], new: list[str], at: int) -> str:
    body = [f"-{line}" for line in piece] + [f"+{line}" for line in new]
    header = f"@@ -{max(at, 1)},{len(piece)} +{max(at, 1)},{len(new)} @@"
    return "\n".join(["```diff", "--- a/a.py", "+++ b/a.py", header, *body, "```", ""])


def reindented(rng: random.Random) -> Case:
    """The answer quotes the code with a uniform indentation that differs from the file's."""
    lines = [("    " + line if line else line) for line in source(rng)]
    lines.insert(0, "class Holder:")
    start = pick(rng, lines)
    piece = lines[start : start + 3]
    new = changed(rng, piece)
    quoted, quoted_new = [line[4:] for line in piece], [line[4:] for line in new]
    return Case(joined(lines), block(quoted, quoted_new), joined(replaced(lines, start, 3, new)))


def first_line_stripped(rng: random.Random) -> Case:
    lines = [("    " + line if line else line) for line in source(rng)]
    start = pick(rng, lines)
    piece = lines[start : start + 3]
    new = [*piece[:2], piece[1][: len(piece[1]) - len(piece[1].lstrip())] + "added_here = 1", piece[2]]
    quoted = [piece[0].lstrip(), *piece[1:]]
    return Case(joined(lines), block(quoted, [new[0].lstrip(), *new[1:]]), joined(replaced(lines, start, 3, new)))


def repeated(rng: random.Random) -> Case:
    """The quoted lines occur twice, so the intended place is ambiguous."""
    lines = source(rng)
    start = pick(rng, lines)
    piece = lines[start : start + 3]
    lines += ["", "", "def again():", *piece]
    answer = (
        block(piece, changed(rng, piece)) if rng.random() < 0.5 else diff(piece, changed(rng, piece), start + 1)
    )
    return Case(joined(lines), answer, None)


def repeated_but_told_apart(rng: random.Random) -> Case:
    """The same lines occur twice; the quote includes the line before, which differs."""
    lines = source(rng)
    start = pick(rng, lines)
    piece = lines[start : start + 3]
    lines += ["", "", "def again():", *piece]
    at = len(lines) - 4
    new = ["def again():", *changed(rng, piece)]
    return Case(joined(lines), block(["def again():", *piece], new), joined(replaced(lines, at, 4, new)))


def crlf(rng: random.Random) -> Case:
    case = plain(rng)
    assert case.expected is not None
    return Case(case.file.replace("\n", "\r\n"), case.answer, case.expected.replace("\n", "\r\n"))


def crlf_answer(rng: random.Random) -> Case:
    case = plain(rng)
    return Case(case.file, case.answer.replace("\n", "\r\n"), case.expected)


def mixed_endings(rng: random.Random) -> Case:
    """Every line keeps its line ending, also a changed one."""
    lines = source(rng)
    start = pick(rng, lines)
    endings = [rng.choice(("\n", "\n", "\n", "\r\n")) for _ in lines]
    old, new = lines[start], lines[start] + "  # noted"
    answer = block([old, lines[start + 1]], [new, lines[start + 1]])
    before = "".join(a + b for a, b in zip(lines, endings, strict=True))
    after_pairs = list(zip(lines, endings, strict=True))
    after_pairs[start] = (new, endings[start])
    return Case(before, answer, "".join(a + b for a, b in after_pairs))


def tabs(rng: random.Random) -> Case:
    """The file is indented with tabs, the answer with spaces."""

    def tabbed(line: str) -> str:
        body = line.lstrip(" ")
        return "\t" * ((len(line) - len(body)) // 4) + body

    lines = source(rng)
    start = pick(rng, lines)
    piece = lines[start : start + 3]
    if not all(line.startswith(" ") for line in piece):
        piece, start = lines[start + 1 : start + 3], start + 1
    new = changed(rng, piece)
    expected = replaced([tabbed(x) for x in lines], start, len(piece), [tabbed(x) for x in new])
    return Case(joined([tabbed(x) for x in lines]), block(piece, new), joined(expected))


def trailing_space(rng: random.Random) -> Case:
    """The file has trailing blanks that the answer omits; unchanged lines keep theirs."""
    lines = source(rng)
    start = pick(rng, lines)
    lines[start] += "  "
    piece = lines[start : start + 3]
    new = [piece[0], piece[1] + "  # seen", piece[2]]
    answer = block([x.rstrip() for x in piece], [x.rstrip() for x in new])
    return Case(joined(lines), answer, joined(replaced(lines, start, 3, new)))


def outer_blanks(rng: random.Random) -> Case:
    lines = source(rng)
    start = pick(rng, lines)
    piece = lines[start : start + 3]
    new = changed(rng, piece)
    return Case(joined(lines), block(["", *piece, ""], ["", *new, ""]), joined(replaced(lines, start, 3, new)))


def no_newline_at_end(rng: random.Random) -> Case:
    lines = source(rng)
    piece = lines[-3:]
    new = [*piece, "    # the end"]
    return Case(joined(lines).removesuffix("\n"), block(piece, new), joined(lines[:-3] + new).removesuffix("\n"))


def near_miss(rng: random.Random) -> Case:
    """One character of the quoted code differs from the file, so the author saw different code."""
    lines = source(rng)
    start = pick(rng, lines)
    piece = lines[start : start + 3]
    wrong = list(piece)
    at = rng.randrange(3)
    wrong[at] = wrong[at].replace("_", "_x", 1) if "_" in wrong[at] else wrong[at] + "0"
    return Case(joined(lines), block(wrong, changed(rng, wrong)), None)


def near_miss_with_twin(rng: random.Random) -> Case:
    """The intended code was changed meanwhile, and a copy elsewhere matches except for its indentation."""
    lines = source(rng)
    start = pick(rng, lines)
    piece = lines[start : start + 3]
    lines[start + 2] += " + 1"
    lines += ["", "", "class Twin:", "    if True:", *("    " + line for line in piece)]
    if all(not line.startswith(" ") for line in piece):
        return near_miss(rng)
    return Case(joined(lines), block(piece, changed(rng, piece)), None)


def applied_already(rng: random.Random) -> Case:
    case = plain(rng)
    assert case.expected is not None
    return Case(case.expected, case.answer, None)


def real_diff(rng: random.Random) -> Case:
    """A diff by difflib over several places of the file, with correct or wrong line counts."""
    import difflib

    lines = source(rng, 9)
    after = list(lines)
    for start in sorted({pick(rng, lines) for _ in range(3)}, reverse=True):
        after[start] = after[start] + "  # touched"
    text = "\n".join(difflib.unified_diff(lines, after, "a/a.py", "b/a.py", lineterm="", n=3))
    if rng.random() < 0.5:
        text = "\n".join("@@ ... @@" if line.startswith("@@") else line for line in text.split("\n"))
    return Case(joined(lines), f"Here it is:\n\n```diff\n{text}\n```\nDone.\n", joined(after))


def hostile(rng: random.Random) -> Case:
    """Answers that are truncated, contradictory or made to confuse the parser; none may change the file."""
    lines = source(rng)
    start = pick(rng, lines)
    piece = lines[start : start + 3]
    new = changed(rng, piece)
    good = block(piece, new)
    answers = (
        good.replace(">>>>>>> REPLACE\n", ""),
        good.replace("=======\n", ""),
        block([piece[0], "=======", *piece[1:]], new),
        block(piece, [*new, "======="]),
        block([piece[0], "    ...", piece[2]], new),
        block(["", "  ", ""], new),
        good.replace("a.py\n", "", 1),
        good.replace("<<<<<<< SEARCH", "<<<<<<< SEARCH\n<<<<<<< SEARCH"),
        block(piece, piece),
        diff(piece, new, 1).replace("--- a/a.py", "--- a/other.py"),
        diff([], ["injected = 1"], 5),
        diff(["", ""], ["injected = 1"], 5),
        "--- a/a.py\n+++ b/a.py\n",
        "--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n import os\nwhat is this\n+x\n",
        "--- a/a.py\n+++ b/a.py\n@@ -1,1 +1,1 @@\n import os\n",
        "--- a/a.py\n+++ /dev/null\n@@ -1,1 +0,0 @@\n-import os\n",
        block([""], ["overwritten = 1"]),
    )
    return Case(joined(lines), answers[rng.randrange(len(answers))], None)


MAKERS: tuple[tuple[Callable[[random.Random], Case], int], ...] = (
    (plain, 20),
    (moved, 20),
    (reindented, 20),
    (first_line_stripped, 15),
    (repeated, 15),
    (repeated_but_told_apart, 15),
    (crlf, 15),
    (crlf_answer, 10),
    (mixed_endings, 15),
    (tabs, 20),
    (trailing_space, 10),
    (outer_blanks, 10),
    (no_newline_at_end, 10),
    (near_miss, 20),
    (near_miss_with_twin, 15),
    (applied_already, 10),
    (real_diff, 15),
    (hostile, 60),
)


def test_the_corpus_has_at_least_two_hundred_cases():
    assert sum(number for _, number in MAKERS) >= 200


@pytest.mark.parametrize(("maker", "number"), MAKERS, ids=[maker.__name__ for maker, _ in MAKERS])
def test_an_edit_applies_exactly_or_is_refused_with_a_reason(maker, number):
    for seed in range(number):
        case = maker(random.Random(f"{maker.__name__}-{seed}"))
        answer = parse_answer(case.answer)
        hunks = [hunk for hunk in answer.hunks if hunk.path == "a.py"]
        result = apply_hunks(case.file, hunks)
        if case.expected is not None:
            assert (seed, result.text) == (seed, case.expected), result.outcomes
            assert not answer.malformed
            assert all(isinstance(outcome, Applied) for outcome in result.outcomes)
        else:
            assert result.text == case.file
            assert not any(isinstance(outcome, Applied) for outcome in result.outcomes)
            reasons = [m.reason for m in answer.malformed] + [
                o.reason for o in result.outcomes if isinstance(o, Refused)
            ]
            assert reasons
            assert all(reasons)
