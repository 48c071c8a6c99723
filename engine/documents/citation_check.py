"""Checks whether the words of an answer's sentences occur in the passages.

It compares words and embeddings, not meaning. Numbers, names and codes must occur in the very sentences
of a passage that support a sentence, and a statement that a passage denies or reverses is doubtful. A marked
sentence deserves a check; an unmarked one is not proven.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import SequenceMatcher
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
# "Am 1. März", "im 19. Jahrhundert": in German a period after a number may make it an ordinal. "Dr. Seidel".
_NO_END: Final = re.compile(
    r"(?:\b(?:am|im|vom|zum|zur|der|die|das|dem|den|des|bis|ab|und)\s\d{1,2}\."
    r"|\b\d{1,2}\.(?=\s(?:Jan|Feb|Mär|Apr|Mai|Jun|Jul|Aug|Sep|Okt|Nov|Dez))"
    r"|\b(?-i:Dr|Mr|Mrs|Ms|Prof|St|Nr|Fig|Abb|vgl|bzw|ca|vs)\.)$",
    re.IGNORECASE,
)
_NO_END_CHARS: Final = 12
# Parts that the source must contain literally: numbers, paths, options, names in code, acronyms.
_TOKEN: Final = re.compile(r"(?:--?|/)?\w+(?:[.,:/_-]\w+)*(?:\(\d*\))?")
_CODE: Final = re.compile(r"\d|^[-/]|\w[_./]\w|[a-z][A-Z]|^[A-Z]{2,}|\(")
_PARTS: Final = re.compile(r"[.,:/]|\(\)$")
_HUMPS: Final = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z][a-z]+")
# Numbers in words; "one" is as often a pronoun.
_COUNT_WORDS: Final = (
    "two three four five six seven eight nine ten eleven twelve",
    "zwei drei vier fünf sechs sieben acht neun zehn elf zwölf",
)
_COUNTS: Final = {word: str(n) for row in _COUNT_WORDS for n, word in enumerate(row.split(), 2)}
_COUNT: Final = re.compile(rf"\b(?:{'|'.join(_COUNTS)})\b", re.IGNORECASE)
_OPPOSITE_PAIRS: Final = (
    "before after, above below, over under, more less, most least, more fewer, maximum minimum, first last, "
    "older newer, earlier later, higher lower, larger smaller, longer shorter, inside outside, "
    "vor nach, über unter, mehr weniger, erste letzte, älter neuer, früher später, höher niedriger"
)
_OPPOSITES: Final = {
    word: other for pair in _OPPOSITE_PAIRS.split(", ") for word, other in (pair.split(), pair.split()[::-1])
}
# One of these before a word denies it. In capitals they are code ("NOT NULL").
_DENIALS: Final = frozenset(
    {"not", "no", "never", "cannot", "neither", "nor", "none"}
    | {"nicht", "kein", "keine", "keinen", "keiner", "nie", "niemals"}
    | {"pas", "jamais", "aucun", "nunca", "ningún"}
)
# These deny one word: the one after them.
_LACKS: Final = frozenset({"without", "ohne", "sans", "sin"})
# "No longer", "nicht mehr": the word belongs to the denial.
_WITH_DENIAL: Final = frozenset({"longer", "more", "mehr", "plus", "más"})
_DENIAL: Final = re.compile(r"\w+n't|\w+|[.,;:!?](?=\s)")
# "No higher than 9" and "9 or less" say the same.
_AT_MOST: Final = re.compile(r"\b(?:no|not)(?= (?:more|less|\w+er) than\b)")
# Number of content words after such a word that it denies.
_DENIED: Final = 2
# Longer sentences are not aligned word by word.
_ALIGNED: Final = 80
# A sentence that differs by one word from one of the source has at least so many content words.
_LEAST_ALIKE: Final = 4
_CLAUSES: Final = re.compile(r"[,;:]\s+|\s(?:and|or|but|while|whereas|und|oder|aber|et|ou|mais|y|o|pero)\s")
# An answer that joins two statements of its source.
_JOINS: Final = re.compile(r";|\b(?:and|but|while|which|who|und|aber|et|mais|y|pero)\b")
_BY: Final = re.compile(r"\b(?:by|via|von|durch|par|por)\b")
# Numbers with separators: 1,250,000 and 1.480,50 and 1'250.
_GROUPS: Final = re.compile(r"\d{1,3}(?:([.,])\d{3})(?:\1\d{3})*(?:[.,]\d+)?$")
_GROUP_SPACE: Final = re.compile(r"(?<=\d)['\u2019\u00a0\u2009\u202f](?=\d{3}(?!\d))")
# Words after a number that change its value: the same number with another word of the row is another value.
_UNIT_ROWS: Final = (
    "hundred thousand million billion trillion hundert tausend millionen milliarden billionen mio mrd",
    "ns µs ms s h millisecond second sec minute min hour day week month year decade century millisekunde sekunde",
    "bit byte kb mb gb tb kib mib gib tib kilobyte megabyte gigabyte terabyte",
    "µm mm cm dm m km millimetre centimetre metre kilometre millimeter centimeter meter kilometer inch mile",
    "mg g kg t milligram gram kilogram ton tonne gramm kilogramm pound ounce",
    "mw w kw gw watt kilowatt megawatt gigawatt wh kwh mwh",
)
_UNITS: Final = {unit: row for row, units in enumerate(_UNIT_ROWS) for unit in units.split()}
_AFTER_NUMBER: Final = re.compile(r"(?<![\w.,])(\d[\d.,]*)[ \u00a0\u2009\u202f-]?([A-Za-zµäöü]+)")
# Words by which a German text is recognized: its nouns have capitals, as elsewhere only names have.
_GERMAN: Final = frozenset({"der", "die", "das", "und", "ist", "nicht", "ein", "eine", "den", "dem", "im", "wird"})
# An inflected form has the same beginning: at least so many letters, and all but so many of the shorter word.
_STEM_CHARS, _ENDING_CHARS = 4, 3
# A phrase of time or place at the front of a sentence may as well be at its end.
_FRONT: Final = frozenset(
    {"on", "in", "at", "since", "until", "during", "after", "before", "from", "by", "for", "with", "under"}
    | {"am", "im", "in", "an", "bei", "seit", "bis", "ab", "vor", "nach", "mit", "für", "auf", "unter", "während"}
)
_REFERENCE: Final = re.compile(r"\[\d+\]")
# Measured on the benchmark's passages: log-archive.md, "Documents".
_OVERLAP: Final = 0.6
_OVERLAP_WITH_MEANING: Final = 0.35
_COSINE: Final = 0.62
# Shorter sentences ("Yes.", "Here is what I found:") contain no claim to check. One with fewer than
# _CLAIM_WORDS may be none ("I hope this helps."): it is checked only if the sources contain all its words.
_LEAST_WORDS: Final = 2
_CLAIM_WORDS: Final = 3
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
    """The sentences of an answer that may contain a claim."""
    result, at = [], 0
    for end in [*_ends(text), None]:
        stop = end.start() if end else len(text)
        piece = text[at:stop]
        bare = _REFERENCE.sub("", piece).strip()
        if len([word for word in _content_words(bare) if not word.isdigit()]) >= _LEAST_WORDS:
            lead = len(piece) - len(piece.lstrip())
            result.append(Sentence(at + lead, at + len(piece.rstrip()), bare))
        at = end.end() if end else stop
    return result


def is_claim(sentence: Sentence) -> bool:
    """Return False for a short sentence, which may be about nothing in the sources."""
    return len(_content_words(sentence.text)) >= _CLAIM_WORDS


def _ends(text: str) -> list[re.Match[str]]:
    """The places between sentences."""
    return [
        m
        for m in _END.finditer(text)
        if not _NO_END.search(text[max(m.start() - _NO_END_CHARS, 0) : m.end()].rstrip())
    ]


def _split(text: str) -> list[str]:
    """The sentences of a passage."""
    ends = _ends(text)
    starts, stops = [0, *(m.end() for m in ends)], [*(m.start() for m in ends), len(text)]
    return [piece for start, stop in zip(starts, stops, strict=True) if (piece := text[start:stop].strip())]


class Window(NamedTuple):
    """Consecutive sentences of a passage: its number, their text, and each sentence by itself."""

    passage: int
    text: str
    parts: tuple[str, ...]


def windows(passages: Sequence[str]) -> list[Window]:
    """Sentence windows of the passages to compare with, each with its passage number (from 1)."""
    result: list[Window] = []
    for number, passage in enumerate(passages, 1):
        pieces = _split(passage.replace("\n", " "))
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
    """The check results of the sentences, without short ones that are not about the passages.

    vectors: unit vectors of the sentences and of the windows, float32 of (n, width) each; None: compare words only.
    floor: the embedding model's cosine for unrelated texts.
    """
    stems = cache(stems)
    piece_stems = [set(stems(_in_figures(piece.text))) for piece in pieces]
    cosines = above(vectors[0] @ vectors[1].T, floor) if vectors is not None and len(pieces) else None
    verdicts = [
        _verdict(sentence, pieces, piece_stems, stems, None if cosines is None else cosines[row])
        for row, sentence in enumerate(answer_sentences)
    ]
    return [v for s, v in zip(answer_sentences, verdicts, strict=True) if v.overlap == 1 or is_claim(s)]


def _verdict(
    sentence: Sentence,
    pieces: Sequence[Window],
    piece_stems: Sequence[set[str]],
    stems: Callable[[str], list[str]],
    cosines: Any | None,
) -> CheckedSentence:
    sentence_stems = set(_content(_in_figures(sentence.text), stems))
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
    return [stem for word in _content_words(text) for stem in stems(word)]


def _in_figures(text: str) -> str:
    """The text with figures for numbers in words."""
    return _COUNT.sub(lambda match: _COUNTS[match.group().lower()], text)


def _content_words(text: str) -> list[str]:
    return [word for word in WORD.findall(text) if word.lower() not in STOP]


def _exact(text: str) -> dict[str, str]:
    """Numbers and codes of a text by the form that is compared; names and acronyms too."""
    exact: dict[str, str] = {}
    for match in _TOKEN.finditer(_GROUP_SPACE.sub("", text)):
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
    for match in _TOKEN.finditer(_GROUP_SPACE.sub("", text)):
        token = match.group().casefold()
        forms.update(part.casefold() for part in _HUMPS.findall(match.group()))
        forms |= {token, _COUNTS.get(token, token), *(part for part in _PARTS.split(token) if part)}
        forms |= {token.removesuffix("'s"), token.removesuffix("s"), token.lstrip("-/"), *token.split("-")}
        forms |= _values(token)
    return forms


def _values(token: str) -> set[str]:
    """What a number with separators may mean: "1,250" is 1250 in English and 1.25 in German."""
    values = {token.replace(",", ".")} if token[0].isdigit() and token.count(",") == 1 else set()
    groups = _GROUPS.match(token)
    if groups:
        joined = token.replace(groups.group(1), "")
        values.add(joined.replace(",", "."))
    return values


def _missing(text: str, window: str) -> tuple[str, ...]:
    """Numbers, names and codes of a sentence that the window lacks: a single wrong one makes the sentence wrong."""
    lacking = _lacking(_exact(text), window)
    return (*lacking.values(), *_other_units(text, window))


def _lacking(exact: Mapping[str, str], source: str) -> dict[str, str]:
    """Those of the numbers, names and codes that a text has in no form."""
    forms = _forms(source)
    is_german = bool(_GERMAN & set(source.split()))
    return {
        form: shown
        for form, shown in exact.items()
        if not ({form, form.removesuffix("s"), *_values(form)} & forms)
        and not (is_german and shown.istitle() and any(_is_inflected(form, other) for other in forms))
    }


def _is_inflected(form: str, other: str) -> bool:
    least = max(min(len(form), len(other)) - _ENDING_CHARS, _STEM_CHARS)
    return form[:least] == other[:least]


def _other_units(text: str, window: str) -> list[str]:
    """Numbers that the window has only with another unit of the same row ("15 million" for "15 billion")."""
    source: dict[str, set[str]] = {}
    for number, unit, _ in _units(window):
        source.setdefault(number, set()).add(unit)
    return [
        f"{number} {shown}"
        for number, unit, shown in _units(text)
        if number in source
        and unit not in source[number]
        and all(_UNITS[other] == _UNITS[unit] for other in source[number])
    ]


def _units(text: str) -> list[tuple[str, str, str]]:
    """Numbers, the units after them, and the units as the text has them."""
    units = []
    for match in _AFTER_NUMBER.finditer(text):
        word = match.group(2).lower()
        unit = next((form for form in (word, word.removesuffix("s"), word.removesuffix("n")) if form in _UNITS), "")
        if unit:
            units.append((match.group(1).rstrip(".,"), unit, match.group(2)))
    return units


def _doubt(text: str, window: Window, stems: Callable[[str], list[str]]) -> "Doubt":
    """Why the sentence may be wrong although its words occur in the source."""
    if _denied(text, window.text, stems) or _says_opposite(text, window.text, stems):
        return "negation"
    sentence_stems = set(_content(text, stems))
    if not _JOINS.search(text):
        best = max(window.parts, key=lambda part: len(sentence_stems & set(stems(part))))
        if _other_instead(_exact(text), best) or _is_put_in(text, best, window, stems):
            return "apart"
    if any(_bound_elsewhere(clause, window, stems) for clause in _CLAUSES.split(text)):
        return "apart"
    return "order" if any(_turned(text, part, stems) for part in window.parts) else ""


def _other_instead(exact: Mapping[str, str], source: str) -> bool:
    """Return True if the nearest sentence has a different number or code in its place."""
    lacks = _lacking(exact, source)
    others = [form for form in _exact(source) if form not in exact]
    return any(form[0].isdigit() == other[0].isdigit() for form in lacks for other in others)


def _is_put_in(text: str, best: str, window: Window, stems: Callable[[str], list[str]]) -> bool:
    """Return True if a word of the window's other sentence stands in place of one of the nearest sentence."""
    own, source = _content(text, stems), _content(best, stems)
    others = {stem for part in window.parts if part != best for stem in _content(part, stems)} - set(source)
    if not others.intersection(own) or len(own) > _ALIGNED or len(source) > _ALIGNED:
        return False
    codes = SequenceMatcher(None, own, source, autojunk=False).get_opcodes()
    changes = [code for code in codes if code[0] in {"replace", "delete"}]
    if len(changes) != 1 or changes[0][0] != "replace":
        return False
    _, i, j, k, m = changes[0]
    return j - i == 1 and len(own) >= _LEAST_ALIKE and own[i] in others and bool(set(source[k:m]) - set(own))


