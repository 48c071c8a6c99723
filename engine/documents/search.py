"""Finding passages: by words (BM25) and by meaning (vectors), fused by score, the best of each page first."""

import math
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

from engine.documents.store import Store
from engine.documents.types import Passage
from engine.documents.vectors import Vectors

Ways = Literal["both", "words", "meaning"]
# Candidates of each way: deep enough that what one way found has its score of the other, too.
CANDIDATES: Final = 400
# What a cosine counts beside the share of the best passage's BM25. Measured: docs/log.md, "Documents".
_BY_MEANING: Final = 2.0
_MAX_TERMS: Final = 16
# A word in more than this share of the passages tells little; left out where ranking all of them would take long.
_COMMON_FRACTION: Final = 0.12
_MANY: Final = 20_000
# A page has about so many passages; so many candidates a result leave as many pages.
_PAGE_PASSAGES: Final = 6
# Weights of the columns for bm25: title, heading, body.
_WEIGHTS: Final = "1.0, 1.0, 1.0"


def by_words(store: Store, question: str, limit: int = CANDIDATES) -> list[tuple[int, float]]:
    """Ids of the passages that hold the question's telling words with their BM25, best first."""
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
    """The telling words, rarest first; in large collections common ones only where there are no others."""
    words = store.stemmer.telling(question)
    total = max(store.connection.execute("SELECT count(*) FROM chunk").get, 1)
    counts = document_counts(store, words.values())
    rows = [(counts[stem], word) for word, stem in words.items() if counts[stem]]
    rows.sort()
    rare = [word for count, word in rows if count / total <= _COMMON_FRACTION or count < _MANY]
    return (rare or [word for _, word in rows[:3]])[:_MAX_TERMS]


def document_counts(store: Store, stems: Any) -> dict[str, int]:
    """How many passages hold each stem. Under the store's lock."""
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
    """The best passages. `vector` is the question's unit vector; without one only words are looked for.

    `floor` is the cosine of unrelated texts by the model; cosines of hits are counted from there.
    """
    words = by_words(store, question) if ways != "meaning" or vector is None else []
    meaning = vectors.nearest(vector, CANDIDATES, floor) if ways != "words" and vector is not None else []
    return fused(store, words, meaning, limit)


def fused(
    store: Store, words: Sequence[tuple[int, float]], meaning: Sequence[tuple[int, float]], limit: int
) -> list[Passage]:
    """Both lists as one, by the share of the best BM25 and the cosine. Each page's best passage comes first."""
    shares = _shares(words)
    cosines = dict(meaning)
    # What is not among the nearest is at most as near as the last of them.
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
    """BM25 as a share of the best; it may be 0 throughout where every passage holds the words."""
    top = words[0][1] if words and words[0][1] > 0 else 1.0
    return {chunk_id: score / top for chunk_id, score in words}


def _by_page(hits: Sequence[Passage]) -> list[Passage]:
    """The best passage of each page, then what is left of them: more of the same page answers less than another."""
    seen: set[tuple[int, int]] = set()
    first: list[Passage] = []
    rest: list[Passage] = []
    for hit in hits:
        page = hit.document, hit.page
        (rest if page in seen else first).append(hit)
        seen.add(page)
    return first + rest


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What speaks for the answer being in the collection. Both 0 to 1.

    `coverage`: the share of the question's telling words that the best two passages hold together, rare words
    counting more: the parts of a question may be answered in two places.
    `cosine`: of the nearest passage; None where no embedding model looked.
    """

    coverage: float
    cosine: float | None
    found: bool


# Weights of a logistic regression on questions that are not in the benchmark. Measured: docs/log.md, "Documents".
_BIAS, _BY_COVERAGE, _BY_COSINE = -3.6, 3.2, 4.4
# Small collections say little about how rare a word is: as if there were so many passages more.
_UNSEEN: Final = 500
_WORDS_ALONE: Final = 0.6
_LOOKED_AT: Final = 5


def evidence(store: Store, question: str, hits: Sequence[Passage]) -> Evidence:
    """Whether the passages bear on the question at all; a guess, right as often as the log says."""
    with store.lock:
        # All parts of `autovacuum_moon_phase` count: those that no passage knows tell most.
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
