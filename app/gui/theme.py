"""Colours, distances and fonts of the window, from assets/themes/tokens.toml."""

import gc
import itertools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from PySide6.QtCore import QByteArray, QObject, QRectF, Qt, Signal
from PySide6.QtGui import QColor, QFont, QFontDatabase, QIcon, QImage, QPainter, QPalette, QPixmap
from PySide6.QtSvg import QSvgRenderer
from PySide6.QtWidgets import QApplication, QWidget

from app.gui.latex_images import Formulas

ASSETS = Path(__file__).resolve().parents[2] / "assets"
_TOKENS = ASSETS / "themes" / "tokens.toml"
_LARGE_PERCENT = 125  # text size from which icons are larger
_FAMILY, _MONO = "Inter", "JetBrains Mono"
_SMALL = 12  # pixels of small text at the normal text size


@dataclass(frozen=True)
class DesignTokens:
    """The design tokens of one colour scheme."""

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
        return QColor(self.colours[name])

    def scaled(self, pixels: int) -> int:
        """A length in pixels that follows the text size; `pixels` is its value at the normal one."""
        return round(pixels * self.small / _SMALL)

    def precision_colour(self, bits: float) -> QColor:
        """The tile colour for a precision in bits per weight, interpolated between the steps of the scale."""
        scale = self.precision
        if bits <= scale[0][0]:
            return QColor(scale[0][1])
        for (low, first), (high, second) in itertools.pairwise(scale):
            if bits <= high:
                return _blend(QColor(first), QColor(second), (bits - low) / (high - low))
        return QColor(scale[-1][1])