def _denied(text: str, window: str, stems: Callable[[str], list[str]]) -> bool:
    """Return True if exactly one of both denies a shared word. Denials that share a word are the same denial."""
    plain, scopes = _polarity(text, stems)
    source_plain, source_scopes = _polarity(window, stems)
    denied: set[str] = set().union(*scopes)
    source_denied: set[str] = set().union(*source_scopes)
    if denied and not source_denied:
        return True
    own = [scope for scope in scopes if not scope & source_denied]
    if any(word in source_plain for scope in own for word in scope):
        return True
    others = [scope for scope in source_scopes if not scope & denied]
    return any(word in plain - denied and word not in source_plain for scope in others for word in scope)


def _says_opposite(text: str, window: str, stems: Callable[[str], list[str]]) -> bool:
    """Return True if the window has only the opposite of a word before the same next word ("after a meal")."""
    source = _opposites_before(window, stems)
    own = _opposites_before(text, stems) - source
    return any((_OPPOSITES[word], then) in source for word, then in own)


def _opposites_before(text: str, stems: Callable[[str], list[str]]) -> set[tuple[str, str]]:
    """Words that have an opposite, each with the stem of the next content word."""
    pairs, then = set(), ""
    for word in reversed(WORD.findall(text)):
        if word.lower() in _OPPOSITES and then:
            pairs.add((word.lower(), stems(then)[0]))
        if word.lower() not in STOP:
            then = word
    return pairs


