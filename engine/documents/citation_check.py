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

from engine.documents.query_terms import (
    CODE,
    DENIALS,
    ENDING_CHARS,
    EXCEPTIONS,
    EXCLUSIVE,
    LACKS,
    LIGHT,
    OPPOSITES,
    REFUSALS,
    STOP,
    TOKEN,
    WORD,
    content_stems,
    content_words,
    exact_terms,
    in_figures,
    is_german,
    lacking_terms,
    missing_terms,
    term_forms,
    without_endings,
)
from engine.documents.types import CheckedSentence, Doubt
from engine.documents.vectors import above

# End of a sentence or line, but not after an initial or a number ("No. 5", "J. Smith"). A sentence may begin with a
# path or a name in code ("gc.auto is", "/srv has").
_END: Final = re.compile(
    r"(?<=[^\s.][.!?])[\"')\]]*\s+(?=[\"'(\[]?(?:[A-Z\u00c0-\u00deÀ-ÖØ-Þ0-9*/-]|[a-z]\w*[._(/]\w))|\n+"
    r"|(?<=[\u3002\uff01\uff1f])\s*"
)
# "Am 1. März", "im 19. Jahrhundert": in German a period after a number may make it an ordinal. "Dr. Seidel".
_NO_END: Final = re.compile(
    r"(?:\b(?:am|im|vom|zum|zur|der|die|das|dem|den|des|bis|ab|und)\s\d{1,2}\."
    r"|\b\d{1,2}\.(?=\s(?:Jan|Feb|Mär|Apr|Mai|Jun|Jul|Aug|Sep|Okt|Nov|Dez))"
    r"|\b(?-i:Dr|Mr|Mrs|Ms|Prof|St|Nr|Fig|Abb|vgl|bzw|ca|vs)\.)$",
    re.IGNORECASE,
)
_NO_END_CHARS: Final = 12
_ONLY: Final = re.compile(r"\b(?:only|solely|nur|ausschließlich|seulement|uniquement|sólo|solo|solamente)\b")
# "No longer", "nicht mehr": the word belongs to the denial.
_WITH_DENIAL: Final = frozenset({"longer", "more", "mehr", "plus", "más"})
_DENIAL: Final = re.compile(r"\w+n't|\w+|[.,;:!?](?=\s)")
# "No higher than 9" and "9 or less" mean the same.
_AT_MOST: Final = re.compile(r"\b(?:no|not)(?= (?:more|less|\w+er) than\b)")
# Number of content words after such a word that it denies.
_DENIED: Final = 2
# Longer sentences are not aligned word by word.
_ALIGNED: Final = 80
# A sentence that differs in one place from one of the source: words that differ, at most, and that are equal.
_MOST_PUT_IN, _LEAST_EQUAL = 3, 2
# A statement with one of these at its front is about what an earlier one names.
_PRONOUN: Final = re.compile(
    r"^\W*(?:\w+\s)?(?:it|he|she|they|this|these|es|er|sie|dies|diese|il|elle|ils|elles)\b", re.IGNORECASE
)
_CLAUSES: Final = re.compile(r"[,;:]\s+|\s(?:and|or|but|while|whereas|und|oder|aber|et|ou|mais|y|o|pero)\s")
# An answer that joins two statements of its source.
_JOINS: Final = re.compile(r";|\b(?:and|but|while|which|who|und|aber|et|mais|y|pero)\b")
_BY: Final = re.compile(r"\b(?:by|via|von|durch|par|por)\b")
_CELLS: Final = " | "
# A phrase of time or place at the front of a sentence may as well be at its end.
_FRONT: Final = frozenset(
    {"on", "in", "at", "since", "until", "during", "after", "before", "from", "by", "for", "with", "under"}
    | {"if", "when", "while", "because", "although", "without", "wenn", "falls", "weil", "sobald", "ohne", "obwohl"}
    | {
        "am",
        "im",
        "in",
        "an",
        "bei",
        "seit",
        "bis",
        "ab",
        "vor",
        "nach",
        "mit",
        "für",
        "auf",
        "unter",
        "während",
        "um",
    }
)
# "Eight years later".
_LATER: Final = frozenset(
    {"later", "earlier", "ago", "afterwards", "später", "früher", "zuvor", "danach", "darauf"}
)
_FRONT_WORDS: Final = 4
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
        if len([word for word in content_words(bare) if not word.isdigit()]) >= _LEAST_WORDS:
            lead = len(piece) - len(piece.lstrip())
            result.append(Sentence(at + lead, at + len(piece.rstrip()), bare))
        at = end.end() if end else stop
    return result


