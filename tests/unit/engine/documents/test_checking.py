"""The check of an answer's sentences against the passages it was made from."""

from pathlib import Path

import apsw
import msgspec
import numpy as np
import pytest

from engine.documents.citation_check import check, sentences, windows
from engine.documents.query_terms import Stemmer

SENTENCES = Path(__file__).parents[3] / "bench" / "documents" / "sentences.jsonl"

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


def test_false_sentences_are_marked_and_true_ones_are_not():
    """By words alone; labelled before the check was written. With vectors: 55 of 60 and 4 of 60."""
    own = Stemmer(apsw.Connection(":memory:")).stems
    rows = [msgspec.json.decode(line) for line in SENTENCES.read_bytes().splitlines()]
    found, alarms, all_false = 0, [], 0
    for place, row in enumerate(rows):
        given = windows([rows[(place + k) % len(rows)]["passage"] for k in range(6)])
        for false in row["false"]:
            all_false += 1
            found += not all(v.carried for v in check(sentences(false["text"]), given, own))
        alarms += [t for t in row["true"] if not all(v.carried for v in check(sentences(t), given, own))]
    assert (all_false, sum(len(row["true"]) for row in rows)) == (60, 60)
    assert found >= 54
    assert len(alarms) <= 4, alarms


@pytest.mark.parametrize(
    ("source", "answer", "doubt"),
    [
        ("The pump does not start below 5 degrees.", "The pump starts below 5 degrees.", "negation"),
        ("The pump starts below 5 degrees.", "The pump never starts below 5 degrees.", "negation"),
        ("Die Pumpe startet nicht bei Frost.", "Die Pumpe startet bei Frost immer.", "negation"),
        ("The pump needs no more than 5 litres.", "The pump needs 5 litres.", ""),
        ("NOT NULL is enforced in the table.", "NOT NULL is enforced in this table.", ""),
        ("The small pump has 4 valves and the large pump has 9 valves.", "The large pump has 4 valves.", "apart"),
        ("The small pump has 4 valves and the large pump has 9 valves.", "The large pump has 9 valves.", ""),
        ("pump.speed defaults to 10. pump.delay defaults to 20.", "pump.speed defaults to 20.", "apart"),
        ("The seller owes the buyer a deposit.", "The buyer owes the seller a deposit.", "order"),
        ("The seller pays the buyer.", "The buyer is paid by the seller.", ""),
    ],
)
def test_words_that_say_something_else_are_doubtful(source, answer, doubt):
    own = Stemmer(apsw.Connection(":memory:")).stems
    (verdict,) = check(sentences(answer), windows([source]), own)
    assert (verdict.doubt, verdict.carried) == (doubt, not doubt)
    assert verdict.missing == ()


def test_a_number_of_another_sentence_does_not_support():
    passage = "The bridge has 12 arches. It was built by Bouch. The tunnel has 40 lamps, all of them new."
    own = Stemmer(apsw.Connection(":memory:")).stems
    (verdict,) = check(sentences("The bridge has 40 arches."), windows([passage]), own)
    assert (verdict.carried, verdict.missing) == (False, ("40",))


def test_a_sentence_without_end_is_checked_in_linear_time():
    own = Stemmer(apsw.Connection(":memory:")).stems
    words = [f"w{number}x" for number in range(3000)]
    text = " ".join(words) + "."
    (verdict,) = check(sentences(text), windows([" ".join(reversed(words)) + "."]), own)
    assert verdict.doubt == "order"
