"""How a summary is asked for and put together: the model's words, and lines that must not change, as they were."""

import re
from collections.abc import Sequence
from typing import Final

from app.db.records import Fold, Message

# Tokens of the model's own words.
SUMMARY_TOKENS: Final = 220
INSTRUCTION: Final = (
    "Summarize our conversation above in at most 120 words for yourself, so that you can go on without it. Keep "
    "names, numbers, dates, decisions, what was asked for and what is still open. Write only the summary."
)
_MERGE: Final = (
    "These are summaries of successive parts of one conversation. Write one summary of at most 150 words that "
    "keeps names, numbers, dates, decisions and what is still open. Write only the summary.\n\n"
)
# Lines kept word by word: at most so many, of at most so many characters.
_QUOTES: Final = 8
_QUOTE_CHARS: Final = 180
_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+|\n+")
_QUOTED: Final = "Word for word:"
_NUMBER: Final = re.compile(r"\d")
_NAME: Final = re.compile(r"(?<!^)(?<![.!?] )\b[A-Z][\w-]+")
_REQUEST: Final = re.compile(
    r"\b(remember|must|never|always|prefer|important|my|called|named|decided|agreed)\b", re.IGNORECASE
)


def merge_question(folds: Sequence[Fold]) -> str:
    """What asks for one summary of several."""
    return _MERGE + "\n\n".join(without_quotes(fold.summary) for fold in folds)


def text_question(messages: Sequence[Message], most_chars: int) -> str:
    """What asks for a summary of messages that do not fit as they are: long ones lose their middle, and say so."""
    share = max(200, most_chars // max(1, len(messages)))
    lines = []
    for message in messages:
        text = message.content
        if len(text) > share:
            text = f"{text[: share // 2]}\n[… {len(text) - share} characters left out …]\n{text[-share // 2 :]}"
        lines.append(f"{message.role}: {text}")
    return "\n\n".join(lines)[:most_chars] + f"\n\n{INSTRUCTION}"


def put_together(words: str, quotes: Sequence[str]) -> str:
    """The text of a fold."""
    parts = [words.strip()]
    if quotes:
        parts.append("\n".join([_QUOTED, *(f"- {quote}" for quote in quotes)]))
    return "\n".join(part for part in parts if part)


def quotes_of(messages: Sequence[Message]) -> list[str]:
    """Sentences of the person with names, numbers or wishes, in their order: what small models lose first."""
    found: list[tuple[int, int, str]] = []
    for message in messages:
        if message.role != "user":
            continue
        for sentence in _SENTENCE.split(message.content):
            text = " ".join(sentence.split())
            if not text or len(text) > _QUOTE_CHARS:
                continue
            weight = (
                2 * bool(_NUMBER.search(text)) + min(2, len(_NAME.findall(text))) + 2 * bool(_REQUEST.search(text))
            )
            if weight > 1:
                found.append((weight, len(found), text))
    best = sorted(found, key=lambda entry: (-entry[0], entry[1]))[:_QUOTES]
    return list(dict.fromkeys(text for _, _, text in sorted(best, key=lambda entry: entry[1])))


def quotes_in(folds: Sequence[Fold]) -> list[str]:
    """What the summaries of these folds have word for word."""
    lines = [
        line[2:] for fold in folds for line in fold.summary.partition(_QUOTED)[2].splitlines() if line[:2] == "- "
    ]
    return list(dict.fromkeys(lines))[: 2 * _QUOTES]


def without_quotes(summary: str) -> str:
    """The model's own words of a summary."""
    return summary.partition(_QUOTED)[0].strip()
