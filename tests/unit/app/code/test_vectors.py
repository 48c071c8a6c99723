import zlib

import numpy as np
import pytest

from app.client import ApiError
from app.code.context.assemble import assemble, with_meaning
from app.code.index.database import ChunkHit
from app.code.index.vectors import VectorIndex

pytestmark = pytest.mark.process

SYNONYMS = {"rocket": "spaceship", "launching": "deploying", "round": "circle", "thing": "circle"}


class Meaning:
    """Embeds a text as a bag of words, in which synonyms are one word."""

    def __init__(self, width=512):
        self.width, self.texts = width, []

    def __call__(self, texts):
        self.texts += texts
        rows = np.zeros((len(texts), self.width))
        for row, text in zip(rows, texts, strict=True):
            for word in text.lower().replace("#", " ").replace(".", " ").split():
                row[zlib.crc32(SYNONYMS.get(word, word).encode()) % self.width] += 1
        return rows.tolist()


def test_meaning_finds_what_words_do_not(index):
    index.refresh()
    vectors = VectorIndex(index, "m", Meaning())
    assert vectors.search("anything") == []
    assert vectors.update(60) == 0
    assert vectors.search("launching a rocket")[0].path == "tool.sh"
    question = "launching a rocket"
    plain = assemble(index, question, 300, len)
    assert "tool.sh" not in [p.path for p in plain.items]
    found = assemble(index, question, 3000, len, vectors=vectors)
    assert found.items[0].path == "tool.sh"


def test_only_what_changed_is_embedded_again(index, project):
    index.refresh()
    meaning = Meaning()
    vectors = VectorIndex(index, "m", meaning)
    vectors.update(60)
    first = len(meaning.texts)
    assert first == index.database.num_chunks()
    assert vectors.update(60) == 0
    assert len(meaning.texts) == first
    (project / "tool.sh").write_text("sail() {\n  echo sailing the boat\n}\n")
    index.update(["tool.sh"])
    vectors.update(60)
    assert len(meaning.texts) == first + 1
    assert vectors.search("sailing the boat")[0].path == "tool.sh"
    (project / "tool.sh").unlink()
    index.refresh()
    assert "tool.sh" not in [hit.path for hit in vectors.search("sailing the boat")]


def test_a_new_chunk_is_not_found_by_the_vector_of_a_deleted_one(index, project):
    index.refresh()
    (project / "last.sh").write_text("launch() {\n  echo launching a rocket\n}\n")
    index.update(["last.sh"])
    vectors = VectorIndex(index, "m", Meaning())
    vectors.update(60)
    assert "last.sh" in [hit.path for hit in vectors.search("launching a rocket")[:2]]
    (project / "last.sh").write_text("sail() {\n  echo sailing the boat\n}\n")
    index.update(["last.sh"])
    assert "last.sh" not in [hit.path for hit in vectors.search("launching a rocket")]


def test_a_time_limit_stops_between_batches_and_another_model_starts_anew(index):
    index.refresh()
    slow = VectorIndex(index, "m", Meaning())
    assert slow.update(-1) == index.database.num_chunks()
    slow.update(60)
    other = VectorIndex(index, "other", Meaning(64))
    assert other.search("circle") == []
    assert other.update(60) == 0
    assert other.search("circle")


def test_chunks_found_by_meaning_follow_the_first_three_found_by_words():
    words = [ChunkHit(f"word{number}.py", 1, 20, 1.0) for number in range(5)]
    near = [
        ChunkHit("near.py", 1, 9, 0.5),
        ChunkHit("word1.py", 5, 9, 0.4),
        ChunkHit("tests/test_near.py", 1, 9, 0.6),
    ]
    found = [hit.path for hit in with_meaning(words, near)]
    assert found == ["word0.py", "word1.py", "word2.py", "near.py", "word3.py", "tests/test_near.py", "word4.py"]
    assert with_meaning(words, []) == words
    assert [hit.path for hit in with_meaning([], near[:1])] == ["near.py"]


class Short(Meaning):
    """Refuses texts of more than `limit` characters, like a server whose model has a short context."""

    def __init__(self, limit, *, counts=True, status=400):
        super().__init__()
        self.limit, self.counts, self.status, self.requests = limit, counts, status, 0

    def __call__(self, texts):
        self.requests += 1
        longest = max(map(len, texts))
        if longest > self.limit:
            facts = {"prompt_tokens": longest, "context_tokens": self.limit} if self.counts else {}
            raise ApiError(self.status, "context_length_exceeded", "too long", "input", facts)
        return super().__call__(texts)


@pytest.mark.parametrize("counts", [True, False])
def test_a_text_beyond_the_models_context_is_cut_until_it_is_read(index, project, counts):
    (project / "long.sh").write_text("".join(f"echo launching rocket {i}\n" for i in range(50)))
    index.refresh()
    vectors = VectorIndex(index, "m", Short(300, counts=counts))
    assert vectors.update(60) == 0
    assert "long.sh" in [hit.path for hit in vectors.search("launching a rocket " * 100)]
    assert vectors.problem == ""


@pytest.mark.parametrize(
    "embed",
    [
        Short(0),
        Short(0, status=503),
        Short(0, status=500),
        lambda texts: [[1.0]] * (len(texts) + 1),
        lambda texts: [[1.0] * (n + 1) for n, _ in enumerate(texts)],
    ],
    ids=["every text refused", "server busy", "server failed", "too many vectors", "vectors of unequal width"],
)
def test_an_embedding_model_that_fails_ends_no_question(index, embed):
    index.refresh()
    vectors = VectorIndex(index, "m", embed)
    assert vectors.update(60) == index.database.num_chunks()
    assert vectors.problem
    assert assemble(index, "deploying a spaceship", 3000, len, vectors=vectors).items


def test_a_text_that_is_refused_at_any_length_is_left_out_and_not_asked_for_again(index, project):
    (project / "odd.sh").write_text("poison() {\n  echo poison\n}\n")
    index.refresh()
    meaning = Meaning()

    def embed(texts):
        if any("poison" in text for text in texts):
            raise ApiError(400, "invalid_request", "no")
        return meaning(texts)

    vectors = VectorIndex(index, "m", embed)
    assert vectors.update(60) == 1
    asked = len(meaning.texts)
    assert vectors.update(60) == 1
    assert len(meaning.texts) == asked
    assert vectors.problem == ""
    assert vectors.search("launching a rocket")[0].path == "tool.sh"
