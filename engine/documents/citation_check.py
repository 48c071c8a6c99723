"""Checks whether the words of an answer's sentences occur in the passages.

It compares words and embeddings, not meaning. Numbers, names and codes must occur in the very sentences
of a passage that support a sentence, and a statement that a passage denies or reverses is doubtful. A marked
sentence deserves a check; an unmarked one is not proven.
"""

import re
from collections.abc import Callable, Collection, Sequence
from functools import cache
from itertools import accumulate
from typing import Any, Final, NamedTuple

import msgspec

from engine.documents.query_terms import STOP, WORD
from engine.documents.types import CheckedSentence, Doubt
from engine.documents.vectors import above

# End of a sentence or line, but not after an initial or a number ("No. 5", "J. Smith"). A sentence may begin with a
# path or a name in code ("gc.auto is", "/srv has").
_END: Final = re.compile(
    r"(?<=[^\s.][.!?])[\"')\]]*\s+(?=[\"'(\[]?(?:[A-Z\u00c0-\u00deÀ-ÖØ-Þ0-9*/-]|[a-z]\w*[._(/]\w))|\n+"
)
# Parts that the source must contain literally: numbers, paths, options, names in code, acronyms.
_TOKEN: Final = re.compile(r"(?:--?|/)?\w+(?:[.,:/_-]\w+)*(?:\(\d*\))?")
_CODE: Final = re.compile(r"\d|^[-/]|\w[_./]\w|[a-z][A-Z]|^[A-Z]{2,}|\(")
_PARTS: Final = re.compile(r"[.,:/]|\(\)$")
_HUMPS: Final = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z][a-z]+")
# Numbers in words; "one" is as often a pronoun.
_COUNTS: Final = {
    word: str(number)
    for number, word in enumerate(
        ["two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"], 2
    )
}
# One of these before a word denies it. In capitals they are code ("NOT NULL").
_DENIALS: Final = frozenset(
    {"not", "no", "never", "cannot", "neither", "nor", "none"}
    | {"nicht", "kein", "keine", "keinen", "keiner", "nie", "niemals"}
    | {"pas", "jamais", "aucun", "nunca", "ningún"}
)
_DENIAL: Final = re.compile(r"\w+n't|\w+|[.,;:!?](?=\s)")
# "No higher than 9" and "9 or less" say the same.
_AT_MOST: Final = re.compile(r"\b(?:no|not)(?= (?:more|less|\w+er) than\b)")
# Number of content words after such a word that it denies.
_DENIED: Final = 2
_CLAUSES: Final = re.compile(r"[,;:]\s+|\s(?:and|or|but|while|whereas|und|oder|aber|et|ou|mais|y|o|pero)\s")
# An answer that joins two statements of its source.
_JOINS: Final = re.compile(r";|\b(?:and|but|while|which|who|und|aber|et|mais|y|pero)\b")
_BY: Final = re.compile(r"\b(?:by|via|von|durch|par|por)\b")
_REFERENCE: Final = re.compile(r"\[\d+\]")
# Measured on the benchmark's passages: log-archive.md, "Documents".
_OVERLAP: Final = 0.6
_OVERLAP_WITH_MEANING: Final = 0.35
_COSINE: Final = 0.62
# Shorter sentences ("Yes.", "Here is what I found:") contain no claim to check.
_LEAST_WORDS: Final = 3
# Consecutive sentences of a passage that are compared as one: an answer often merges two sentences.
_WINDOW: Final = 2
# Windows that may support a sentence. Scores that differ by less than _EQUAL are equal.
_LOOKED_AT: Final = 4
_EQUAL: Final = 0.02
_BY_ONE: Final = 0.3


class Sentence(msgspec.Struct, frozen=True):
    """A sentence of an answer, with its character offsets."""

    start: int
    end: int
    text: str


def sentences(text: str) -> list[Sentence]:
    """The sentences of an answer that contain a claim."""
    result, at = [], 0
    for end in [*(m for m in _END.finditer(text)), None]:
        stop = end.start() if end else len(text)
        piece = text[at:stop]
        bare = _REFERENCE.sub("", piece).strip()
        if len([w for w in WORD.findall(bare) if w.lower() not in STOP]) >= _LEAST_WORDS:
            lead = len(piece) - len(piece.lstrip())
            result.append(Sentence(at + lead, at + len(piece.rstrip()), bare))
        at = end.end() if end else stop
    return result


class Window(NamedTuple):
    """Consecutive sentences of a passage: its number, their text, and each sentence by itself."""

    passage: int
    text: str
    parts: tuple[str, ...]


def windows(passages: Sequence[str]) -> list[Window]:
    """Sentence windows of the passages to compare with, each with its passage number (from 1)."""
    result: list[Window] = []
    for number, passage in enumerate(passages, 1):
        pieces = [piece.strip() for piece in _END.split(passage.replace("\n", " ")) if piece and piece.strip()]
        for i in range(max(len(pieces) - 1, 1)):
            parts = tuple(pieces[i : i + _WINDOW])
            result.append(Window(number, " ".join(parts), parts))
    return result


