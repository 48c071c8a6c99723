"""The theme: colours, distances and fonts of the window, all from assets/themes/tokens.toml."""

import itertools
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PySide6.QtCore import QByteArray, QObject, QRectF, Qt, Signal
from PySide6.QtGui import QColor, QFont, QFontDatabase, QIcon, QPainter, QPalette, QPixmap
from PySide6.QtSvg import QSvgRenderer
from PySide6.QtWidgets import QApplication, QWidget

from app.gui.latex_images import Formulas
from app.gui.stylesheet import stylesheet

ASSETS = Path(__file__).resolve().parents[2] / "assets"
_TOKENS = ASSETS / "themes" / "tokens.toml"
_LARGE_PERCENT = 125  # letters from which icons are drawn larger too
_FAMILY, _MONO = "Inter", "JetBrains Mono"


@dataclass(frozen=True)
class Tokens:
    """The token file, resolved for light or dark."""

    dark: bool
    colours: dict[str, str]
    precision: tuple[tuple[float, str], ...]
    memory: dict[str, str]
    stock: str
    series: tuple[str, ...]
    syntax: dict[str, str]
    unit: int
    radius: int
    column: int
    small: int
    body: int
    title: int
    mono: int
    fast_ms: int

    def colour(self, name: str) -> QColor:
        """A named colour of the interface."""
        return QColor(self.colours[name])

    def precision_colour(self, bits: float) -> QColor:
        """The tile colour of a precision in bits per weight, blended between the steps of the scale."""
        scale = self.precision
        if bits <= scale[0][0]:
            return QColor(scale[0][1])
        for (low, first), (high, second) in itertools.pairwise(scale):
            if bits <= high:
                return _blend(QColor(first), QColor(second), (bits - low) / (high - low))
        return QColor(scale[-1][1])


def tokens(*, dark: bool, text_percent: int = 100, contrast: bool = False) -> Tokens:
    """Read the token file for one scheme, contrast and text size."""
    with _TOKENS.open("rb") as file:
        raw: dict[str, Any] = tomllib.load(file)
    text = {name: round(size * text_percent / 100) for name, size in raw["text"].items()}
    scheme = "dark" if dark else "light"
    return Tokens(
        dark=dark,
        colours=raw[scheme] | (raw[f"{scheme}_contrast"] if contrast else {}),
        precision=tuple(zip(raw["precision"]["bits"], raw["precision"]["colours"], strict=True)),
        memory=raw["memory"],
        stock=raw["plot"]["stock"],
        series=tuple(raw["plot"]["series"]),
        syntax={name: pair[dark] for name, pair in raw["syntax"].items()},
        unit=raw["grid"]["unit"],
        radius=raw["grid"]["radius"],
        column=round(raw["grid"]["column"] * max(1.0, text_percent / 100)),
        fast_ms=raw["motion"]["fast_ms"],
        **text,
    )


