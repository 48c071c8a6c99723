"""Finds passages by keyword (BM25) and by meaning (vectors), fused by score; each page's best passage is first."""

import math
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

from engine.documents.store import Store
from engine.documents.types import Passage
from engine.documents.vectors import Vectors

Ways = Literal["both", "words", "meaning"]
# Candidates per method: enough that a passage found by one method usually has a score from the other.
CANDIDATES: Final = 400
# Weight of a cosine relative to the BM25 share of the best passage. Measured: log-archive.md, "Documents".
_BY_MEANING: Final = 2.0
_MAX_TERMS: Final = 16
# A word in more than this share of the passages says little. It is omitted if ranking all its passages would be
# slow.
_COMMON_FRACTION: Final = 0.12
_MANY: Final = 20_000
# A page has about this many passages, so this many candidates per result cover enough pages.
_PAGE_PASSAGES: Final = 6
# bm25 column weights: title, heading, body.
_WEIGHTS: Final = "1.0, 1.0, 1.0"


def by_words(store: Store, question: str, limit: int = CANDIDATES) -> list[tuple[int, float]]:
    """Ids and BM25 scores of the passages that contain the query's content words, best first."""
    with store.lock:
        terms = _terms(store, question)
        if not terms:
            return []
        match = " OR ".join('"' + term.replace('"', '""') + '"' for term in terms)
        rows = store.connection.execute(
            f"SELECT rowid, -bm25(full_text, {_WEIGHTS}) AS score FROM full_text WHERE full_text MATCH ?"  # noqa: S608  # fixed weights
            " ORDER BY score DESC LIMIT ?",
            (match, limit),
        )
        return list(rows)


def _terms(store: Store, question: str) -> list[str]:
    """The content words, rarest first; in large collections common words only if there are no others."""
    words = store.stemmer.telling(question)
    total = max(store.connection.execute("SELECT count(*) FROM chunk").get, 1)
    counts = document_counts(store, words.values())
    rows = [(counts[stem], word) for word, stem in words.items() if counts[stem]]
    rows.sort()
    rare = [word for count, word in rows if count / total <= _COMMON_FRACTION or count < _MANY]
    return (rare or [word for _, word in rows[:3]])[:_MAX_TERMS]


def document_counts(store: Store, stems: Any) -> dict[str, int]:
    """The number of passages that contain each stem. Hold the store's lock."""
    ask = store.connection.execute
    return {s: int(ask("SELECT coalesce(sum(doc), 0) FROM term WHERE term=?", (s,)).get) for s in stems}


def find(
    store: Store,
    vectors: Vectors,
    question: str,
    vector: Any | None,
    ways: Ways = "both",
    limit: int = 8,
    floor: float = 0.0,
) -> list[Passage]:
    """The best passages. `vector` is the query's unit vector; without one, only keywords are searched.

    `floor` is the model's cosine for unrelated texts; the cosines of hits are rescaled from there.
    """
    words = by_words(store, question) if ways != "meaning" or vector is None else []
    meaning = vectors.nearest(vector, CANDIDATES, floor) if ways != "words" and vector is not None else []
    return fused(store, words, meaning, limit)


def fused(
    store: Store, words: Sequence[tuple[int, float]], meaning: Sequence[tuple[int, float]], limit: int
) -> list[Passage]:
    """Fuse both lists by BM25 share and cosine. The best passage of each page comes first."""
    shares = _shares(words)
    cosines = dict(meaning)
    # A passage that is not among the nearest is at most as near as the last of them.
    far = meaning[-1][1] if meaning else 0.0
    most = bool(words) + _BY_MEANING * bool(meaning)
    scores = {
        chunk_id: (shares.get(chunk_id, 0.0) + _BY_MEANING * cosines.get(chunk_id, far)) / most
        for chunk_id in {**shares, **cosines}
    }
    best = sorted(scores, key=lambda chunk_id: (-scores[chunk_id], chunk_id))[: _PAGE_PASSAGES * limit]
    rows = store.chunks(best)
    word_ranks = {chunk_id: rank for rank, (chunk_id, _) in enumerate(words, 1)}
    meaning_ranks = {chunk_id: rank for rank, (chunk_id, _) in enumerate(meaning, 1)}
    hits = [
        replace(
            rows[chunk_id],
            score=scores[chunk_id],
            words_rank=word_ranks.get(chunk_id),
            meaning_rank=meaning_ranks.get(chunk_id),
            cosine=cosines.get(chunk_id),
        )
        for chunk_id in best
        if chunk_id in rows
    ]
    return _by_page(hits)[:limit]


def _shares(words: Sequence[tuple[int, float]]) -> dict[int, float]:
    """BM25 as a share of the best score; all scores may be 0 if every passage contains the words."""
    top = words[0][1] if words and words[0][1] > 0 else 1.0
    return {chunk_id: score / top for chunk_id, score in words}


def _by_page(hits: Sequence[Passage]) -> list[Passage]:
    """The best passage of each page first, then the others: a second passage of the same page adds less."""
    seen: set[tuple[int, int]] = set()
    first: list[Passage] = []
    rest: list[Passage] = []
    for hit in hits:
        page = hit.document, hit.page
        (rest if page in seen else first).append(hit)
        seen.add(page)
    return first + rest


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence that the collection contains the answer. Both values are between 0 and 1.

    `coverage`: the share of the query's content words in the best two passages together, weighted by rarity. Two,
    because the parts of a query may be answered in two places.
    `cosine`: of the nearest passage; None if no embedding model was used.
    """

    coverage: float
    cosine: float | None
    found: bool


# Weights of a logistic regression on queries that are not in the benchmark. Measured: log-archive.md, "Documents".
_BIAS, _BY_COVERAGE, _BY_COSINE = -3.6, 3.2, 4.4
# Added to the passage count: a small collection says little about how rare a word is.
_UNSEEN: Final = 500
_WORDS_ALONE: Final = 0.6
_LOOKED_AT: Final = 5


def evidence(store: Store, question: str, hits: Sequence[Passage]) -> Evidence:
    """Estimate whether the passages are relevant to the query at all; the log has the accuracy."""
    with store.lock:
        # All parts of `autovacuum_moon_phase` count: parts that are in no passage are the strongest signal.
        stems = {stem for word in store.stemmer.telling(question) for stem in store.stemmer.stems(word)}
        total = max(int(store.connection.execute("SELECT count(*) FROM chunk").get), 1)
        counts = document_counts(store, stems)
        weights = {stem: math.log(1 + (total + _UNSEEN) / (count + 5)) for stem, count in counts.items()}
        whole = sum(weights.values()) or 1.0
        texts = [f"{hit.title} {hit.heading} {hit.text}" for hit in hits[:_LOOKED_AT]]
        held = [stems.intersection(store.stemmer.stems(text)) for text in texts]
        pairs = (first | second for first in held for second in held)
        best = max((sum(weights[stem] for stem in both) for both in pairs), default=0.0) / whole
    cosines = [hit.cosine for hit in hits if hit.cosine is not None]
    cosine = max(cosines) if cosines else None
    if not hits:
        found = False
    elif cosine is None:
        found = best >= _WORDS_ALONE
    else:
        found = _BIAS + _BY_COVERAGE * best + _BY_COSINE * cosine > 0
    return Evidence(coverage=round(best, 4), cosine=None if cosine is None else round(cosine, 4), found=found)
