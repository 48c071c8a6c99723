"""The little style sheet on top of the palette: shapes of controls, by class and by the `kind` property."""

from collections.abc import Mapping

_LINE = 1.25  # height of a line of Inter, in its pixel size


def stylesheet(
    c: Mapping[str, str], icons: str, *, unit: int, radius: int, small: int, body: int, title: int, dark: bool
) -> str:
    """Qt style sheet from the tokens: colours by name, distances in device-independent pixels.

    `icons` is the folder of the control images, with forward slashes.
    """
    half = unit // 2
    line = max(3 * unit, round(_LINE * body))  # as low as a control may get: one line of its letters
    tick = "tick-dark" if dark else "tick-light"
    return f"""
QToolTip {{ background: {c["raised"]}; color: {c["text"]}; border: 1px solid {c["border"]}; padding: {half}px; }}
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
QPushButton[kind="link"] {{ border: none; background: transparent; color: {c["link"]}; padding: 0 {half}px; }}
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
QToolButton[kind="float"] {{ background: {c["raised"]}; border: 1px solid {c["border"]};
  border-radius: {2 * unit + 1}px; padding: {half}px; }}
QToolButton[kind="send"] {{ background: {c["accent"]}; border-radius: {2 * unit}px; }}
QToolButton[kind="send"]:disabled {{ background: {c["hover"]}; }}
QToolButton[kind="nav"] {{ padding: {half}px; border-radius: {radius}px; color: {c["muted"]};
  font-size: {small}px; }}
QToolButton[kind="entry"] {{ padding: {half}px {unit - 1}px; border-radius: {radius}px; }}
QToolButton[kind="entry"]:focus {{ padding: {half - 1}px {unit - 2}px; }}
QToolButton[kind="section"], QToolButton[kind="section-off"] {{ padding: {half}px {unit + half}px;
  border-radius: {radius}px; color: {c["muted"]}; }}
QToolButton[kind="section-off"]:checked {{ background: transparent; }}
QToolButton[kind="section"]:checked {{ background: {c["accent_soft"]}; color: {c["text"]}; font-weight: 600; }}
QFrame[kind="sections"] {{ background: transparent; border: none; }}
QToolButton[kind="nav"]:checked {{ background: {c["accent_soft"]}; color: {c["text"]}; }}
QLineEdit, QPlainTextEdit, QTextEdit, QComboBox, QAbstractSpinBox {{ background: {c["raised"]};
  color: {c["text"]}; border: 1px solid {c["border"]}; border-radius: {radius}px;
  padding: {half}px {unit}px; selection-background-color: {c["accent"]};
  selection-color: {c["on_accent"]}; }}
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
QListView, QTreeView, QTableView {{ background: transparent; border: none; outline: none;
  selection-background-color: {c["accent_soft"]}; selection-color: {c["text"]}; }}
QTreeView::branch, QTreeView::branch:selected, QTreeView::branch:hover {{ background: transparent; }}
QTreeView::branch:closed:has-children {{ image: url("{icons}/chevron-right.svg"); }}
QTreeView::branch:open:has-children {{ image: url("{icons}/chevron.svg"); }}
QAbstractScrollArea::corner {{ background: transparent; border: none; }}
QListView::item, QTreeView::item {{ border-radius: {radius - 2}px; padding: {half}px {unit}px;
  color: {c["text"]}; }}
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
QProgressBar {{ background: {c["hover"]}; border: none; border-radius: {half // 2 + 1}px;
  max-height: {unit - 2}px; min-height: {unit - 2}px; color: transparent; }}
QProgressBar::chunk {{ background: {c["accent"]}; border-radius: {half // 2 + 1}px; }}
QSlider::groove:horizontal {{ height: {half}px; background: {c["hover"]}; border-radius: {half // 2}px; }}
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
QFrame[kind="composer"] {{ background: {c["raised"]}; border: 1px solid {c["border"]};
  border-radius: {2 * radius}px; }}
QFrame[kind="composer"][focused="true"] {{ border: 2px solid {c["accent"]}; }}
QFrame[kind="note"] {{ background: {c["surface"]}; border: none; border-radius: {radius}px; }}
QFrame[kind="banner-info"] {{ background: {c["accent_soft"]}; border: none; border-radius: {radius}px; }}
QFrame[kind="banner-ok"] {{ background: {c["ok_soft"]}; border: none; border-radius: {radius}px; }}
QFrame[kind="banner-warn"] {{ background: {c["warn_soft"]}; border: none; border-radius: {radius}px; }}
QFrame[kind="banner-bad"] {{ background: {c["bad_soft"]}; border: none; border-radius: {radius}px; }}
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
QListView::indicator {{ width: {2 * unit}px; height: {2 * unit}px; border: 1px solid {c["border"]};
  border-radius: {half}px; background: {c["raised"]}; }}
QCheckBox::indicator {{ width: {2 * unit}px; height: {2 * unit}px; border: 1px solid {c["muted"]};
  border-radius: {half}px; background: {c["raised"]}; }}
QCheckBox::indicator:checked, QListView::indicator:checked {{ background: {c["accent"]};
  border-color: {c["accent"]}; image: url("{icons}/{tick}.svg"); }}
QCheckBox::indicator:focus {{ border: 2px solid {c["accent"]}; }}
QCheckBox::indicator:disabled {{ border-color: {c["border"]}; background: {c["surface"]}; }}
QCheckBox {{ spacing: {unit}px; min-height: {3 * unit}px; }}
QTabBar::tab {{ background: transparent; color: {c["muted"]}; padding: {unit}px {2 * unit}px;
  border-bottom: 2px solid transparent; }}
QTabBar::tab:selected {{ color: {c["text"]}; border-bottom: 2px solid {c["accent"]}; }}
QTabBar::tab:focus {{ color: {c["accent"]}; }}
QTabWidget::pane {{ border: none; }}
QTabBar {{ qproperty-drawBase: 0; }}
"""