def is_claim(sentence: Sentence) -> bool:
    """Return False for a short sentence, which may be about nothing in the sources."""
    return len(content_words(sentence.text)) >= _CLAIM_WORDS


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
    """Consecutive sentences of a passage: its number (from 1), their text, and each sentence by itself."""

    passage: int
    text: str
    parts: tuple[str, ...]


def windows(passages: Sequence[str]) -> list[Window]:
    """Windows of the passages to compare with: two sentences, or a row of a table with the table's head."""
    result: list[Window] = []
    for number, passage in enumerate(passages, 1):
        head, *rows = [line for line in passage.split("\n") if line.strip()] or [""]
        if rows and all(_CELLS in line for line in (head, *rows)):
            result += [Window(number, f"{head} {row}", (f"{head} {row}",)) for row in rows]
            continue
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
    if any(is_german(piece.text) for piece in pieces):
        stems = without_endings(stems)
    stems = cache(stems)
    piece_stems = [set(stems(in_figures(piece.text))) for piece in pieces]
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
    sentence_stems = set(content_stems(in_figures(sentence.text), stems))
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
        missing = missing_terms(sentence.text, pieces[at].text)
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


def _doubt(text: str, window: Window, stems: Callable[[str], list[str]]) -> "Doubt":
    """Why the sentence may be wrong although its words occur in the source."""
    if _denied(text, window.text, stems) or _says_opposite(text, window, stems):
        return "negation"
    sentence_stems = set(content_stems(text, stems))
    exact = exact_terms(text)
    join = _JOINS.search(text)
    best = max(
        window.parts, key=lambda part: (len(sentence_stems & set(stems(part))), -len(lacking_terms(exact, part)))
    )
    if not join and _other_instead(exact, best):
        return "apart"
    clauses = _CLAUSES.split(text)
    if any(_is_put_in(statement, window, stems) for statement in (clauses if join else [text])):
        return "apart"
    if any(_bound_elsewhere(clause, window, stems) for clause in clauses):
        return "apart"
    return "order" if any(_turned(text, part, stems) for part in window.parts) else ""


def _other_instead(exact: Mapping[str, str], source: str) -> bool:
    """Return True if the nearest sentence has a different number or code in its place."""
    lacks = lacking_terms(exact, source)
    others = [form for form in exact_terms(source) if form not in exact]
    return any(form[0].isdigit() == other[0].isdigit() for form in lacks for other in others)


def _is_put_in(text: str, window: Window, stems: Callable[[str], list[str]]) -> bool:
    """Return True if the nearest statement of the window has other words in one place.

    These stand elsewhere in the window ("profit rose" where revenue rose and profit fell), or are unknown to it
    and replace a code.
    """
    nearest = in_figures(_nearest(text, window, stems))
    own, source = content_stems(in_figures(text), stems), content_stems(nearest, stems)
    change = _one_change(own, source)
    if change is None or _CELLS in window.text:
        return False
    if any(_is_subsequence(own, content_stems(in_figures(part), stems)) for part in window.parts):
        return False
    new_words, old_words = change
    old_words -= {stem for word in REFUSALS for stem in stems(word)}
    if not old_words or (own[0] in new_words and _PRONOUN.search(nearest)):
        return False  # "The pump stops": "It stops"
    window_stems = set(content_stems(window.text, stems))
    if new_words <= window_stems - set(source):
        return not any(stem.isdigit() for stem in new_words)
    codes = {stem for token in exact_terms(nearest).values() if CODE.search(token) for stem in stems(token)}
    return len(new_words) == 1 and not new_words & window_stems and old_words <= codes


