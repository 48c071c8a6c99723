import zlib

import numpy as np
import pytest

from app.code.context.assemble import assemble
from app.code.index.database import ChunkHit
from app.code.index.vectors import VectorIndex, fused

pytestmark = pytest.mark.process

SYNONYMS = {"rocket": "spaceship", "launching": "deploying", "round": "circle", "thing": "circle"}


class Meaning:
    """Embeds a text as a bag of words in which synonyms are the same word."""

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


def test_a_time_limit_stops_between_batches_and_another_model_starts_anew(index):
    index.refresh()
    slow = VectorIndex(index, "m", Meaning())
    assert slow.update(-1) == index.database.num_chunks()
    slow.update(60)
    other = VectorIndex(index, "other", Meaning(64))
    assert other.search("circle") == []
    assert other.update(60) == 0
    assert other.search("circle")


def test_rankings_are_fused():
    a, b, c = (ChunkHit(name, 1, 2, 0.0) for name in "abc")
    assert [hit.path for hit in fused([[a, b], [b, c]])] == ["b", "a", "c"]
    assert fused([[], []]) == []
