"""Finds passages by keyword (BM25) and by meaning (vectors), fused by score; each page's best passage is first."""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

from engine.documents.query_terms import searchable, without_unspaced
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
# At most this many passages of one document rank before other documents. Otherwise the pages of one manual on the
# same topic would crowd out the second document that a question needs.
_OF_DOCUMENT: Final = 3
# A number, code or compound name ("22012", "gc.auto", "reflogExpire", "POSIX"): a user who types it means exactly
# that.
_TOKEN: Final = re.compile(r"[\w./:\\-]+")
_CODE: Final = re.compile(r"\d|\w[_./:]\w|[a-z][A-Z]|[A-Z]{2}")
# Extra score of a passage that holds all codes of the query. Without them a score is at most 1.
_BY_CODES: Final = 0.8
# A code in more than this share of the passages is a topic of the collection and selects nothing.
_COMMON_CODE: Final = 0.3
# bm25 column weights: title, heading, body.
_WEIGHTS: Final = "1.0, 1.0, 1.0"


def by_words(store: Store, question: str) -> list[tuple[int, float]]:
    """Ids and BM25 scores of the passages that contain the query's content words, best first."""
    with store.lock:
        terms = _terms(store, question)
        if not terms:
            return []
        match = " OR ".join('"' + term.replace('"', '""') + '"' for term in terms)
        rows = store.connection.execute(
            f"SELECT rowid, -bm25(full_text, {_WEIGHTS}) AS score FROM full_text WHERE full_text MATCH ?"  # noqa: S608  # fixed weights
            " ORDER BY score DESC LIMIT ?",
            (match, CANDIDATES),
        )
        return list(rows)


def _terms(store: Store, question: str) -> list[str]:
    """The content words, rarest first; in large collections common words only if there are no others."""
    words = store.stemmer.telling(question)
    total = max(store.connection.execute("SELECT count(*) FROM chunk").get, 1)
    counts = store.chunk_counts(words.values())
    rows = [(counts[stem], word) for word, stem in words.items() if counts[stem]]
    rows.sort()
    rare = [word for count, word in rows if count / total <= _COMMON_FRACTION or count < _MANY]
    return (rare or [word for _, word in rows[:3]])[:_MAX_TERMS]


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
    return fused(store, words, meaning, limit, by_codes(store, question) if words else {})


def by_codes(store: Store, question: str) -> dict[int, float]:
    """Extra score of the passages that hold numbers, codes and compound names of the query; rarer ones count more.

    BM25 divides by the length of a passage and adds up common words, so the only row of a table with the code that
    was asked for may come after many short passages with the words around it.
    """
    tokens = _TOKEN.findall(without_unspaced(question))
    codes = dict.fromkeys(token.strip("./:\\-") for token in tokens if _CODE.search(token))
    rows: list[tuple[float, list[int]]] = []
    with store.lock:
        total = max(int(store.connection.execute("SELECT count(*) FROM chunk").get), 1)
        limit = min(int(_COMMON_CODE * total) + 1, _MANY)
        for code in [c for c in codes if store.stemmer.stems(c)][:_MAX_TERMS]:
            chunk_ids: list[Any] = store.connection.execute(
                "SELECT rowid FROM full_text WHERE full_text MATCH ? LIMIT ?",
                ('"' + searchable(code).replace('"', '""') + '"', limit + 1),
            ).fetchall()
            if len(chunk_ids) <= limit:
                rows.append((_rarity(total, len(chunk_ids)), [chunk_id for (chunk_id,) in chunk_ids]))
    whole = sum(rarity for rarity, _ in rows)
    scores: dict[int, float] = {}
    for rarity, ids in rows:
        for chunk_id in ids:
            scores[chunk_id] = scores.get(chunk_id, 0.0) + _BY_CODES * rarity / whole
    return scores