def check(
    answer_sentences: Sequence[Sentence],
    pieces: Sequence[Window],
    stems: Callable[[str], list[str]],
    vectors: tuple[Any, Any] | None = None,
    floor: float = 0.0,
) -> list[CheckedSentence]:
    """The check result of each sentence.

    vectors: unit vectors of the sentences and of the windows, float32 of (n, width) each; None: compare words only.
    floor: the embedding model's cosine for unrelated texts.
    """
    stems = cache(stems)
    piece_stems = [set(stems(piece.text)) for piece in pieces]
    cosines = above(vectors[0] @ vectors[1].T, floor) if vectors is not None and len(pieces) else None
    return [
        _verdict(sentence, pieces, piece_stems, stems, None if cosines is None else cosines[row])
        for row, sentence in enumerate(answer_sentences)
    ]


def _verdict(
    sentence: Sentence,
    pieces: Sequence[Window],
    piece_stems: Sequence[set[str]],
    stems: Callable[[str], list[str]],
    cosines: Any | None,
) -> CheckedSentence:
    sentence_stems = set(_content(sentence.text, stems))
    overlaps = [len(sentence_stems & own) / max(len(sentence_stems), 1) for own in piece_stems]
    both = list(overlaps) if cosines is None else [o + float(c) for o, c in zip(overlaps, cosines, strict=True)]
    # Among windows with the same words, prefer the one with most of them in one sentence.
    for i, piece in enumerate(pieces):
        if overlaps[i] >= _OVERLAP_WITH_MEANING:
            in_one = max(len(sentence_stems & set(stems(part))) for part in piece.parts)
            both[i] += _BY_ONE * in_one / max(len(sentence_stems), 1)
    ranked = sorted(range(len(pieces)), key=lambda i: -both[i])
    if not ranked:
        return CheckedSentence(start=sentence.start, end=sentence.end, carried=False)

    def verdict(at: int) -> CheckedSentence:
        overlap, cosine = overlaps[at], None if cosines is None else float(cosines[at])
        by_meaning = cosine is not None and cosine >= _COSINE and overlap >= _OVERLAP_WITH_MEANING
        missing = _missing(sentence.text, pieces[at].text)
        doubt: Doubt = ""
        if (overlap >= _OVERLAP or by_meaning) and not missing:
            doubt = _doubt(sentence.text, pieces[at], stems)
        return CheckedSentence(
            start=sentence.start,
            end=sentence.end,
            carried=(overlap >= _OVERLAP or by_meaning) and not missing and not doubt,
            passage=pieces[at].passage if both[at] > 0 else 0,
            overlap=round(overlap, 3),
            cosine=None if cosine is None else round(cosine, 3),
            missing=missing,
            doubt=doubt,
        )

    # The best window that has everything decides; of equal ones, one that supports the sentence.
    verdicts = [(both[at], verdict(at)) for at in ranked[:_LOOKED_AT]]
    whole = [(score, v) for score, v in verdicts if v.carried or v.doubt] or verdicts
    return next((v for score, v in whole if v.carried and score >= whole[0][0] - _EQUAL), whole[0][1])


def _content(text: str, stems: Callable[[str], list[str]]) -> list[str]:
    """The stems of the content words in order, of all parts of compound names."""
    return [stem for word in WORD.findall(text) if word.lower() not in STOP for stem in stems(word)]


def _exact(text: str) -> dict[str, str]:
    """Numbers and codes of a text by the form that is compared; names and acronyms too."""
    exact: dict[str, str] = {}
    for match in _TOKEN.finditer(text):
        token = match.group()
        if token.lower() in _COUNTS:
            exact[_COUNTS[token.lower()]] = token
        elif _CODE.search(token) or (
            token[0].isupper() and match.start() and token.lower() not in STOP and len(token) > 1
        ):
            exact[token.casefold()] = token
    return exact


def _forms(text: str) -> set[str]:
    """All forms in which a token may occur: as it is, and as the parts of a compound."""
    forms: set[str] = set()
    for match in _TOKEN.finditer(text):
        token = match.group().casefold()
        forms.update(part.casefold() for part in _HUMPS.findall(match.group()))
        forms |= {token, _COUNTS.get(token, token), *(part for part in _PARTS.split(token) if part)}
        forms |= {token.removesuffix("'s"), token.removesuffix("s"), token.lstrip("-/"), *token.split("-")}
    return forms


def _missing(text: str, window: str) -> tuple[str, ...]:
    """Numbers, names and codes of a sentence that the window lacks: a single wrong one makes the sentence wrong."""
    forms = _forms(window)
    return tuple(shown for form, shown in _exact(text).items() if not ({form, form.removesuffix("s")} & forms))


