"""Checks whether the passages support the sentences of an answer.

It compares words and embeddings and understands nothing. A sentence that denies a passage shares its words and
passes. A sentence marked as unsupported deserves a check; an unmarked one is not proven.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from engine.documents.query_terms import STOP, WORD
from engine.documents.types import CheckedSentence
from engine.documents.vectors import above

# End of a sentence or line, but not after an initial or a number ("No. 5", "J. Smith").
_END: Final = re.compile(r"(?<=[^\s.][.!?])[\"')\]]*\s+(?=[\"'(\[]?[A-Z\u00c0-\u00deÀ-ÖØ-Þ0-9*-])|\n+")
_NUMBER: Final = re.compile(r"\d+(?:[.,:]\d+)*")
_REFERENCE: Final = re.compile(r"\[\d+\]")
# Measured on the benchmark's passages: log-archive.md, "Documents".
_OVERLAP: Final = 0.6
_OVERLAP_WITH_MEANING: Final = 0.35
_COSINE: Final = 0.62
# Shorter sentences ("Yes.", "Here is what I found:") contain no claim to check.
_LEAST_WORDS: Final = 3
# Consecutive sentences of a passage that are compared as one: an answer often merges two sentences.
_WINDOW: Final = 2


class Sentence(msgspec.Struct, frozen=True):
    """A sentence of an answer, with its character offsets."""

    start: int
    end: int
    text: str


def sentences(text: str) -> list[Sentence]:
    """The sentences of an answer that contain a claim."""
    found, at = [], 0
    for end in [*(m for m in _END.finditer(text)), None]:
        stop = end.start() if end else len(text)
        piece = text[at:stop]
        bare = _REFERENCE.sub("", piece).strip()
        if len([w for w in WORD.findall(bare) if w.lower() not in STOP]) >= _LEAST_WORDS:
            lead = len(piece) - len(piece.lstrip())
            found.append(Sentence(at + lead, at + len(piece.rstrip()), bare))
        at = end.end() if end else stop
    return found


def windows(passages: Sequence[str]) -> list[tuple[int, str]]:
    """Sentence windows of the passages to compare with, each with its passage number (from 1)."""
    found: list[tuple[int, str]] = []
    for number, passage in enumerate(passages, 1):
        pieces = [piece.strip() for piece in _END.split(passage.replace("\n", " ")) if piece and piece.strip()]
        found += [(number, " ".join(pieces[i : i + _WINDOW])) for i in range(max(len(pieces) - 1, 1))]
    return found


def check(
    asked: Sequence[Sentence],
    pieces: Sequence[tuple[int, str]],
    stems: Callable[[str], list[str]],
    vectors: tuple[Any, Any] | None = None,
    floor: float = 0.0,
) -> list[CheckedSentence]:
    """The check result of each sentence.

    vectors: unit vectors of the sentences and of the windows, float32 of (n, width) each; None: compare words only.
    floor: the embedding model's cosine for unrelated texts.
    """
    held = [set(stems(text)) for _, text in pieces]
    everything = set().union(*held) if held else set()
    cosines = above(vectors[0] @ vectors[1].T, floor) if vectors is not None and len(pieces) else None
    return [
        _verdict(sentence, pieces, held, everything, stems, None if cosines is None else cosines[row])
        for row, sentence in enumerate(asked)
    ]


def _verdict(
    sentence: Sentence,
    pieces: Sequence[tuple[int, str]],
    held: Sequence[set[str]],
    everything: set[str],
    stems: Callable[[str], list[str]],
    cosines: Any | None,
) -> CheckedSentence:
    telling = [word for word in WORD.findall(sentence.text) if word.lower() not in STOP]
    wanted = {stem for word in telling for stem in stems(word)[:1]}
    overlaps = [len(wanted & own) / max(len(wanted), 1) for own in held]
    both = overlaps if cosines is None else [o + float(c) for o, c in zip(overlaps, cosines, strict=True)]
    best = max(range(len(pieces)), key=both.__getitem__, default=None)
    if best is None:
        return CheckedSentence(start=sentence.start, end=sentence.end, carried=False)
    overlap, cosine = overlaps[best], None if cosines is None else float(cosines[best])
    missing = _missing(sentence.text, telling, everything, stems)
    by_meaning = cosine is not None and cosine >= _COSINE and overlap >= _OVERLAP_WITH_MEANING
    carried = (overlap >= _OVERLAP or by_meaning) and not missing
    return CheckedSentence(
        start=sentence.start,
        end=sentence.end,
        carried=carried,
        passage=pieces[best][0] if both[best] > 0 else 0,
        overlap=round(overlap, 3),
        cosine=None if cosine is None else round(cosine, 3),
        missing=missing,
    )


def _missing(
    text: str, telling: Sequence[str], everything: set[str], stems: Callable[[str], list[str]]
) -> tuple[str, ...]:
    """Numbers and names of a sentence that are in no passage: a single wrong one makes the sentence wrong."""
    numbers = [n for n in _NUMBER.findall(text) if not set(stems(n)) <= everything]
    names = [w for w in telling if w[0].isupper() and not text.startswith(w) and not set(stems(w)) <= everything]
    return tuple(dict.fromkeys((*numbers, *names)))
