"""The content words of a text, stemmed as in the full-text index, and its numbers, names and codes."""

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import apsw

TOKENIZER: Final = ("porter", "unicode61", "remove_diacritics", "2")
# Vowel signs of Indic scripts belong to words, too.
WORD: Final = re.compile(r"[\w\u0900-\u0963\u0966-\u0dff]+(?:['\u2019]\w+)?", re.UNICODE)
# Invisible characters, and vowel signs of Hebrew and Arabic, which most texts leave out.
_UNSEEN: Final = re.compile(
    "[\u00ad\u200b-\u200f\u2060\ufeff\u0591-\u05bd\u05bf-\u05c7\u0610-\u061a\u0640\u064b-\u065f\u0670]"
)
# Text in scripts without spaces between words (Chinese, Japanese), and Korean, whose words have endings.
_UNSPACED: Final = re.compile(
    "[\u3005-\u3007\u3041-\u3096\u30a1-\u30fa\u30fc-\u30ff\u3105-\u312f\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7a3\uf900-\ufaff\U00020000-\U000323af]+"
)
# Characters between its content words: Hiragana, and particles and pronouns of Chinese.
_BETWEEN: Final = re.compile("[\u3041-\u3096的是了吗嗎呢吧什么麼谁誰哪怎这這那们們几幾与與]+")
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
# Numbers in words; "one" is as often a pronoun.
_COUNT_WORDS: Final = (
    "two three four five six seven eight nine ten eleven twelve",
    "zwei drei vier fünf sechs sieben acht neun zehn elf zwölf",
)
COUNTS: Final = {word: str(n) for row in _COUNT_WORDS for n, word in enumerate(row.split(), 2)}
# A source that says "twice" or "for the third time" has these numbers too; a sentence that says so states none.
_ORDINAL_WORDS: Final = (
    "second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth",
    "zweite dritte vierte fünfte sechste siebte achte neunte zehnte elfte zwölfte",
    "twice thrice",
    "zweimal dreimal viermal fünfmal",
)
ORDINALS: Final = {word: str(n) for row in _ORDINAL_WORDS for n, word in enumerate(row.split(), 2)}
# The opposite of one of these before the same word says something else.
_OPPOSITE_PAIRS: Final = (
    "before after, above below, over under, more less, most least, more fewer, maximum minimum, first last, "
    "older newer, earlier later, higher lower, larger smaller, longer shorter, inside outside, on off, "
    "vor nach, über unter, mehr weniger, erste letzte, älter neuer, früher später, höher niedriger"
)
# Of these only one can be true of a thing: a sentence with one that the source lacks, and the source with another.
_EXCLUSIVE_ROWS: Final = (
    "approved rejected refused declined, accepted rejected refused declined, allowed forbidden "
    "prohibited, permitted forbidden prohibited, enabled disabled, included excluded, increased "
    "decreased, rises falls, rose fell, grew shrank, won lost, opens closes, opened closed, open closed, "
    "started stopped, began ended, added removed, kept deleted, saved deleted, created deleted, imported "
    "exported, installed removed, encrypted decrypted, connected disconnected, locked unlocked, reading "
    "writing, reads writes, public private, internal external, valid invalid, required optional, possible "
    "impossible, empty full, hot cold, wet dry, true false, upper lower, top bottom, left right, always "
    "never, ascending descending, spring summer autumn winter, morning afternoon evening night, north "
    "south east west, northern southern eastern western, red green blue yellow black white orange purple "
    "brown grey, brother sister, mother father, son daughter, genehmigt abgelehnt, angenommen abgelehnt, "
    "erlaubt verboten, gewonnen verloren, geöffnet geschlossen, offen geschlossen, speichert löscht, "
    "gespeichert gelöscht, stieg sank, links rechts, frühling sommer herbst winter, morgens mittags "
    "abends, nördlich südlich östlich westlich, rot grün blau gelb schwarz weiß"
)
EXCLUSIVE: Final = tuple(_EXCLUSIVE_ROWS.split(", "))
OPPOSITES: Final = {
    word: other for pair in _OPPOSITE_PAIRS.split(", ") for word, other in (pair.split(), pair.split()[::-1])
}
# One of these before a word denies it. In capitals they are code ("NOT NULL").
DENIALS: Final = frozenset(
    {"not", "no", "never", "cannot", "neither", "nor", "none"}
    | {"nicht", "kein", "keine", "keinen", "keiner", "nie", "niemals"}
    | {"pas", "jamais", "aucun", "nunca", "ningún"}
)
# These deny one word: the one after them.
LACKS: Final = frozenset({"without", "ohne", "sans", "sin"})
# These deny what their clause says without a word of DENIALS. The second kind begins a clause.
REFUSALS: Final = frozenset(
    {"forbidden", "prohibited", "banned", "excluded", "avoid", "avoided", "drops", "dropped", "refuses", "refused"}
    | {"verboten", "ausgeschlossen", "untersagt", "vermeiden", "interdit", "exclu", "prohibido", "excluido"}
)
EXCEPTIONS: Final = frozenset({"unless", "except", "außer", "sauf", "salvo"})
# Words that say nothing by themselves in a statement: "takes place", "is now", "findet statt".
_LIGHT_WORDS: Final = (
    "take takes taking took taken now currently already still well otherwise "
    "als man muss müssen kann können darf dürfen soll sollen will hat haben wird werden wurde wurden worden sein "
    "ihr ihre ihren sich zum zur vom beim durch nach vor über unter um bis seit noch nur sowie dass wenn man "
    "findet finden statt erst nun bereits schon "
    "il elle ils elles lui se sa son ses leur avec dans été être avoir a ont él ella se su sus lo ha han ser"
)
LIGHT: Final = frozenset(_LIGHT_WORDS.split())
# Parts that the source must contain literally: numbers, paths, options, names in code, acronyms.
TOKEN: Final = re.compile(r"(?:--?|/)?\w+(?:[.,:/_-]\w+)*(?:\(\d*\))?")
CODE: Final = re.compile(r"\d|^[-/]|\w[_./]\w|[a-z][A-Z]|^[A-Z]{2,}|\(")
_QUOTED: Final = re.compile(r"(['\"`])\w+\1")
_PARTS: Final = re.compile(r"[.,:/]|\(\)$")
_HUMPS: Final = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z][a-z]+")
_COUNT: Final = re.compile(rf"\b(?:{'|'.join(COUNTS)})\b", re.IGNORECASE)
# Numbers with separators: 1,250,000 and 1.480,50 and 1'250.
_GROUPS: Final = re.compile(r"\d{1,3}(?:([.,])\d{3})(?:\1\d{3})*(?:[.,]\d+)?$")
_GROUP_SPACE: Final = re.compile(r"(?<=\d)['\u2019\u00a0\u2009\u202f](?=\d{3}(?!\d))")
_GROUP_SIGN: Final = re.compile(r"(?<=\d)[.,'\u2019\u00a0\u2009\u202f](?=\d{3}(?!\d))")
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
# Words by which a German text is recognized: its nouns have capitals, as elsewhere only names have. One after an
# article is no name, and words with other endings are the same.
_GERMAN: Final = re.compile(
    r"\b(?:der|die|das|dem|des|und|ist|sind|nicht|ein|eine|im|wird|wurde|werden|für|zum|zur|vom|mit|auf|nur|beträgt)\b"
)
_GERMAN_WORDS: Final = 2
_ARTICLE: Final = re.compile(r"\b(?:de[rsmn]|die|das|eine?[rsmn]?|im|am|zu[mr]|vom|beim|ins)\s$", re.IGNORECASE)
_ARTICLE_CHARS: Final = 8
_GERMAN_ENDING: Final = re.compile(r"(?<=\w{4})(?:e[nrsm]?|n|s)$")
# An inflected form has the same beginning: at least so many letters, and all but so many of the shorter word.
_STEM_CHARS, ENDING_CHARS = 4, 3