class Theme(QObject):
    """The theme in force. `changed` is emitted after the application's palette and style follow it."""

    changed = Signal()

    def __init__(
        self, app: QApplication, scheme: str = "system", text_percent: int = 100, contrast: str = "system"
    ) -> None:
        super().__init__(app)
        self._app = app
        self._hints = app.styleHints()  # held: what it hands out dies with this reference
        self._scheme, self._contrast = scheme, contrast
        self._percent = text_percent
        self._icons: dict[tuple[str, str], QIcon] = {}
        for file in (ASSETS / "fonts").glob("*.[ot]tf"):
            QFontDatabase.addApplicationFont(str(file))
        app.setStyle("Fusion")
        self.tokens = self._tokens()
        self._apply()
        self._hints.colorSchemeChanged.connect(self._on_scheme_changed)
        self._hints.accessibility().contrastPreferenceChanged.connect(self._on_contrast_changed)

    def set(self, scheme: str, text_percent: int, contrast: str = "system") -> None:
        """Change colour scheme (system, light, dark), text size and contrast (system, normal, high), live."""
        self._scheme, self._percent, self._contrast = scheme, text_percent, contrast
        self._renew()

    @property
    def formulas(self) -> Formulas:
        """Formulas drawn in this theme; made when the first is asked for."""
        if self._formulas is None:
            self._formulas = Formulas(self)
        return self._formulas

    _formulas: Formulas | None = None
    still = True  # no motion: until the system was asked, and where it asks for less of it

    def close(self) -> None:
        """Follow the system no more."""
        if self._formulas is not None:
            self._formulas.close()
        self._hints.colorSchemeChanged.disconnect(self._on_scheme_changed)
        self._hints.accessibility().contrastPreferenceChanged.disconnect(self._on_contrast_changed)

    def font(self, size: str = "body", *, strong: bool = False, mono: bool = False) -> QFont:
        """A font of the scale: size small, body, title or mono; two weights."""
        font = QFont(_MONO if mono else _FAMILY)
        if mono:
            font.setStyleHint(QFont.StyleHint.Monospace)
            font.setFixedPitch(True)
        font.setPixelSize(getattr(self.tokens, "mono" if mono and size == "body" else size))
        font.setWeight(QFont.Weight.DemiBold if strong else QFont.Weight.Normal)
        return font

    def dress(self, widget: QWidget, size: str = "body") -> None:
        """Give a widget the fixed-width font of the scale, now and whenever the text size changes."""
        _Dress(self, widget, size)

    def icon(self, name: str, colour: str = "text") -> QIcon:
        """An icon of assets/icons/ui in a named colour; muted when disabled."""
        key = (name, colour)
        if key not in self._icons:
            icon = QIcon()
            for size in (20, 40) if self._percent > _LARGE_PERCENT else (20,):
                for scale in (1, 2):
                    icon.addPixmap(self._pixmap(name, colour, size, scale))
                    icon.addPixmap(self._pixmap(name, "border", size, scale), QIcon.Mode.Disabled)
            self._icons[key] = icon
        return self._icons[key]

    def _pixmap(self, name: str, colour: str, size: int, scale: int) -> QPixmap:
        svg = (ASSETS / "icons" / "ui" / f"{name}.svg").read_text("utf-8")
        renderer = QSvgRenderer(QByteArray(svg.replace("currentColor", self.tokens.colours[colour]).encode()))
        pixmap = QPixmap(size * scale, size * scale)
        pixmap.fill(Qt.GlobalColor.transparent)
        painter = QPainter(pixmap)
        renderer.render(painter, QRectF(0, 0, size * scale, size * scale))
        painter.end()
        pixmap.setDevicePixelRatio(scale)
        return pixmap

    def _is_dark(self) -> bool:
        if self._scheme == "system":
            return self._hints.colorScheme() == Qt.ColorScheme.Dark
        return self._scheme == "dark"

    def _is_high_contrast(self) -> bool:
        if self._contrast == "system":
            wanted = self._hints.accessibility().contrastPreference()
            return wanted == Qt.ContrastPreference.HighContrast
        return self._contrast == "high"

    def _tokens(self) -> Tokens:
        return tokens(dark=self._is_dark(), text_percent=self._percent, contrast=self._is_high_contrast())

    def _on_contrast_changed(self) -> None:
        if self._contrast == "system":
            self._renew()

    def _on_scheme_changed(self) -> None:
        if self._scheme == "system":
            self._renew()

    def _renew(self) -> None:
        self.tokens = self._tokens()
        self._icons.clear()
        self._apply()
        self.changed.emit()

    def _apply(self) -> None:
        t = self.tokens
        palette = QPalette()
        role = QPalette.ColorRole
        for target, name in {
            role.Window: "background",
            role.WindowText: "text",
            role.Base: "raised",
            role.AlternateBase: "surface",
            role.Text: "text",
            role.PlaceholderText: "muted",
            role.Button: "surface",
            role.ButtonText: "text",
            role.BrightText: "bad",
            role.Highlight: "accent",
            role.HighlightedText: "on_accent",
            role.Link: "link",
            role.LinkVisited: "link",
            role.ToolTipBase: "raised",
            role.ToolTipText: "text",
            role.Mid: "border",
            role.Dark: "border",
            role.Midlight: "hover",
            role.Light: "raised",
            role.Shadow: "border",
            role.Accent: "accent",
        }.items():
            palette.setColor(target, t.colour(name))
        for target in (role.WindowText, role.Text, role.ButtonText):
            palette.setColor(QPalette.ColorGroup.Disabled, target, t.colour("muted"))
        # Taken away before another one comes: with the 1,600 widgets of all pages it takes Qt .12 s, and replacing
        # one by another .44 (docs/log.md, Window).
        self._app.setStyleSheet("")
        self._app.setPalette(palette)
        self._app.setFont(self.font())
        self._app.setStyleSheet(
            stylesheet(
                t.colours,
                (ASSETS / "icons" / "ui").as_posix(),
                unit=t.unit,
                radius=t.radius,
                small=t.small,
                body=t.body,
                title=t.title,
                dark=t.dark,
            )
        )


class _Dress(QObject):
    """Lives as long as its widget."""

    def __init__(self, theme: Theme, widget: QWidget, size: str) -> None:
        super().__init__(widget)
        self._theme, self._widget, self._size = theme, widget, size
        self._follow()
        theme.changed.connect(self._follow)

    def _follow(self) -> None:
        self._widget.setFont(self._theme.font(self._size, mono=True))


def _blend(first: QColor, second: QColor, share: float) -> QColor:
    return QColor.fromRgbF(
        first.redF() + (second.redF() - first.redF()) * share,
        first.greenF() + (second.greenF() - first.greenF()) * share,
        first.blueF() + (second.blueF() - first.blueF()) * share,
    )