def fused(
    store: Store,
    words: Sequence[tuple[int, float]],
    meaning: Sequence[tuple[int, float]],
    limit: int,
    codes: Mapping[int, float],
) -> list[Passage]:
    """Fuse both lists by BM25 share and cosine. The best passage of each page comes first.

    `codes`: extra score of the passages with the query's codes. Only those that one of the methods found get it.
    """
    shares = _shares(words)
    cosines = dict(meaning)
    # A passage that is not among the nearest is at most as near as the last of them.
    far = meaning[-1][1] if meaning else 0.0
    most = bool(words) + _BY_MEANING * bool(meaning)
    highest = 1.0 + max(codes.values(), default=0.0)
    scores = {
        chunk_id: (
            (shares.get(chunk_id, 0.0) + _BY_MEANING * cosines.get(chunk_id, far)) / most + codes.get(chunk_id, 0.0)
        )
        / highest
        for chunk_id in {**shares, **cosines}
    }
    best = sorted(scores, key=lambda chunk_id: (-scores[chunk_id], chunk_id))[: _PAGE_PASSAGES * limit]
    rows = store.chunks(best)
    hits = [
        replace(
            rows[chunk_id],
            score=scores[chunk_id],
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


def spread(hits: Sequence[Passage]) -> list[Passage]:
    """The best passages of each document, up to the limit for a document, then the remaining passages."""
    seen: dict[int, int] = {}
    first: list[Passage] = []
    rest: list[Passage] = []
    for hit in hits:
        number = seen[hit.document] = seen.get(hit.document, 0) + 1
        (first if number <= _OF_DOCUMENT else rest).append(hit)
    return first + rest


# A passage is given with its neighbours up to this length, about 350 tokens: small passages are found more
# precisely, larger ones hold the sentence after the one that matched.
_WIDE_CHARS: Final = 1500


def widened(chunks: Sequence[Passage], chunk_id: int, used_ids: Collection[int]) -> Sequence[Passage]:
    """The passages around `chunk_id` on its page, to be sent as one; those in `used_ids` are already sent."""
    first = last = next(i for i, chunk in enumerate(chunks) if chunk.id == chunk_id)
    size = len(chunks[first].text)
    forward = True
    while True:
        # Alternately, starting with the text after it: a heading or a question precedes its answer.
        ways = [
            place
            for place in ((last + 1, first - 1) if forward else (first - 1, last + 1))
            if 0 <= place < len(chunks)
            and chunks[place].id not in used_ids
            and size + len(chunks[place].text) <= _WIDE_CHARS
        ]
        if not ways:
            return chunks[first : last + 1]
        size += len(chunks[ways[0]].text)
        first, last = min(first, ways[0]), max(last, ways[0])
        forward = not forward


class RelevanceEstimate(msgspec.Struct, frozen=True, kw_only=True):
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


def _rarity(total: int, count: int) -> float:
    """The weight of a word in `count` of `total` passages."""
    return math.log(1 + (total + _UNSEEN) / (count + 5))


def evidence(store: Store, question: str, hits: Sequence[Passage]) -> RelevanceEstimate:
    """Estimate whether the passages are relevant to the query at all; the log has the accuracy."""
    with store.lock:
        # All parts of `autovacuum_moon_phase` count: parts that are in no passage are the strongest signal.
        stems = store.stemmer.all_stems(question)
        total = max(int(store.connection.execute("SELECT count(*) FROM chunk").get), 1)
        counts = store.chunk_counts(stems)
        weights = {stem: _rarity(total, count) for stem, count in counts.items()}
        whole = sum(weights.values()) or 1.0
        texts = [f"{hit.title} {hit.heading} {hit.text}" for hit in hits[:_LOOKED_AT]]
        matched_stems = [stems.intersection(store.stemmer.stems(text)) for text in texts]
        pairs = (first | second for first in matched_stems for second in matched_stems)
        best = max((sum(weights[stem] for stem in both) for both in pairs), default=0.0) / whole
    cosines = [hit.cosine for hit in hits if hit.cosine is not None]
    cosine = max(cosines) if cosines else None
    if not hits:
        bears = False
    elif cosine is None:
        bears = best >= _WORDS_ALONE
    else:
        bears = _BIAS + _BY_COVERAGE * best + _BY_COSINE * cosine > 0
    return RelevanceEstimate(
        coverage=round(best, 4), cosine=None if cosine is None else round(cosine, 4), found=bears
    )
