"""Search queries from a chat's last message, joined with earlier messages if it refers back to them."""

import re
from collections.abc import Callable, Hashable, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Final, TypeVar

from engine.documents.query_terms import STOP, WORD, words_of

if TYPE_CHECKING:
    from engine.chat.query import ChatQuery

T = TypeVar("T")
# Maximum length of a query. If a long text was pasted before the question, only the end is searched for.
_MAX_CHARS: Final = 4000
# Maximum number of earlier messages to join; a chain of follow-up questions leads back to the topic.
_MAX_BACK: Final = 3
_PRONOUN: Final = re.compile(
    r"\b(?:it|its|they|them|their|he|him|his|she|her|hers|(?<!is )(?<!are )(?<!was )(?<!were )(?<!be )there"
    r"|ihn|ihm|ihnen|dessen|deren|dort|davon|dazu|dafür|damit|darüber|elle|elles|ils|leur|cela|ello|ella|ellos)\b"
    r"|\b(?:this|that|these|those|das|dies)\b(?=\s*(?:[?.!,]|$)|\s+(?:is|was|are|were|one|ones|mean|happen|work)\b)",
    re.IGNORECASE,
)
_CONTINUES: Final = re.compile(
    r"^\W*(?:and|but|or|also|then|what about|how about|und|oder|aber|auch|et|mais|ou|y|pero|o)\b", re.IGNORECASE
)
# With one of these verbs, a question with a single content word is complete: "What is photosynthesis?", but not
# "Which year?".
_VERB: Final = re.compile(
    r"\b(?:is|are|was|were|be|do|does|did|has|have|had|can|could|will|would|may|must|should|mean|means"
    r"|ist|sind|war|waren|hat|haben|kann|est|sont|es|son)\b",
    re.IGNORECASE,
)


def questions_of(query: "ChatQuery") -> tuple[str, ...]:
    """Search queries: the last message and, if it refers back, also the last messages joined.

    A complete question is never joined with others, because their words would find unrelated passages.
    """
    texts = [text for m in query.messages if m.role == "user" and (text := m.text()).strip()]
    if not texts:
        return ()
    last = texts[-1]
    if len(texts) == 1 or not points_back(last):
        return (last[-_MAX_CHARS:],)
    joined = [last]
    for earlier in reversed(texts[-1 - _MAX_BACK : -1]):
        joined.insert(0, earlier)
        if not points_back(earlier):
            break
    return last[-_MAX_CHARS:], "\n".join(joined)[-_MAX_CHARS:]


# Separators of the two subjects of a question.
_JOINT: Final = re.compile(
    r"[;?]\s+|[,;]?\s+(?:and|or|und|oder|et|ou|y|o|versus|vs\.?|than|als|(?:as )?compared (?:with|to))\s+",
    re.IGNORECASE,
)
_MAX_PARTS: Final = 4


def parts_of(question: str) -> tuple[str, ...]:
    """The parts of a question with several subjects, to be searched by themselves; none if it has only one.

    A part that points back ("and what does it do?", "and B differ in size") is searched with the whole question.
    """
    pieces = dict.fromkeys(piece.strip(" ?.,;") for piece in _JOINT.split(question))
    telling = [piece for piece in pieces if any(word.lower() not in STOP for word in WORD.findall(piece))]
    whole = [piece for piece in telling if not _PRONOUN.search(piece)]
    return tuple(whole) if 1 < len(telling) <= _MAX_PARTS else ()


def points_back(text: str) -> bool:
    """Whether a message depends on earlier messages, estimated from its words."""
    telling = [word for word in words_of(text) if word.lower() not in STOP]
    if not telling or _PRONOUN.search(text) or _CONTINUES.match(text):
        return True
    return len(telling) == 1 and not _VERB.search(text)


def interleaved(rankings: Sequence[Sequence[T]], key: Callable[[T], Hashable]) -> list[T]:
    """The items of several rankings in alternation, without duplicates."""
    by_key: dict[Hashable, T] = {}
    for row in zip_longest(*rankings):
        for item in row:
            if item is not None:
                by_key.setdefault(key(item), item)
    return list(by_key.values())