def _one_change(own: Sequence[str], source: Sequence[str]) -> tuple[set[str], set[str]] | None:
    """The few words that stand in place of others of the source, and these, if nothing else differs."""
    if len(own) > _ALIGNED or len(source) > _ALIGNED:
        return None
    codes = SequenceMatcher(None, own, source, autojunk=False).get_opcodes()
    changes = [code for code in codes if code[0] in {"replace", "delete"}]
    if len(changes) != 1 or changes[0][0] != "replace":
        return None
    _, i, j, k, m = changes[0]
    new_words, old_words = set(own[i:j]), set(source[k:m]) - set(own)
    if len(new_words) > _MOST_PUT_IN or len(own) - (j - i) < _LEAST_EQUAL:
        return None
    if len(new_words) == 1 and any(_is_variant(own[i], stem) for stem in old_words):
        return None
    return new_words, old_words


def _is_variant(stem: str, other: str) -> bool:
    """Return True if both may be forms of one verb: "paid" and "pay"."""
    return stem[:2] == other[:2] and abs(len(stem) - len(other)) <= ENDING_CHARS


def _is_subsequence(words: Sequence[str], source: Sequence[str]) -> bool:
    rest = iter(source)
    return all(word in rest for word in words)


def _nearest(text: str, window: Window, stems: Callable[[str], list[str]]) -> str:
    """As many clauses of one of the window's sentences as the text has, which share most with it."""
    own, count = set(content_stems(text, stems)), len(_CLAUSES.split(text))
    best, share = "", 0.0
    for part in window.parts:
        starts = [0, *(match.end() for match in _CLAUSES.finditer(part))]
        ends = [*(match.start() for match in _CLAUSES.finditer(part)), len(part)]
        for start, end in zip(starts, ends[min(count, len(ends)) - 1 :], strict=False):
            words = set(content_stems(part[start:end], stems))
            dice = 2 * len(own & words) / max(len(own) + len(words), 1)
            if dice > share:
                best, share = part[start:end], dice
    return best


def _denied(text: str, window: str, stems: Callable[[str], list[str]]) -> bool:
    """Return True if exactly one of both denies a shared word. Denials that share a word are the same denial."""
    plain, denials, refused = _polarity(text, stems)
    source_plain, source_denials, source_refused = _polarity(window, stems)
    source_stems = source_plain.union(*(denial.scope for denial in source_denials))
    own = [
        denial.scope
        for denial in denials
        if not _is_stated(denial, source_denials, source_refused)
        and (denial.scope <= source_stems or not any(denial.clause & other.clause for other in source_denials))
    ]
    others = [
        denial.scope
        for denial in source_denials
        if not _is_stated(denial, denials, refused)
        and not any(denial.clause & other.clause and not other.scope <= source_stems for other in denials)
    ]
    if _ONLY.search(window) and len(denials) + len(refused) > 1:
        own = []  # "not without" and "not unless" for "only with"
    if _ONLY.search(text) and len(source_denials) + len(source_refused) > 1:
        others = []
    if any(own) and not any(denial.scope for denial in source_denials):
        return True
    if any(word in source_plain for scope in own for word in scope):
        return True
    plain -= {word for denial in denials for word in denial.scope}
    return any(word in plain and word not in source_plain for scope in others for word in scope)


class Denial(msgspec.Struct, frozen=True):
    """The stems of the words that a denial denies, and those of its clause; no clause: it denies a refusal."""

    scope: set[str]
    clause: set[str]


def _is_stated(denial: Denial, others: Sequence[Denial], refused: Sequence[set[str]]) -> bool:
    """Return True if one of the other text's denials denies the same, or its clause refuses it ("is excluded")."""
    return any(
        denial.scope & other.scope or (other.scope == other.clause and denial.clause & other.scope)
        for other in others
    ) or any(denial.clause & clause for clause in refused)