def searchable(text: str) -> str:
    """The text as the full-text index has it: letters in one form, unspaced text as characters and their pairs."""
    if text.isascii():
        return text
    return _UNSPACED.sub(
        lambda run: f" {' '.join((*run.group(), *_pairs(run.group())))} ", _one_form(text).casefold()
    )


def _one_form(text: str) -> str:
    """Ligatures, wide letters and accents in one form, without invisible characters."""
    return text if text.isascii() else _UNSEEN.sub("", unicodedata.normalize("NFKC", text))


def _pairs(run: str) -> Iterator[str]:
    return (run[at : at + 2] for at in range(len(run) - 1))


def _content_pairs(run: str) -> Iterator[str]:
    """The words of unspaced text for a query: pairs of characters without particles."""
    for part in [part for part in _BETWEEN.split(run) if part] or [run]:
        yield from _pairs(part) if len(part) > 1 else part


def is_unspaced(word: str) -> bool:
    """Return whether a word is of a script without spaces."""
    return _UNSPACED.match(word) is not None


def words_of(text: str) -> list[str]:
    """The words of a text in order; unspaced text as pairs of characters without particles."""
    text = _one_form(text)
    if not text.isascii():
        text = _UNSPACED.sub(lambda run: f" {' '.join(_content_pairs(run.group()))} ", text)
    return WORD.findall(text)


def without_unspaced(text: str) -> str:
    """The text with a space in place of unspaced text: "型番AB-1です" holds the code AB-1."""
    return text if text.isascii() else _UNSPACED.sub(" ", text)


