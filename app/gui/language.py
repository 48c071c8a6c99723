"""The language of the interface. "pseudo" makes every text longer and accented, to find what does not fit."""

import json
from collections.abc import Mapping

from PySide6.QtCore import QLibraryInfo, QLocale, QObject, QTranslator
from PySide6.QtWidgets import QApplication

from app.gui.theme import ASSETS

_ACCENTED = str.maketrans("aeiounAEIOUNcsyl", "áéíöüñÁÉÍÖÜÑçšýł")
# Source: localisation practice; German and Finnish run about a third longer than English.
_LONGER = 0.35


class PseudoTranslator(QTranslator):
    """Translates every text into itself, accented, bracketed and a third longer."""

    def translate(self, context: str, source: str, disambiguation: str | None = None, n: int = -1) -> str:
        del context, disambiguation, n
        return pseudo(source)

    def isEmpty(self) -> bool:
        """Never: Qt skips empty translators."""
        return False


def pseudo(text: str) -> str:
    """The pseudo-translation of a text; {fields} are kept."""
    if not text:
        return text
    parts = text.split("{")
    made = parts[0].translate(_ACCENTED)
    for part in parts[1:]:
        field, _, rest = part.partition("}")
        made += "{" + field + "}" + rest.translate(_ACCENTED)
    return f"[{made}{'~' * round(len(text) * _LONGER)}]"


class Catalogue(QTranslator):
    """A translation out of assets/languages: text by English text, whatever part of the window it is in."""

    def __init__(self, texts: Mapping[str, str], parent: QObject) -> None:
        super().__init__(parent)
        self._texts = texts

    def translate(self, context: str, source: str, disambiguation: str | None = None, n: int = -1) -> str:
        del context, disambiguation, n
        return self._texts.get(source, source)

    def isEmpty(self) -> bool:
        """Never: Qt skips empty translators."""
        return False


def texts_of(name: str) -> dict[str, str]:
    """The texts of a language (`de`); none where there is no translation."""
    path = ASSETS / "languages" / f"{name}.json"
    found: dict[str, str] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return found


def install_language(app: QApplication, name: str) -> QTranslator | None:
    """Install the translation for `name` ("system": the locale's), if there is one; numbers and dates follow."""
    if name == "pseudo":
        translator: QTranslator = PseudoTranslator(app)
        app.installTranslator(translator)
        return translator
    locale = QLocale.system() if name == "system" else QLocale(name)
    if locale.language() == QLocale.Language.C:
        # No language is set: numbers in groups and dates with names of months, as in the English texts around them.
        locale = QLocale(QLocale.Language.English, QLocale.Country.World)
    texts = texts_of(QLocale.languageToCode(locale.language()))
    if name != "system" or QLocale().language() == QLocale.Language.C:
        QLocale.setDefault(locale)
    if not texts:
        return None
    translator = Catalogue(texts, app)
    app.installTranslator(translator)
    own = QTranslator(app)  # what Qt says itself: buttons of dialogs, menus of fields
    if own.load(locale, "qtbase", "_", QLibraryInfo.path(QLibraryInfo.LibraryPath.TranslationsPath)):
        app.installTranslator(own)
    return translator
