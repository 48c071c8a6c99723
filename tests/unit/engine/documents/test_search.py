"""Finding passages: both ways fused by score, pages before more of the same page."""

import numpy as np
import pytest

from engine.documents.search import evidence, find
from engine.documents.store import Store
from engine.documents.types import Chunk, PageRead
from engine.documents.vectors import Vectors, packed

# Page 1 says most about rust; page 2 names it once; page 3 is what the vector points at and holds no word of it.
PAGES = (
    ("Rust eats iron. Rust is red, rust is brown.", "Rust again, on every rail and rust on every nail."),
    ("The bridge was painted because of rust, says the report of the year.",),
    ("Corrosion of metal in salt water.",),
)


@pytest.fixture
def store(tmp_path):
    made = Store(tmp_path / "index.db")
    ticket = made.begin("/a.txt", "text", 1, 1, "a")
    pages = [
        PageRead(number, "", tuple(Chunk("", "text", text) for text in texts))
        for number, texts in enumerate(PAGES, 1)
    ]
    made.add_pages(ticket, pages, done=True)
    made.use_model("m")
    rows = ((0.6, 0.8), (0.5, 0.866), (0.1, 0.995), (1.0, 0.0))
    chunks = made.chunks_of(ticket.document_id)
    made.add_vectors("m", [(c.id, packed(np.array(row))) for c, row in zip(chunks, rows, strict=True)])
    yield made
    made.close()


def pages(store, ways, limit=3, vector=(1.0, 0.0)):
    return [hit.page for hit in find(store, Vectors(store), "What does rust do?", np.array(vector), ways, limit)]


def test_each_page_comes_before_more_of_one(store):
    assert pages(store, "words", 2) == [1, 2]
    assert pages(store, "words", 3) == [1, 2, 1]


def test_both_ways_find_what_one_of_them_misses(store):
    assert pages(store, "meaning", 1) == [3]
    assert pages(store, "both", 3) == [1, 3, 2]


def test_scores_are_shares_of_the_most_there_can_be(store):
    hits = find(store, Vectors(store), "What does rust do?", np.array((1.0, 0.0)), "both", 4)
    scores = [hit.score for hit in hits if hit.page != 1]
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= hit.score <= 1 for hit in hits)
    (best,) = find(store, Vectors(store), "rust", None, "words", 1)
    assert best.score == 1.0


def test_other_texts_before_the_passages_make_all_vectors_anew(store):
    vectors = Vectors(store)
    old = {chunk_id for chunk_id, _ in vectors.nearest(np.array((1.0, 0.0)), 9)}
    assert not store.use_model("m")
    assert store.use_model("m", "passage: ")
    assert store.counts().embedded == 0
    store.add_vectors("m", [(min(old), packed(np.array((1.0, 0.0))))])
    assert vectors.nearest(np.array((1.0, 0.0)), 9) == [(min(old), pytest.approx(1.0, abs=1e-3))]
    assert not store.use_model("m", "passage: ")


def test_cosines_of_a_model_that_has_them_close_together_count_from_where_they_begin(store):
    # The vector of page 3 is (1, 0); seen from (.9, .44) it has .9, and page 1 with most words has .89 and .83.
    seen_from = np.array((0.9, 0.436))
    plain = find(store, Vectors(store), "salt", seen_from, "both", 9)
    counted = find(store, Vectors(store), "salt", seen_from, "both", 9, 0.7)
    assert [hit.id for hit in plain] == [hit.id for hit in counted]
    for before, after in zip(plain, counted, strict=True):
        assert after.cosine == pytest.approx((before.cosine - 0.7) / 0.3)
    question = "Who won the chess championship of 1972?"
    hits = [find(store, Vectors(store), question, seen_from, "both", 9, floor) for floor in (0.0, 0.7)]
    assert [evidence(store, question, found).found for found in hits] == [True, False]
