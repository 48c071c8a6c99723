"""From a question in words to the parts of the project that bear on it."""

import re
from collections.abc import Iterator, Sequence

from app.code.index.database import ChunkHit, IndexDatabase, SymbolHit

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]+|[0-9]{2,}|[^\W\d_]{2,}")
_NAME = re.compile(r"([A-Za-z_][A-Za-z0-9_.]*)(\()?")
_STOP_WORDS = (
    "a about all also am an and any are as at be because been but by can could did do does doing done each for "
    "from get gets has have he her here hers him his how i if in into is it its just like make makes me more "
    "most my no not of on one only or other our out over please she should show so some such tell than that "
    "the their them then there these they this those to too under until up use used uses using very want was "
    "we were what when where which while who why will with would write you your explain fix find add change "
    "code file function where's what's project"
)
_STOP = frozenset(_STOP_WORDS.split())
_MAX_TERMS = 10
# A word in more than this share of all chunks tells nothing and costs the most to rank.
_COMMON_FRACTION = 0.08
# A shorter name before a bracket is a word as often: "it(", "as(".
_LEAST_CALLED = 3
# So many lines between two hits are shown too.
_GAP_LINES = 4


def search_chunks(database: IndexDatabase, question: str, limit: int = 24) -> list[ChunkHit]:
    """The best-fitting chunks, best first."""
    terms = search_terms(database, question)
    if not terms:
        return []
    match = " OR ".join('"' + term.replace('"', '""') + '"' for term in terms)
    return list(database.search(match, limit))


def search_terms(database: IndexDatabase, question: str) -> list[str]:
    """The telling words of a question, rarest first."""
    words: dict[str, None] = {}
    for word in _WORD.findall(question):
        if word.lower() not in _STOP and len(word) > 1:
            words[word] = None
    counts = database.match_counts(list(words)[: 4 * _MAX_TERMS])
    present = sorted((count, word) for word, count in counts.items() if count)
    total = max(database.num_chunks(), 1)
    rare = [word for count, word in present if count / total <= _COMMON_FRACTION]
    return (rare or [word for _, word in present[:2]])[:_MAX_TERMS]


def named_symbols(database: IndexDatabase, question: str, limit: int = 6) -> list[SymbolHit]:
    """Definitions whose name is in the question as an identifier, unless too many share it."""
    hits: list[SymbolHit] = []
    for name in dict.fromkeys(_identifiers(question)):
        found = [hit for hit in database.symbols_named(name, limit=8) if hit.kind != "heading"]
        hits += found[:2] if len(found) <= limit else []
    return hits[:limit]


def _identifiers(question: str) -> Iterator[str]:
    """Words that only code has: with a capital, an underscore or a dot inside, or called."""
    for found, called in _NAME.findall(question):
        name = found.rstrip(".")  # of the sentence
        inside = name[1:]
        is_call = bool(called) and len(name) >= _LEAST_CALLED and name.islower()
        if is_call or "_" in inside or "." in inside or inside != inside.lower():
            yield name


def merged(hits: Sequence[ChunkHit]) -> list[ChunkHit]:
    """Neighbouring hits of one file as one, in the order of their best score."""
    by_path: dict[str, list[ChunkHit]] = {}
    for hit in hits:
        by_path.setdefault(hit.path, []).append(hit)
    result: list[ChunkHit] = []
    for path, own in by_path.items():
        own.sort(key=lambda hit: hit.first)
        current = own[0]
        for hit in own[1:]:
            if hit.first <= current.last + _GAP_LINES:
                current = ChunkHit(path, current.first, max(current.last, hit.last), max(current.score, hit.score))
            else:
                result.append(current)
                current = hit
        result.append(current)
    return sorted(result, key=lambda hit: -hit.score)