class Stemmer:
    """Stems words as FTS5 does. It uses the connection that it was created with, so hold that connection's lock.

    `form` is the form that the index has of texts.
    """

    def __init__(
        self,
        connection: apsw.Connection,
        tokenizer: Sequence[str] = TOKENIZER,
        form: Callable[[str], str] = searchable,
    ) -> None:
        self._tokenize = connection.fts5_tokenizer(tokenizer[0], list(tokenizer[1:]))
        self._form = form

    def stems(self, text: str) -> list[str]:
        """The stem of every word, in order."""
        tokens = self._tokenize(self._form(text).encode("utf-8", "replace"), apsw.FTS5_TOKENIZE_DOCUMENT, None)
        return [token for entry in tokens for token in entry[2:]]

    def telling(self, text: str) -> dict[str, str]:
        """Content words of a text as they are searched, with their stems; all words if it has only stop words."""
        words = dict.fromkeys(
            word.casefold() for word in words_of(text) if len(word) > 1 or word.isdecimal() or is_unspaced(word)
        )
        content_words = [word for word in words if word not in STOP] or list(words)
        # The last stem of a pair of characters is the pair; the others are its characters.
        stemmed = ((word, self.stems(word)) for word in content_words)
        return {word: stems[-1 if is_unspaced(word) else 0] for word, stems in stemmed if stems}

    def all_stems(self, text: str) -> set[str]:
        """The stems of the content words of a text, of all parts of compound names."""
        telling = self.telling(text).items()
        return {s for word, stem in telling for s in ((stem,) if is_unspaced(word) else self.stems(word))}


def without_endings(stems: Callable[[str], list[str]]) -> Callable[[str], list[str]]:
    """The stemmer, which also removes the endings of German words."""
    return lambda text: [_GERMAN_ENDING.sub("", stem) for stem in stems(text)]


def content_stems(text: str, stems: Callable[[str], list[str]]) -> list[str]:
    """The stems of the content words in order, of all parts of compound names."""
    return [stem for word in content_words(text) for stem in stems(word)]


def in_figures(text: str) -> str:
    """The text with figures for numbers in words, and without separators in numbers."""
    return _COUNT.sub(lambda match: COUNTS[match.group().lower()], _GROUP_SIGN.sub("", text))


def content_words(text: str) -> list[str]:
    """The words that say something, in order."""
    return [word for word in words_of(text) if word.lower() not in STOP and word.lower() not in LIGHT]


def _apart(text: str) -> str:
    """The text with spaces around unspaced text, whose numbers are words of their own."""
    return text if text.isascii() else _UNSPACED.sub(r" \g<0> ", _one_form(text))


def exact_terms(text: str) -> dict[str, str]:
    """Numbers and codes of a text by the form that is compared; names and acronyms too."""
    exact: dict[str, str] = {}
    text, german_text = _apart(_GROUP_SPACE.sub("", text)), is_german(text)
    for match in TOKEN.finditer(text):
        token = match.group()
        if token.lower() in COUNTS:
            exact[COUNTS[token.lower()]] = token
        elif (
            CODE.search(token)
            or _QUOTED.match(text, max(match.start() - 1, 0), match.end() + 1)
            or (
                token[0].isupper()
                and match.start()
                and token.lower() not in STOP
                and len(token) > 1
                and not (
                    german_text and _ARTICLE.search(text, max(match.start() - _ARTICLE_CHARS, 0), match.start())
                )
            )
        ):
            exact[token.casefold()] = token
    return exact


def term_forms(text: str) -> set[str]:
    """All forms in which a token may occur: as it is, and as the parts of a compound."""
    forms: set[str] = set()
    for match in TOKEN.finditer(_apart(_GROUP_SPACE.sub("", text))):
        token = match.group().casefold()
        forms.update(part.casefold() for part in _HUMPS.findall(match.group()))
        forms |= {
            token,
            COUNTS.get(token, token),
            ORDINALS.get(token.rstrip("nrs"), token),
            *(part for part in _PARTS.split(token) if part),
        }
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


def missing_terms(text: str, window: str) -> tuple[str, ...]:
    """Numbers, names and codes of a sentence that the window lacks: a single wrong one makes the sentence wrong."""
    lacking = lacking_terms(exact_terms(text), window)
    return (*lacking.values(), *_other_units(text, window))


def lacking_terms(exact: Mapping[str, str], source: str) -> dict[str, str]:
    """Those of the numbers, names and codes that a text has in no form."""
    forms = term_forms(source)
    german_text = is_german(source)
    return {
        form: shown
        for form, shown in exact.items()
        if not ({form, form.removesuffix("s"), *_values(form)} & forms)
        and not (german_text and shown.istitle() and any(_is_inflected(form, other) for other in forms))
        and not (form[0].isdigit() and {part.removesuffix("s") for part in form.split("-")} <= forms)
    }


def is_german(text: str) -> bool:
    """Return True if a text has several of the most frequent German words."""
    return len({match.group() for match in _GERMAN.finditer(text.lower())}) >= _GERMAN_WORDS


def _is_inflected(form: str, other: str) -> bool:
    least = max(min(len(form), len(other)) - ENDING_CHARS, _STEM_CHARS)
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