def tokens(*, dark: bool, text_percent: int = 100, contrast: bool = False) -> DesignTokens:
    """Read the token file for one colour scheme, contrast and text size."""
    with _TOKENS.open("rb") as file:
        raw: dict[str, Any] = tomllib.load(file)
    text = {name: round(size * text_percent / 100) for name, size in raw["text"].items()}
    scheme = "dark" if dark else "light"
    return DesignTokens(
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


@lru_cache(1024)  # each icon is needed in its own colour and in the one of disabled icons, and after a change again
def _drawn(name: str, colour: str, pixels: int) -> QImage:
    """An icon of assets/icons/ui in a colour such as #rrggbb."""
    svg = (ASSETS / "icons" / "ui" / f"{name}.svg").read_text("utf-8")
    renderer = QSvgRenderer(QByteArray(svg.replace("currentColor", colour).encode()))
    image = QImage(pixels, pixels, QImage.Format.Format_ARGB32_Premultiplied)
    image.fill(Qt.GlobalColor.transparent)
    painter = QPainter(image)
    renderer.render(painter, QRectF(0, 0, pixels, pixels))
    painter.end()
    return image


class Theme(QObject):
    """The current theme. `changed` is emitted after the application's palette and style sheet are updated."""

    changed = Signal()

    def __init__(
        self, app: QApplication, scheme: str = "system", text_percent: int = 100, contrast: str = "system"
    ) -> None:
        super().__init__(app)
        self._app = app
        self._hints = app.styleHints()  # keep this reference: objects it returns are destroyed with it
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
        """Change colour scheme (system, light, dark), text size and contrast (system, normal, high)."""
        self._scheme, self._percent, self._contrast = scheme, text_percent, contrast
        self._renew()

    @property
    def formulas(self) -> Formulas:
        """The formula renderer of this theme, created on first use."""
        if self._formulas is None:
            self._formulas = Formulas(self)
        return self._formulas

    _formulas: Formulas | None = None
    still = True  # no motion; True until the system's setting is known

    def close(self) -> None:
        """Stop following the system's settings."""
        if self._formulas is not None:
            self._formulas.close()
        self._hints.colorSchemeChanged.disconnect(self._on_scheme_changed)
        self._hints.accessibility().contrastPreferenceChanged.disconnect(self._on_contrast_changed)

    def font(self, size: str = "body", *, strong: bool = False, mono: bool = False) -> QFont:
        """A font of the scale. `size` is small, body, title or mono; there are two weights."""
        font = QFont(_MONO if mono else _FAMILY)
        if mono:
            font.setStyleHint(QFont.StyleHint.Monospace)
            font.setFixedPitch(True)
            for feature in ("liga", "calt"):  # ligatures show "->" and "==" as other signs
                font.setFeature(QFont.Tag(feature), 0)
        font.setPixelSize(getattr(self.tokens, "mono" if mono and size == "body" else size))
        font.setWeight(QFont.Weight.DemiBold if strong else QFont.Weight.Normal)
        return font

    def dress(self, widget: QWidget, size: str = "body") -> None:
        """Set a widget's fixed-width font, now and after each text size change."""
        _Dress(self, widget, size)

    def icon(self, name: str, colour: str = "text") -> QIcon:
        """An icon of assets/icons/ui in a named colour. Disabled icons have the colour of frames."""
        key = (name, colour)
        if key not in self._icons:
            icon = QIcon()
            for size in (20, 40) if self._percent > _LARGE_PERCENT else (20,):
                for scale in (1, 2):
                    icon.addPixmap(self._pixmap(name, colour, size, scale))
                    icon.addPixmap(self._pixmap(name, "frame", size, scale), QIcon.Mode.Disabled)
            self._icons[key] = icon
        return self._icons[key]

    def _pixmap(self, name: str, colour: str, size: int, scale: int) -> QPixmap:
        pixmap = QPixmap.fromImage(_drawn(name, self.tokens.colours[colour], size * scale))
        pixmap.setDevicePixelRatio(scale)
        return pixmap

    def _is_dark(self) -> bool:
        if self._scheme == "system":
            return self._hints.colorScheme() == Qt.ColorScheme.Dark
        return self._scheme == "dark"

    def _is_high_contrast(self) -> bool:
        if self._contrast == "system":
            preference = self._hints.accessibility().contrastPreference()
            return preference == Qt.ContrastPreference.HighContrast
        return self._contrast == "high"

    def _tokens(self) -> DesignTokens:
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
        # Qt walks over all widgets here: one that Python's garbage collector deletes meanwhile would crash it.
        collects = gc.isenabled()
        gc.disable()
        try:
            self._restyle(palette)
        finally:
            if collects:
                gc.enable()

    def _restyle(self, palette: QPalette) -> None:
        t = self.tokens
        # Remove the old style sheet first: with the 1,600 widgets of all pages this takes Qt 0.12 s, and replacing
        # one by another 0.44 s (log-archive.md, Window).
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
    """Updates one widget's font. Lives as long as the widget."""

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


_LINE = 1.25  # line height of Inter, as a multiple of the pixel size


def stylesheet(
    c: Mapping[str, str], icons: str, *, unit: int, radius: int, small: int, body: int, title: int, dark: bool
) -> str:
    """Qt style sheet from the tokens: colours by name, distances in device-independent pixels.

    `icons` is the folder of the control images, with forward slashes.
    """
    half = unit // 2
    line = max(3 * unit, round(_LINE * body))  # minimum control height: one line of text
    mark = round(2 * unit * small / _SMALL)  # side of a check box
    tick = "tick-dark" if dark else "tick-light"
    return f"""
QToolTip {{ background: {c["raised"]}; color: {c["text"]}; border: 1px solid {c["border"]}; padding: {half}px;
  qproperty-textFormat: PlainText; }}
QPushButton {{ background: {c["raised"]}; color: {c["text"]}; border: 1px solid {c["border"]};
  border-radius: {radius}px; padding: {half}px {2 * unit}px; min-height: {line}px; }}
QPushButton:hover {{ background: {c["hover"]}; }}
QPushButton:focus, QToolButton:focus {{ border: 2px solid {c["accent"]}; padding: {half - 1}px {2 * unit - 1}px; }}
QPushButton:disabled {{ color: {c["muted"]}; background: {c["surface"]}; }}
QPushButton[kind="primary"] {{ background: {c["accent"]}; color: {c["on_accent"]}; border-color: {c["accent"]};
  font-weight: 600; }}
QPushButton[kind="primary"]:focus {{ border: 2px solid {c["text"]}; }}
QPushButton[kind="primary"]:disabled {{ background: {c["hover"]}; color: {c["muted"]};
  border-color: {c["hover"]}; }}
QPushButton[kind="danger"] {{ color: {c["bad"]}; }}
QPushButton[kind="link"] {{ border: none; background: transparent; color: {c["link"]}; padding: 0;
  text-align: left; }}
QPushButton[kind="quiet"] {{ font-size: {small}px; border-radius: {radius + half}px; padding: 2px {unit + half}px;
  min-height: {line - 6}px; background: transparent; }}
QPushButton[kind="quiet"]:hover {{ background: {c["hover"]}; }}
QPushButton[kind="quiet"]:focus {{ padding: 1px {unit + half - 1}px; }}
QToolButton {{ border: 1px solid transparent; border-radius: {radius - 2}px; padding: {half - 1}px;
  background: transparent; }}
QToolButton:hover {{ background: {c["hover"]}; }}
QToolButton:checked {{ background: {c["accent_soft"]}; }}
QToolButton:focus {{ border: 2px solid {c["accent"]}; padding: {half - 2}px; }}
QToolButton::menu-indicator {{ image: none; }}
QToolButton[kind="float"], QToolButton[kind="jump"] {{ background: {c["raised"]};
  border: 1px solid {c["border"]}; padding: {half}px; }}
QToolButton[kind="jump"] {{ border-radius: {mark}px; }}
QToolButton[kind="send"] {{ background: {c["accent"]}; border-radius: {mark}px; }}
QToolButton[kind="send"]:disabled {{ background: {c["hover"]}; }}
QToolButton[kind="nav"] {{ padding: {half}px; border-radius: {radius}px; color: {c["muted"]};
  font-size: {small}px; }}
QToolButton[kind="entry"] {{ padding: {half}px {unit - 1}px; border-radius: {radius}px; }}
QToolButton[kind="entry"]:focus {{ padding: {half - 1}px {unit - 2}px; }}
QToolButton[kind="section"], QToolButton[kind="section-off"] {{ padding: {half}px {unit + half}px;
  border-radius: {radius}px; color: {c["muted"]}; }}
QToolButton[kind="section-off"]:checked {{ background: transparent; }}
QToolButton[kind="disclosure"] {{ padding: {half}px 0; font-weight: 600; text-align: left; }}
QToolButton[kind="disclosure"]:checked {{ background: transparent; }}
QToolButton[kind="section"]:checked {{ background: {c["accent_soft"]}; color: {c["text"]}; font-weight: 600; }}
QFrame[kind="sections"] {{ background: transparent; border: none; }}
QToolButton[kind="nav"]:checked {{ background: {c["accent_soft"]}; color: {c["text"]}; }}
QLineEdit, QPlainTextEdit, QTextEdit, QComboBox, QAbstractSpinBox {{ background: {c["raised"]};
  color: {c["text"]}; border: 1px solid {c["frame"]}; border-radius: {radius}px;
  padding: {half}px {unit}px; selection-background-color: {c["accent"]};
  selection-color: {c["on_accent"]}; placeholder-text-color: {c["muted"]}; }}
QPlainTextEdit[readOnly="true"], QTextEdit[readOnly="true"] {{ border-color: {c["border"]}; }}
QLineEdit, QComboBox {{ min-height: {line}px; }}
QAbstractSpinBox {{ min-height: {line - 3}px; }}
QLineEdit:focus, QPlainTextEdit:focus, QTextEdit:focus, QComboBox:focus, QAbstractSpinBox:focus {{
  border: 2px solid {c["accent"]}; padding: {half - 1}px {unit - 1}px; }}
QAbstractSpinBox::up-button, QAbstractSpinBox::down-button {{ subcontrol-origin: border; width: {3 * unit - 4}px;
  border: none; background: transparent; }}
QAbstractSpinBox::up-button {{ subcontrol-position: top right; margin-top: 3px; }}
QAbstractSpinBox::down-button {{ subcontrol-position: bottom right; margin-bottom: 3px; }}
QAbstractSpinBox::up-button:hover, QAbstractSpinBox::down-button:hover {{ background: {c["hover"]};
  border-radius: {half}px; }}
QAbstractSpinBox::up-arrow {{ image: url("{icons}/chevron-up.svg"); width: {unit + 4}px; height: {unit + 4}px; }}
QAbstractSpinBox::down-arrow {{ image: url("{icons}/chevron.svg"); width: {unit + 4}px; height: {unit + 4}px; }}
QAbstractSpinBox QLineEdit {{ border: none; background: transparent; padding: 0 {half}px; min-height: 0; }}
QAbstractSpinBox QLineEdit:focus {{ border: none; padding: 0 {half}px; }}
QTableView::item {{ padding: {half}px {unit}px; }}
QComboBox::drop-down {{ border: none; width: {3 * unit}px; }}
QComboBox::down-arrow {{ image: url("{icons}/chevron.svg"); width: {2 * unit}px; height: {2 * unit}px; }}
QComboBox {{ combobox-popup: 0; }}
QComboBox QAbstractItemView {{ background: {c["raised"]}; border: 1px solid {c["border"]};
  border-radius: {radius}px; padding: {half}px;
  selection-background-color: {c["accent_soft"]}; selection-color: {c["text"]}; outline: none; }}
QComboBox QAbstractItemView::item {{ min-height: {line}px; }}
QTextBrowser[kind="message"], QPlainTextEdit[kind="bare"] {{ border: none; background: transparent;
  padding: 0; }}
QPlainTextEdit[kind="bare"]:focus, QTextBrowser[kind="message"]:focus {{ border: none; padding: 0; }}
QTextEdit[kind="code"], QTextEdit[kind="code"]:focus {{ border: none; border-radius: 0; background: {c["code"]};
  padding: 0; }}
QListView, QTreeView, QTableView {{ background: transparent; border: none; outline: none;
  selection-background-color: {c["accent_soft"]}; selection-color: {c["text"]}; }}
QTreeView::branch, QTreeView::branch:selected, QTreeView::branch:hover {{ background: transparent; }}
QTreeView::branch:closed:has-children {{ image: url("{icons}/chevron-right.svg"); }}
QTreeView::branch:open:has-children {{ image: url("{icons}/chevron.svg"); }}
QAbstractScrollArea::corner {{ background: transparent; border: none; }}
QListView::item, QTreeView::item {{ border-radius: {radius - 2}px; padding: {half}px {unit}px;
  color: {c["text"]}; }}
QTreeView::item {{ border-radius: 0; }}
QListView::item:hover, QTreeView::item:hover {{ background: {c["hover"]}; }}
QListView::item:selected, QTreeView::item:selected {{ background: {c["accent_soft"]}; color: {c["text"]}; }}
QHeaderView {{ background: transparent; border: none; }}
QHeaderView::section {{ background: transparent; border: none; border-bottom: 1px solid {c["border"]};
  color: {c["muted"]}; padding: {half}px {unit + 3}px; font-size: {small}px; }}
QTreeView[kind="rows"]::item, QTreeView[kind="rows"]::item:hover, QTreeView[kind="rows"]::item:selected,
QListView[kind="rows"]::item, QListView[kind="rows"]::item:hover, QListView[kind="rows"]::item:selected {{
  background: transparent; padding: 0; border: none; }}
QScrollArea, QScrollArea > QWidget > QWidget[kind="page"] {{ background: transparent; border: none; }}
QScrollBar:vertical {{ background: transparent; width: {unit + half}px; margin: 0; }}
QScrollBar:horizontal {{ background: transparent; height: {unit + half}px; margin: 0; }}
QScrollBar::handle {{ background: {c["border"]}; border-radius: {half}px; margin: 2px; min-height: {4 * unit}px;
  min-width: {4 * unit}px; }}
QScrollBar::handle:hover {{ background: {c["muted"]}; }}
QScrollBar::add-line, QScrollBar::sub-line, QScrollBar::add-page, QScrollBar::sub-page {{
  background: none; border: none; width: 0; height: 0; }}
QMenu {{ background: {c["raised"]}; border: 1px solid {c["border"]}; border-radius: {radius}px;
  padding: {half}px; }}
QMenu::item {{ padding: {half + 2}px {3 * unit}px {half + 2}px {unit}px; border-radius: {radius - 2}px; }}
QMenu::icon {{ padding-left: {unit}px; }}
QMenu::item:selected {{ background: {c["accent_soft"]}; color: {c["text"]}; }}
QMenu::item:disabled {{ color: {c["muted"]}; }}
QMenu::separator {{ height: 1px; background: {c["border"]}; margin: {half}px; }}
QProgressBar {{ background: {c["track"]}; border: none; border-radius: {half // 2 + 1}px;
  max-height: {unit - 2}px; min-height: {unit - 2}px; color: transparent; }}
QProgressBar::chunk {{ background: {c["accent"]}; border-radius: {half // 2 + 1}px; }}
QSlider::groove:horizontal {{ height: {half}px; background: {c["track"]}; border-radius: {half // 2}px; }}
QSlider::sub-page:horizontal {{ background: {c["accent"]}; border-radius: {half // 2}px; }}
QSlider::handle:horizontal {{ background: {c["raised"]}; border: 2px solid {c["accent"]};
  width: {unit + half}px; height: {unit + half}px; margin: -{half + 2}px 0; border-radius: {unit}px; }}
QSlider:focus::handle:horizontal {{ border-color: {c["text"]}; }}
QSplitter::handle {{ background: {c["border"]}; }}
QSplitter::handle:horizontal {{ width: 1px; }}
QSplitter::handle:vertical {{ height: 1px; }}
QFrame[kind="card"] {{ background: {c["raised"]}; border: 1px solid {c["border"]}; border-radius: {radius}px; }}
QFrame[kind="rail"] {{ background: {c["surface"]}; border: none; border-right: 1px solid {c["border"]}; }}
QFrame[kind="side"] {{ background: {c["surface"]}; border: none; }}
QFrame[kind="bubble"] {{ background: {c["surface"]}; border: none; border-radius: {2 * radius}px; }}
QFrame[kind="composer"] {{ background: {c["raised"]}; border: 1px solid {c["frame"]};
  border-radius: {2 * radius}px; }}
QFrame[kind="composer"][focused="true"] {{ border: 2px solid {c["accent"]}; }}
QFrame[kind="note"] {{ background: {c["surface"]}; border: none; border-radius: {radius}px; }}
QFrame[kind="banner-info"] {{ background: {c["accent_soft"]}; border: none; border-radius: {radius}px; }}
QFrame[kind="banner-ok"] {{ background: {c["ok_soft"]}; border: none; border-radius: {radius}px; }}
QFrame[kind="banner-warn"] {{ background: {c["warn_soft"]}; border: none; border-radius: {radius}px; }}
QFrame[kind="banner-bad"] {{ background: {c["bad_soft"]}; border: none; border-radius: {radius}px; }}
QFrame[kind="toast-info"] {{ background: {c["accent_soft"]}; border: 1px solid {c["accent"]};
  border-radius: {radius}px; }}
QFrame[kind="toast-ok"] {{ background: {c["ok_soft"]}; border: 1px solid {c["ok"]}; border-radius: {radius}px; }}
QFrame[kind="toast-warn"] {{ background: {c["warn_soft"]}; border: 1px solid {c["warn"]};
  border-radius: {radius}px; }}
QFrame[kind="toast-bad"] {{ background: {c["bad_soft"]}; border: 1px solid {c["bad"]}; border-radius: {radius}px; }}
QDialog[kind="palette"] {{ background: {c["raised"]}; border: 1px solid {c["border"]};
  border-radius: {radius}px; }}
QDialog[kind="palette"] QPushButton {{ min-height: {line - 4}px; padding: 2px {unit + half}px; }}
QFrame[kind="rule"] {{ background: {c["border"]}; border: none; max-height: 1px; min-height: 1px; }}
QLabel {{ background: transparent; }}
QLabel[kind="muted"] {{ color: {c["muted"]}; }}
QLabel[kind="small"] {{ color: {c["muted"]}; font-size: {small}px; }}
QLabel[kind="title"] {{ font-size: {title}px; font-weight: 600; }}
QLabel[kind="strong"] {{ font-weight: 600; }}
QLabel[kind="glyph"] {{ background: {c["hover"]}; border-radius: 8px; }}
QLabel[kind="chip"] {{ background: {c["hover"]}; color: {c["text"]}; border-radius: {half + 4}px;
  padding: 2px {unit}px; font-size: {small}px; }}
QLabel[kind="chip-ok"] {{ background: {c["ok_soft"]}; color: {c["ok"]}; border-radius: {half + 4}px;
  padding: 2px {unit}px; font-size: {small}px; }}
QLabel[kind="chip-warn"] {{ background: {c["warn_soft"]}; color: {c["warn"]}; border-radius: {half + 4}px;
  padding: 2px {unit}px; font-size: {small}px; }}
QLabel[kind="chip-bad"] {{ background: {c["bad_soft"]}; color: {c["bad"]}; border-radius: {half + 4}px;
  padding: 2px {unit}px; font-size: {small}px; }}
QListView::indicator {{ width: {mark}px; height: {mark}px; border: 1px solid {c["frame"]};
  border-radius: {half}px; background: {c["raised"]}; }}
QCheckBox::indicator {{ width: {mark}px; height: {mark}px; border: 1px solid {c["muted"]};
  border-radius: {half}px; background: {c["raised"]}; }}
QCheckBox::indicator:checked, QListView::indicator:checked {{ background: {c["accent"]};
  border-color: {c["accent"]}; image: url("{icons}/{tick}.svg"); }}
QCheckBox::indicator:focus {{ border: 2px solid {c["accent"]}; }}
QCheckBox::indicator:disabled {{ border-color: {c["border"]}; background: {c["surface"]}; }}
QCheckBox {{ spacing: {unit}px; min-height: {mark + unit}px; }}
QTabBar::tab {{ background: transparent; color: {c["muted"]}; padding: {unit}px {2 * unit}px;
  border-bottom: 2px solid transparent; }}
QTabBar::tab:selected {{ color: {c["text"]}; border-bottom: 2px solid {c["accent"]}; }}
QTabBar::tab:focus {{ color: {c["accent"]}; }}
QTabWidget::pane {{ border: none; }}
QTabBar {{ qproperty-drawBase: 0; }}
QFileDialog {{ backward-icon: url("{icons}/dialog-back.svg"); forward-icon: url("{icons}/dialog-forward.svg");
  filedialog-parent-directory-icon: url("{icons}/dialog-up.svg");
  filedialog-new-directory-icon: url("{icons}/dialog-new.svg");
  filedialog-listview-icon: url("{icons}/dialog-list.svg");
  filedialog-detailedview-icon: url("{icons}/dialog-details.svg"); }}
"""
