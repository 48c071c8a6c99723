"""The content words of a query or a sentence, with the same stemming as the full-text index."""

import re
from collections.abc import Sequence
from typing import Final

import apsw

TOKENIZER: Final = ("porter", "unicode61", "remove_diacritics", "2")
WORD: Final = re.compile(r"\w+(?:['\u2019]\w+)?", re.UNICODE)
# Stop words in the languages of most users' documents.
_STOP_WORDS: Final = (
    "a about above after again against all also am an and any are aren't as at be because been before being "
    "below between both but by can can't cannot could couldn't did didn't do does doesn't doing don't done "
    "down during each few for from further get gets give given had has have having he her here hers him his "
    "how i if in into is isn't it its it's itself just let's like make makes many may me might more most much "
    "must my no nor not now of off on once one only or other our out over own please same say says shall she "
    "should so some such tell than that that's the their them then there these they this those through to too "
    "under until up upon us use used uses using very was we were what what's when where which while who whom "
    "whose why will with would you your yours der die das und oder ein eine einer eines einem einen ist sind "
    "war waren wie wer wo wann warum welche welcher welches von zu im am den dem des mit für auf aus bei "
    "nicht auch es er sie wir ich le la les un une des et ou est sont qui que quoi où quand comment pourquoi "
    "de du dans sur avec pour par ne pas el los las una y o es son quién qué dónde cuándo cómo por para con "
    "en del al "
)
STOP: Final = frozenset(_STOP_WORDS.split())


class Stemmer:
    """Stems words as FTS5 does. It uses the connection that it was created with, so hold that connection's lock."""

    def __init__(self, connection: apsw.Connection, tokenizer: Sequence[str] = TOKENIZER) -> None:
        self._tokenize = connection.fts5_tokenizer(tokenizer[0], list(tokenizer[1:]))

    def stems(self, text: str) -> list[str]:
        """The stem of every word, in order."""
        tokens = self._tokenize(text.encode("utf-8", "replace"), apsw.FTS5_TOKENIZE_DOCUMENT, None)
        return [token for entry in tokens for token in entry[2:]]

    def telling(self, text: str) -> dict[str, str]:
        """Content words of a text with their stems, in order; all words if it has only stop words."""
        words = dict.fromkeys(word for word in WORD.findall(text) if len(word) > 1 or word.isdecimal())
        content_words = [word for word in words if word.lower() not in STOP] or list(words)
        stemmed = ((word, self.stems(word)) for word in content_words)
        return {word: stems[0] for word, stems in stemmed if stems}
