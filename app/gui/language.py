"""The language of the interface. "pseudo" makes every text longer and accented, to find what does not fit."""

import json
from collections.abc import Callable

from PySide6.QtCore import QLibraryInfo, QLocale, QObject, QTranslator
from PySide6.QtWidgets import QApplication

from app.gui.theme import ASSETS

_ACCENTED = str.maketrans("aeiounAEIOUNcsyl", "áéíöüñÁÉÍÖÜÑçšýł")
# Source: localisation practice; German and Finnish run about a third longer than English.
_LONGER = 0.35


def pseudo(text: str) -> str:
    """A text accented, bracketed and a third longer; {fields} are kept."""
    if not text:
        return text
    parts = text.split("{")
    made = parts[0].translate(_ACCENTED)
    for part in parts[1:]:
        field, _, after = part.partition("}")
        made += "{" + field + "}" + after.translate(_ACCENTED)
    return f"[{made}{'~' * round(len(text) * _LONGER)}]"


class Catalogue(QTranslator):
    """A translation by the English text alone, whatever part of the window it is in."""

    def __init__(self, translated: Callable[[str], str], parent: QObject) -> None:
        super().__init__(parent)
        self._translated = translated

    def translate(self, context: str, source: str, disambiguation: str | None = None, n: int = -1) -> str:
        del context, disambiguation, n
        return self._translated(source)

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
        translator = Catalogue(pseudo, app)
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
    translator = Catalogue(lambda text: texts.get(text, text), app)
    app.installTranslator(translator)
    own = QTranslator(app)  # what Qt says itself: buttons of dialogs, menus of fields
    if own.load(locale, "qtbase", "_", QLibraryInfo.path(QLibraryInfo.LibraryPath.TranslationsPath)):
        app.installTranslator(own)
    return translator
