"""The check of an answer's sentences against their source passages."""

from pathlib import Path

import apsw
import msgspec
import numpy as np
import pytest

from engine.documents.citation_check import check, sentences, windows
from engine.documents.query_terms import Stemmer

SENTENCES = Path(__file__).parents[3] / "bench" / "documents"

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


def test_a_short_sentence_is_checked_only_if_it_is_about_the_passages():
    stems = Stemmer(apsw.Connection(":memory:")).stems
    given = windows(["The stew keeps for three days and must not be frozen."])
    checked = check(sentences("The stew can be frozen. I hope this helps."), given, stems)
    assert [(v.start, v.carried, v.doubt) for v in checked] == [(0, False, "negation")]


def test_a_number_in_words_is_the_number():
    stems = Stemmer(apsw.Connection(":memory:")).stems
    given = windows(["Die Versicherung zahlt nur, wenn der Schaden innerhalb von 7 Tagen gemeldet wird."])
    assert check(sentences("Der Schaden muss innerhalb von sieben Tagen gemeldet werden."), given, stems)[0].carried


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


def counted(name):
    """(found false sentences, all false ones, alarms, all true sentences) of a labelled file, by words alone."""
    own = Stemmer(apsw.Connection(":memory:")).stems
    rows = [msgspec.json.decode(line) for line in (SENTENCES / name).read_bytes().splitlines()]
    found, alarms, all_false = 0, [], 0
    for place, row in enumerate(rows):
        given = windows([rows[(place + k) % len(rows)]["passage"] for k in range(6)])
        for false in row["false"]:
            all_false += 1
            found += not all(v.carried for v in check(sentences(false["text"]), given, own))
        alarms += [t for t in row["true"] if not all(v.carried for v in check(sentences(t), given, own))]
    return found, all_false, alarms, sum(len(row["true"]) for row in rows)


@pytest.mark.parametrize(
    ("name", "found_at_least", "alarms_at_most"),
    [
        ("sentences.jsonl", 55, 3),  # committed before the check was written
        ("sentences_second.jsonl", 49, 1),
        ("sentences_third.jsonl", 59, 2),
        ("sentences_fourth.jsonl", 56, 2),
        ("sentences_fifth.jsonl", 57, 3),
        ("sentences_sixth.jsonl", 52, 5),  # no rule was written for these
    ],
)
def test_false_sentences_are_marked_and_true_ones_are_not(name, found_at_least, alarms_at_most):
    found, all_false, alarms, all_true = counted(name)
    assert all_false == all_true >= 50
    assert found >= found_at_least
    assert len(alarms) <= alarms_at_most, alarms


@pytest.mark.parametrize(
    ("source", "answer"),
    [
        ("Revenue rose by 8 % in May, while profit fell.", "Profit rose by 8 % in May."),
        ("Old boats pay 9 euros at Tay. New boats with sails pay half.", "New boats pay 9 euros at Tay."),
        ("Keys are stored as Blake3 sums here.", "Keys are stored as plain sums here."),
        ("open() with mode='x' fails.", "open() with mode='w' fails."),
        ("The council rejected the plan for the park.", "The council approved the plan for the park."),
        ("In the final Tay beat Dee 3:1.", "In the final Dee beat Tay 3:1."),
    ],
)
def test_other_words_in_one_place_are_marked(source, answer):
    own = Stemmer(apsw.Connection(":memory:")).stems
    (verdict,) = check(sentences(answer), windows([source]), own)
    assert not verdict.carried


@pytest.mark.parametrize(
    ("source", "answer"),
    [
        ("Fire damage is excluded here.", "Fire damage is not covered here."),
        ("Do not touch the valve during the test.", "Touching the valve during the test must be avoided."),
        ("Motors are checked yearly, pumps are not.", "Pumps are not checked."),
        ("The tank is filled unless a pump runs.", "The tank is not filled while a pump runs."),
        ("Das Haus hat 20 Zimmer, und der Garten ist groß.", "Das Haus hat 20 große Zimmer und einen Garten."),
        ("Anna Tay won the race twice.", "Anna Tay won the race two times."),
        ("The wall of 20 metres has 46 stones.", "46 stones are in the 20-metre wall."),
        ("The hall holds 1,860 people.", "The hall holds 1860 people."),
        ("The plan supports boats, carts and trains.", "The plan supports trains."),
        ("Tay leads the yard. She built the crane.", "Tay built the crane."),
    ],
)
def test_the_same_in_other_words_is_not_marked(source, answer):
    own = Stemmer(apsw.Connection(":memory:")).stems
    assert [v.carried for v in check(sentences(answer), windows([source]), own)] == [True]


