"""The check of an answer's sentences against the passages it was made from."""

import numpy as np
import pytest

from engine.documents.citation_check import check, sentences, windows

PASSAGES = [
    "The bridge at Tay was opened in 1878. It fell in a storm on 28 December 1879.",
    "Its engineer was Thomas Bouch, who died within a year.",
]


def stems(text):
    return [word.strip(".,?!").lower().removesuffix("s") for word in text.split()]


def verdicts(answer):
    return check(sentences(answer), windows(PASSAGES), stems)


def test_sentences_are_found_with_their_places():
    answer = "The bridge opened in 1878 [1]. It was No. 5 of the line.\n\nYes. Its engineer was Thomas Bouch [2]."
    found = sentences(answer)
    assert [answer[s.start : s.end] for s in found] == [
        "The bridge opened in 1878 [1].",
        "Its engineer was Thomas Bouch [2].",
    ]


@pytest.mark.parametrize(
    ("answer", "carried", "passage"),
    [
        ("The bridge at Tay opened in 1878.", True, 1),
        ("Its engineer Thomas Bouch died within a year.", True, 2),
        ("The bridge at Tay opened in 1887.", False, 1),
        ("Its engineer Thomas Edison died within a year.", False, 2),
        ("Penguins eat krill near the southern ice.", False, 0),
    ],
)
def test_what_no_passage_says_is_not_carried(answer, carried, passage):
    (verdict,) = verdicts(answer)
    assert (verdict.carried, verdict.passage) == (carried, passage)


def test_a_wrong_number_or_name_is_told():
    (verdict,) = verdicts("The bridge at Tay opened in 1887 for Queen Victoria.")
    assert verdict.missing == ("1887", "Queen", "Victoria")


def test_meaning_carries_what_other_words_say():
    asked, pieces = sentences("The bridge collapsed after one and a half years of storm."), windows(PASSAGES)
    assert not check(asked, pieces, stems)[0].carried
    rows = np.eye(len(pieces) + 1, dtype=np.float32)
    assert not check(asked, pieces, stems, (rows[-1:], rows[:-1]))[0].carried
    assert check(asked, pieces, stems, (rows[:1], rows[:-1]))[0].carried


def test_no_passages_carry_nothing():
    assert [v.carried for v in check(sentences("The bridge at Tay opened."), [], stems)] == [False]