def _says_opposite(text: str, window: Window, stems: Callable[[str], list[str]]) -> bool:
    """Return True if the window has only the opposite of a word.

    Either before the same next word ("after a meal") or, of words that exclude each other, in the nearest sentence.
    """
    source = _opposites_before(window.text, stems)
    own = _opposites_before(text, stems) - source
    if any((OPPOSITES[word], then) in source for word, then in own):
        return True
    nearest = _nearest(text, window, stems)
    if len(_polarity(text, stems)[1]) != len(_polarity(nearest, stems)[1]):
        return False  # "not open" for "closed"
    words, source_words = set(stems(text)), set(stems(nearest))
    strange = words - set(stems(window.text))
    return any(strange & row and source_words & row for row in map(set, map(stems, EXCLUSIVE)))


def _opposites_before(text: str, stems: Callable[[str], list[str]]) -> set[tuple[str, str]]:
    """Words that have an opposite, each with the stem of the next content word."""
    pairs, then = set(), ""
    for word in reversed(WORD.findall(text)):
        if word.lower() in OPPOSITES and then:
            pairs.add((word.lower(), stems(then)[0]))
        if word.lower() not in STOP:
            then = word
    return pairs


def _polarity(text: str, stems: Callable[[str], list[str]]) -> tuple[set[str], list[Denial], list[set[str]]]:
    """The stems of the content words that are stated, the denials, and the clauses that refuse what they name."""
    plain: set[str] = set()
    denials: list[Denial] = []
    refused: list[set[str]] = []
    clause: set[str] = set()
    words_left = 0
    for match in _DENIAL.finditer(_AT_MOST.sub("", text)):
        word = match.group()
        if not word[0].isalnum() or word.lower() in EXCEPTIONS:
            _deny_clause(denials, clause)
            words_left, clause = 0, set()
            if word[0].isalnum():
                refused.append(clause)
        elif word in DENIALS or word.endswith("n't") or (word.istitle() and word.lower() in DENIALS - {"none"}):
            words_left = _DENIED
            denials.append(Denial(set(), clause))
        elif word.lower() in LACKS:
            words_left = 1
            denials.append(Denial(set(), clause))
        elif words_left == _DENIED and word in _WITH_DENIAL:
            pass
        elif word.lower() not in STOP and word.lower() not in LIGHT:
            if word.lower() in REFUSALS and words_left:
                denials[-1] = Denial(denials[-1].scope, set())
            elif word.lower() in REFUSALS:
                refused.append(clause)
            (denials[-1].scope if words_left else plain).update(stems(word))
            clause.update(stems(word))
            words_left = max(words_left - 1, 0)
    _deny_clause(denials, clause)
    return plain, denials, refused


def _deny_clause(denials: list[Denial], clause: set[str]) -> None:
    """Let a denial at the end of a clause deny all of it, as in German: "Das Gerät ist es nicht"."""
    if denials and not denials[-1].scope:
        denials[-1].scope.update(clause)


def _bound_elsewhere(clause: str, window: Window, stems: Callable[[str], list[str]]) -> bool:
    """Return True if the source states a number about something else than this clause does.

    "Resolved items older than 15 days" from "unresolved items older than 15 days and resolved items older than 60":
    the part with 15 lacks "resolved", and a similar part, or the words next to another number, contain it.
    """
    numbers = {form: shown for form, shown in exact_terms(clause).items() if form[0].isdigit()}
    for part in window.parts:
        pieces = [(set(content_stems(piece, stems)), term_forms(piece)) for piece in _CLAUSES.split(part)]
        for number, shown in numbers.items():
            words = set(content_stems(clause[: clause.find(shown)], stems))
            own = [text for text, forms in pieces if number in forms]
            others = [
                text
                for text, forms in pieces
                if not forms & numbers.keys() and any(form[:1].isdigit() for form in forms)
            ]
            strange = words - set().union(*own) if own else set()
            strange -= _stated_before(words, [text for text, _ in pieces], own)
            if any(strange & other and _alike(other, own) for other in others):
                return True
            if strange & _next_to_others(part, numbers, stems):
                return True
    return False