def test_a_row_of_a_table_is_compared_by_itself():
    own = Stemmer(apsw.Connection(":memory:")).stems
    table = windows(["Town | Mayor | Area\nTay | Ann Dee | 41 km\nForth | Per Don | 88 km"])
    answers = ["The mayor of Forth is Per Don.", "The mayor of Forth is Ann Dee."]
    assert [check(sentences(answer), table, own)[0].carried for answer in answers] == [True, False]


@pytest.mark.parametrize(
    ("source", "answer", "doubt"),
    [
        ("The pump does not start below 5 degrees.", "The pump starts below 5 degrees.", "negation"),
        ("The pump starts below 5 degrees.", "The pump never starts below 5 degrees.", "negation"),
        ("Die Pumpe startet nicht bei Frost.", "Die Pumpe startet bei Frost immer.", "negation"),
        ("Dr. Seidel runs the mine at Tay.", "The mine at Tay is run by Dr. Seidel.", ""),
        ("Das Gerät ist nicht wasserdicht.", "Wasserdicht ist das Gerät nicht.", ""),
        (
            "The law covers motors for 36 months, and pumps for 12 months.",
            "The law covers pumps for 12 months.",
            "",
        ),
        (
            "The law covers motors for 36 months, and pumps for 12 months.",
            "The law covers motors for 12 months.",
            "apart",
        ),
        ("Never freeze the stew. Stir it.", "Freeze the stew.", "negation"),
        ("Swallow the tablets after a meal.", "Swallow the tablets before a meal.", "negation"),
        (
            "Die Tabletten werden nach dem Essen geschluckt.",
            "Die Tabletten werden vor dem Essen geschluckt.",
            "negation",
        ),
        ("The valve opens after the pump starts.", "The pump starts before the valve opens.", ""),
        ("The pump needs no more than 5 litres.", "The pump needs 5 litres.", ""),
        ("NOT NULL is enforced in the table.", "NOT NULL is enforced in this table.", ""),
        ("The small pump has 4 valves and the large pump has 9 valves.", "The large pump has 4 valves.", "apart"),
        ("The small pump has 4 valves and the large pump has 9 valves.", "The large pump has 9 valves.", ""),
        ("pump.speed defaults to 10. pump.delay defaults to 20.", "pump.speed defaults to 20.", "apart"),
        ("The seller owes the buyer a deposit.", "The buyer owes the seller a deposit.", "order"),
        ("The seller pays the buyer.", "The buyer is paid by the seller.", ""),
        ("Never start the pump without oil.", "The pump must never start without oil.", ""),
        ("The pump starts without oil.", "The pump starts with oil.", "negation"),
        ("The lake is no longer used for drinking water.", "The lake is not used for drinking water.", ""),
        ("On 3 May 2021 the level at Bonn was 8 m.", "The level at Bonn was 8 m on 3 May 2021.", ""),
        ("The pump has 1,250,000 cycles.", "The pump has 1250000 cycles.", ""),
        ("Die Pumpe kostet 1.480,50 Euro im Jahr.", "Die Pumpe kostet 1480,50 Euro im Jahr.", ""),
        (
            "Der Kunde schaltet die Pumpe nach 7 Tagen ein.",
            "Der Kunde schaltet die Pumpe nach sieben Tagen ein.",
            "",
        ),
        (
            "The bank sends the money in two days. The client pays the fee.",
            "The client sends the money in two days.",
            "apart",
        ),
    ],
)
def test_words_that_say_something_else_are_doubtful(source, answer, doubt):
    own = Stemmer(apsw.Connection(":memory:")).stems
    (verdict,) = check(sentences(answer), windows([source]), own)
    assert (verdict.doubt, verdict.carried) == (doubt, not doubt)
    assert verdict.missing == ()


@pytest.mark.parametrize(
    ("source", "answer", "missing"),
    [
        (
            "Sales rose to 15.1 million euros in Spain.",
            "Sales rose to 15.1 billion euros in Spain.",
            ("15.1 billion",),
        ),
        (
            "Tickets are valid for 90 days after the sale.",
            "Tickets are valid for 90 hours after the sale.",
            ("90 hours",),
        ),
        (
            "Tickets are valid for 90 s after the sale.",
            "Tickets are valid for 90 days after the sale.",
            ("90 days",),
        ),
        ("Der Vertrag beginnt am 1. März 2023.", "Der Vertrag beginnt am 1. Mai 2023.", ("Mai",)),
        ("The tank holds 1,250,000 litres of water.", "The tank holds 12,500 litres of water.", ("12,500",)),
    ],
)
def test_a_value_is_a_number_with_its_unit(source, answer, missing):
    own = Stemmer(apsw.Connection(":memory:")).stems
    (verdict,) = check(sentences(answer), windows([source]), own)
    assert (verdict.carried, verdict.missing) == (False, missing)


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
