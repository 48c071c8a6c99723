"""Searching passages: keyword and semantic scores are combined; other pages rank before more of the same page."""

import asyncio
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from engine.documents.search import by_codes, evidence, find, spread, widened
from engine.documents.store import Store
from engine.documents.types import Chunk, PageRead, Passage
from engine.documents.vectors import Vectors, packed

# Page 1 is mostly about rust; page 2 mentions it once; page 3 has the query's vector and none of its words.
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
    # The vector of page 3 is (1, 0). Its cosine with (0.9, 0.44) is 0.9; page 1 with most words has 0.89 and 0.83.
    seen_from = np.array((0.9, 0.436))
    plain = find(store, Vectors(store), "salt", seen_from, "both", 9)
    counted = find(store, Vectors(store), "salt", seen_from, "both", 9, 0.7)
    assert [hit.id for hit in plain] == [hit.id for hit in counted]
    for before, after in zip(plain, counted, strict=True):
        assert after.cosine == pytest.approx((before.cosine - 0.7) / 0.3)
    question = "Who won the chess championship of 1972?"
    hits = [find(store, Vectors(store), question, seen_from, "both", 9, floor) for floor in (0.0, 0.7)]
    assert [evidence(store, question, found).found for found in hits] == [True, False]


@pytest.fixture
def manuals(tmp_path):
    """Two manuals: five pages of one about ports, and one page of the other."""
    made = Store(tmp_path / "manuals.db")
    table = "\n".join(["code | meaning", *(f"{number} | entry of the list" for number in range(100, 140))])
    texts = {
        "/firewall.txt": [f"A firewall closes port {n}: the name of the port is in the list." for n in range(5)],
        "/printer.txt": ["A printer has a port on its back.", "The condition has a name."],
        "/filler.txt": [f"Paragraph {n} is about other things. " * 15 for n in range(40)],
        "/codes.txt": [f"{table}\n40112 | division by zero"],
    }
    for path, pieces in texts.items():
        pages = [PageRead(n, "", (Chunk("", "text", text),)) for n, text in enumerate(pieces, 1)]
        made.add_pages(made.begin(path, "text", 1, 1, ""), pages, done=True)
    yield made
    made.close()


def names(hits):
    return [hit.path.strip("/").removesuffix(".txt") for hit in hits]


def test_one_manual_does_not_fill_the_first_places(manuals):
    hits = find(manuals, Vectors(manuals), "firewall port", None, "words", 9)
    assert names(hits)[:5] == ["firewall"] * 5
    assert names(spread(hits))[:4] == ["firewall"] * 3 + ["printer"]
    assert sorted(h.id for h in spread(hits)) == sorted(h.id for h in hits)


@pytest.mark.parametrize("code", ["40112", "division_by_zero"])
def test_the_row_with_the_code_comes_before_short_passages_with_the_words_around_it(manuals, code):
    hits = find(manuals, Vectors(manuals), f"What is the condition name of {code}?", None, "words", 3)
    assert names(hits)[0] == "codes"
    assert hits[0].score <= 1


def test_a_code_that_is_everywhere_selects_nothing(manuals):
    assert by_codes(manuals, "What is the USB port?") == {}
    assert by_codes(manuals, "What does division.by.zero mean?")


def test_a_passage_is_given_with_its_neighbours_and_each_text_once(store):
    (page,) = [store.chunks_of(1, 1)]
    assert [chunk.id for chunk in widened(page, page[1].id, ())] == [page[0].id, page[1].id]
    assert [chunk.id for chunk in widened(page, page[1].id, {page[0].id})] == [page[1].id]
    long = [msgspec.structs.replace(chunk, id=n, text="x" * 600) for n, chunk in enumerate([page[0]] * 5)]
    assert [chunk.id for chunk in widened(long, 2, ())] == [2, 3]


def test_the_same_text_in_a_renamed_folder_keeps_its_vector(store):
    chunks = [Chunk("", "text", text) for text in PAGES[0]]
    store.remove(["/a.txt"])
    assert store.counts().embedded == 0
    store.add_pages(store.begin("/b/a.txt", "text", 1, 1, "a"), [PageRead(1, "", tuple(chunks))], done=True)
    assert store.counts().embedded == 2
    store.add_pages(store.begin("/b/c.txt", "text", 1, 1, "c"), [PageRead(1, "", tuple(chunks))], done=True)
    assert store.counts().embedded == 2  # another title, which is embedded too
    store.remove(["/b/a.txt"])
    store.forget_spare()
    store.add_pages(store.begin("/a.txt", "text", 1, 1, "a"), [PageRead(1, "", tuple(chunks))], done=True)
    assert store.counts().embedded == 0


def test_a_late_reranker_is_left_behind_but_ends_its_work():
    from engine.server.documents.service import _in_time

    async def both():
        ready, loaded = asyncio.Event(), []

        async def rerank():
            await ready.wait()
            loaded.append(True)
            return [2, 1]

        assert await _in_time(rerank(), 0.01) is None
        ready.set()
        while not loaded:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert await _in_time(rerank(), 60) == [2, 1]

    asyncio.run(both())


@pytest.mark.parametrize(("stuck_at", "seconds", "expected"), [(3, 60.0, 10), (1, 0.5, 4), (0, 0.5, 0)])
def test_a_slow_reranker_orders_the_passages_that_it_reads_in_time(monkeypatch, stuck_at, seconds, expected):
    """The best passages are read first; late ones are cancelled, so that they use no more CPU time."""
    from engine.server.documents import service

    hits = [Passage(id=number, document=1, path="/a", title="a", page=1) for number in range(10)]
    ended = []

    class Slow:
        async def embed(self, texts, **_):
            if len(ended) == stuck_at:
                try:
                    await asyncio.Event().wait()
                finally:
                    ended.append("cancelled")
            ended.append(len(texts))
            return SimpleNamespace(vectors=[np.float32(len(ended) * 10 + i).tobytes() for i in range(len(texts))])

    async def acquire(name, **_):
        return SimpleNamespace(runner=Slow())

    monkeypatch.setattr(service, "_RERANK_S", seconds)
    fake = SimpleNamespace(_pool=SimpleNamespace(acquire=acquire))
    ranked = asyncio.run(service.CollectionService._reranked(fake, service.Chosen("m"), "question", hits))
    assert [hit.id for hit in ranked] == list(range(10))[:expected][::-1]
    assert ended == {10: [4, 4, 2], 4: [4, "cancelled"], 0: ["cancelled"]}[expected]
