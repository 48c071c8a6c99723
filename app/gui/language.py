"""The language of the interface. "pseudo" makes every text longer and accented, to find what does not fit."""

from PySide6.QtCore import QLocale, QTranslator
from PySide6.QtWidgets import QApplication

from app.gui.look import ASSETS

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


def install_language(app: QApplication, name: str) -> QTranslator | None:
    """Install the translation for `name` ("system": the locale's), if there is one."""
    translator: QTranslator
    if name == "pseudo":
        translator = PseudoTranslator(app)
    else:
        locale = QLocale.system() if name == "system" else QLocale(name)
        translator = QTranslator(app)
        if not translator.load(locale, "tessera", "_", str(ASSETS / "languages")):
            return None
    app.installTranslator(translator)
    return translator
