"""The text that is searched for: a message that is complete by itself, or one with the topic it refers to."""

import pytest

from engine.chat.query import ChatQuery
from engine.chat.types import Message
from engine.server.documents.questions import interleaved, parts_of, points_back, questions_of


@pytest.mark.parametrize(
    "text",
    [
        "Who founded Town07?", "What is photosynthesis?", "How do I reset the pump?", "Rent of 2019?",
        "Is there a limit on passages?",
        "Which files does the backup leave out?", "In this document, who signs the lease?",
        "Wer hat Town07 gegr\u00fcndet?", "Explain the difference between a mutex and a semaphore.",
    ],
)  # fmt: skip
def test_a_whole_question_is_searched_alone(text):
    assert not points_back(text)
    assert questions_of(chat("Who founded Town09 and why?", text)) == (text,)


@pytest.mark.parametrize(
    "text",
    [
        "Why?", "And Town08?", "When was it built?", "Who paid for that?", "How many people live there?",
        "Which year?", "What about the mayor?", "Tell me more", "And who founded Town08?", "Is this one larger?",
        "Und wann?", "Are they safe?",
    ],
)  # fmt: skip
def test_one_that_points_back_is_searched_alone_and_with_its_topic(text):
    assert points_back(text)
    assert questions_of(chat("Who founded Town07?", text)) == (text, f"Who founded Town07?\n{text}")


def chat(*questions):
    told = []
    for question in questions:
        told += [Message(role="user", content=question), Message(role="assistant", content="Yes.")]
    return ChatQuery(messages=tuple(told[:-1]))


def test_a_chain_of_them_leads_back_to_the_topic_and_no_further():
    asked = chat("Who founded Town01?", "Who founded Town07?", "When was it?", "And why?")
    assert questions_of(asked)[1] == "Who founded Town07?\nWhen was it?\nAnd why?"
    assert questions_of(chat("Why?")) == ("Why?",)
    assert questions_of(ChatQuery(messages=())) == ()
    assert len(questions_of(chat("a" * 9000, "Why? " * 2000))[1]) == 4000


def test_rankings_take_turns_and_repeat_nothing():
    assert interleaved([[1, 2, 3], [3, 4]], lambda item: item) == [1, 3, 2, 4]
    assert interleaved([], lambda item: item) == []


@pytest.mark.parametrize(
    ("question", "parts"),
    [
        ("Which port does ipp use?", ()),
        ("Which module reads zip files, and which one writes tar files?",
         ("Which module reads zip files", "which one writes tar files")),
        ("How does a mutex differ from a lock? How is a semaphore made?",
         ("How does a mutex differ from a lock", "How is a semaphore made")),
        ("Compare the lease of 2019 with the deposit and the rent of 2020",
         ("Compare the lease of 2019 with the deposit", "the rent of 2020")),
        ("Is Rust faster than Go?", ("Is Rust faster", "Go")),
        ("Was ist der Unterschied zwischen Miete und Pacht?", ("Was ist der Unterschied zwischen Miete", "Pacht")),
        ("What does git stash do and what does it leave out?", ("What does git stash do",)),
        ("How do gzip and bz2 differ in their default level?", ("How do gzip",)),
        ("What is this and that or which?", ()),
        ("a1 and b2 and c3 and d4 and e5", ()),
    ],
)  # fmt: skip
def test_a_question_with_several_subjects_has_parts(question, parts):
    assert parts_of(question) == parts