def _doubt(text: str, window: Window, stems: Callable[[str], list[str]]) -> "Doubt":
    """Why the sentence may be wrong although its words occur in the source."""
    if _denied(text, window.text, stems):
        return "negation"
    sentence_stems = set(_content(text, stems))
    if not _JOINS.search(text):
        best = max(window.parts, key=lambda part: len(sentence_stems & set(stems(part))))
        if _other_instead(_exact(text), _exact(best), _forms(best)):
            return "apart"
    if any(_bound_elsewhere(clause, window, stems) for clause in _CLAUSES.split(text)):
        return "apart"
    return "order" if any(_turned(text, part, stems) for part in window.parts) else ""


def _other_instead(exact: Collection[str], source: Collection[str], forms: Collection[str]) -> bool:
    """Return True if the nearest sentence has a different number or code in its place."""
    lacks = [form for form in exact if form not in forms]
    others = [form for form in source if form not in exact]
    return any(form[0].isdigit() == other[0].isdigit() for form in lacks for other in others)


def _denied(text: str, window: str, stems: Callable[[str], list[str]]) -> bool:
    """Return True if exactly one of the two texts denies a word that both contain."""
    plain, denied = _polarity(text, stems)
    source_plain, source_denied = _polarity(window, stems)
    for word in denied:
        if word in source_plain and word not in source_denied:
            return True
    if denied and not source_denied:
        return True
    return any(word in source_denied and word not in source_plain for word in plain - denied)


def _polarity(text: str, stems: Callable[[str], list[str]]) -> tuple[set[str], set[str]]:
    """The stems of the content words that are stated, and of those that are denied."""
    plain: set[str] = set()
    denied: set[str] = set()
    words_left = 0
    for match in _DENIAL.finditer(_AT_MOST.sub("", text)):
        word = match.group()
        if not word[0].isalnum():
            words_left = 0
        elif word in _DENIALS or word.endswith("n't") or (word.istitle() and word.lower() in _DENIALS - {"none"}):
            words_left = _DENIED
        elif word.lower() not in STOP:
            (denied if words_left else plain).update(stems(word))
            words_left = max(words_left - 1, 0)
    return plain, denied


def _bound_elsewhere(clause: str, window: Window, stems: Callable[[str], list[str]]) -> bool:
    """Return True if the source states a number about something else than this clause does.

    "Resolved items older than 15 days" from "unresolved items older than 15 days and resolved items older than 60":
    the part with 15 lacks "resolved", and a similar part, or the words next to another number, contain it.
    """
    numbers = {form: shown for form, shown in _exact(clause).items() if form[0].isdigit()}
    for part in window.parts:
        pieces = [(set(_content(piece, stems)), _forms(piece)) for piece in _CLAUSES.split(part)]
        for number, shown in numbers.items():
            words = set(_content(clause[: clause.find(shown)], stems))
            own = [text for text, forms in pieces if number in forms]
            others = [
                text
                for text, forms in pieces
                if number not in forms and any(form[:1].isdigit() and form not in numbers for form in forms)
            ]
            strange = words - set().union(*own) if own else set()
            if any(strange & other and _alike(other, own) for other in others):
                return True
            if strange & _next_to_others(part, numbers, stems):
                return True
    return False


def _next_to_others(source: str, numbers: Collection[str], stems: Callable[[str], list[str]]) -> set[str]:
    """The stems of the two words on each side of numbers that are not in `numbers`, as in "0.9 (the default)"."""
    tokens = [match.group() for match in _TOKEN.finditer(source)]
    neighbours: set[str] = set()
    for place, token in enumerate(tokens):
        if token[0].isdigit() and token.casefold() not in numbers:
            neighbours.update(_content(" ".join(tokens[max(place - 2, 0) : place + 3]), stems))
    return neighbours


def _alike(other: set[str], own: Sequence[set[str]]) -> bool:
    """Return whether a clause is built like one of the others: half of their words are the same."""
    return any(2 * len(other & mine) >= min(len(other), len(mine)) - 1 and other & mine for mine in own)


def _turned(text: str, source: str, stems: Callable[[str], list[str]]) -> bool:
    """Return whether the words around a shared word are exchanged: "A needs B" from "B needs A"."""
    if bool(_BY.search(text)) != bool(_BY.search(source)):
        return False  # one of them may be in the passive voice
    places: dict[str, list[int]] = {}
    for place, word in enumerate(_content(source, stems)):
        places.setdefault(word, []).append(place)
    own = _content(text, stems)
    shared = [places[word][0] for word in own if len(places.get(word, ())) == 1 and own.count(word) == 1]
    lowest = list(accumulate(reversed(shared), min))[::-1]
    highest = list(accumulate(shared, max))
    return any(highest[i - 1] > shared[i] > lowest[i + 1] for i in range(1, len(shared) - 1))