def _polarity(text: str, stems: Callable[[str], list[str]]) -> tuple[set[str], list[set[str]]]:
    """The stems of the content words that are stated, and of those that each denial denies."""
    plain: set[str] = set()
    scopes: list[set[str]] = []
    clause: set[str] = set()
    words_left = 0
    for match in _DENIAL.finditer(_AT_MOST.sub("", text)):
        word = match.group()
        if not word[0].isalnum():
            _deny_clause(scopes, clause)
            words_left, clause = 0, set()
        elif word in _DENIALS or word.endswith("n't") or (word.istitle() and word.lower() in _DENIALS - {"none"}):
            words_left = _DENIED
            scopes.append(set())
        elif word.lower() in _LACKS:
            words_left = 1
            scopes.append(set())
        elif words_left == _DENIED and word in _WITH_DENIAL:
            pass
        elif word.lower() not in STOP:
            (scopes[-1] if words_left else plain).update(stems(word))
            clause.update(stems(word))
            words_left = max(words_left - 1, 0)
    _deny_clause(scopes, clause)
    return plain, scopes


def _deny_clause(scopes: list[set[str]], clause: set[str]) -> None:
    """Let a denial at the end of a clause deny all of it, as in German: "Das Gerät ist es nicht"."""
    if scopes and not scopes[-1]:
        scopes[-1].update(clause)


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
            strange -= _said_before(words, [text for text, _ in pieces], own)
            if any(strange & other and _alike(other, own) for other in others):
                return True
            if strange & _next_to_others(part, numbers, stems):
                return True
    return False