def _stated_before(words: set[str], pieces: Sequence[set[str]], own: Sequence[set[str]]) -> set[str]:
    """The words that a part shares with an earlier one: "exported" in "Norway exported 2.9 million, Iceland 1.1".

    Such a part names what it is about, and the earlier one does not.
    """
    shared_words: set[str] = set()
    for place, piece in enumerate(pieces):
        if piece in own:
            shared_words = shared_words.union(*(other for other in pieces[:place] if (words & piece) - other))
    return shared_words


def _next_to_others(source: str, numbers: Collection[str], stems: Callable[[str], list[str]]) -> set[str]:
    """The stems of the two words on each side of numbers that are not in `numbers`, as in "0.9 (the default)"."""
    tokens = [match.group() for match in TOKEN.finditer(source)]
    neighbours: set[str] = set()
    for place, token in enumerate(tokens):
        if token[0].isdigit() and token.casefold() not in numbers:
            neighbours.update(content_stems(" ".join(tokens[max(place - 2, 0) : place + 3]), stems))
    return neighbours


def _alike(other: set[str], own: Sequence[set[str]]) -> bool:
    """Return True if a clause is built like one of the others: half of their words are the same."""
    return any(2 * len(other & mine) >= min(len(other), len(mine)) - 1 and other & mine for mine in own)


def _turned(text: str, source: str, stems: Callable[[str], list[str]]) -> bool:
    """Return True if the words around a shared word are exchanged: "A needs B" from "B needs A"."""
    if bool(_BY.search(text)) != bool(_BY.search(source)):
        return False  # one of them may be in the passive voice
    places: dict[str, list[int]] = {}
    front = {unit for side in (text, source) for unit in _units_in_order(_front(side), stems)}
    first = text.split(maxsplit=1)[0] if text.strip() else ""
    if is_german(source) and first.lower() in source.split():
        front.update(stems(first))  # an adverb: "Jährlich prüft das Labor" for "Das Labor prüft jährlich"
    for place, word in enumerate(_units_in_order(source, stems)):
        places.setdefault(word, []).append(place)
    own = [word for word in _units_in_order(text, stems) if word not in front]
    shared = [places[word][0] for word in own if len(places.get(word, ())) == 1 and own.count(word) == 1]
    lowest = list(accumulate(reversed(shared), min))[::-1]
    highest = list(accumulate(shared, max))
    return any(highest[i - 1] > shared[i] > lowest[i + 1] for i in range(1, len(shared) - 1))


def _units_in_order(text: str, stems: Callable[[str], list[str]]) -> list[str]:
    """The stems of the content words; a number or code is one unit."""
    tokens = (match.group() for match in TOKEN.finditer(in_figures(text)))
    return [u for t in tokens for u in ([t.casefold()] if CODE.search(t) else content_stems(t, stems))]


def _front(text: str) -> str:
    """The phrase of time or place that a sentence begins with; empty if it begins otherwise."""
    words = text.split()
    later_end = next((i for i, word in enumerate(words[:_FRONT_WORDS], 1) if word.lower() in _LATER), 0)
    if later_end:
        return " ".join(words[:later_end])
    if not words or words[0].lower() not in _FRONT:
        return ""
    comma = next((i + 1 for i, word in enumerate(words) if word.endswith(",")), 0)
    end = next((i for i, word in enumerate(words) if i > 1 and word.lower() in STOP), 0)
    if not end:  # "in the final", "on 3 May 2021"
        end = next((i for i, word in enumerate(words) if i and word.lower() not in STOP), len(words)) + 1
        while end < len(words) and any(word[0].isdigit() for word in words[end : end + 2]):
            end += 1
    return " ".join(words[1 : comma or end])