def _said_before(words: set[str], pieces: Sequence[set[str]], own: Sequence[set[str]]) -> set[str]:
    """The words that a part shares with an earlier one: "exported" in "Norway exported 2.9 million, Iceland 1.1".

    Such a part names what it is about, and the earlier one does not.
    """
    said: set[str] = set()
    for place, piece in enumerate(pieces):
        if piece in own:
            said = said.union(*(other for other in pieces[:place] if (words & piece) - other))
    return said


def _next_to_others(source: str, numbers: Collection[str], stems: Callable[[str], list[str]]) -> set[str]:
    """The stems of the two words on each side of numbers that are not in `numbers`, as in "0.9 (the default)"."""
    tokens = [match.group() for match in _TOKEN.finditer(source)]
    neighbours: set[str] = set()
    for place, token in enumerate(tokens):
        if token[0].isdigit() and token.casefold() not in numbers:
            neighbours.update(_content(" ".join(tokens[max(place - 2, 0) : place + 3]), stems))
    return neighbours


def _alike(other: set[str], own: Sequence[set[str]]) -> bool:
    """Return True if a clause is built like one of the others: half of their words are the same."""
    return any(2 * len(other & mine) >= min(len(other), len(mine)) - 1 and other & mine for mine in own)


def _turned(text: str, source: str, stems: Callable[[str], list[str]]) -> bool:
    """Return True if the words around a shared word are exchanged: "A needs B" from "B needs A"."""
    if bool(_BY.search(text)) != bool(_BY.search(source)):
        return False  # one of them may be in the passive voice
    places: dict[str, list[int]] = {}
    front = {stem for side in (text, source) for stem in _content(_front(side), stems)}
    for place, word in enumerate(_content(source, stems)):
        places.setdefault(word, []).append(place)
    own = [word for word in _content(text, stems) if word not in front]
    shared = [places[word][0] for word in own if len(places.get(word, ())) == 1 and own.count(word) == 1]
    lowest = list(accumulate(reversed(shared), min))[::-1]
    highest = list(accumulate(shared, max))
    return any(highest[i - 1] > shared[i] > lowest[i + 1] for i in range(1, len(shared) - 1))


def _front(text: str) -> str:
    """The phrase of time or place that a sentence begins with; empty if it begins otherwise."""
    words = text.split()
    if not words or words[0].lower() not in _FRONT:
        return ""
    end = next((i for i, word in enumerate(words[1:], 1) if i > 1 and word.lower() in STOP), len(words))
    comma = next((i + 1 for i, word in enumerate(words) if word.endswith(",")), end)
    return " ".join(words[1 : min(end, comma)])
