"""Labels, buttons, cards and banners in the style sheet's kinds."""

from collections.abc import Callable
from typing import Literal, TypeVar

from PySide6.QtCore import QEvent, QObject, QPoint, QRect, QSize, Qt, QTimer, Signal
from PySide6.QtGui import (
    QAccessible,
    QAccessibleEvent,
    QCursor,
    QFocusEvent,
    QGuiApplication,
    QHideEvent,
    QIcon,
    QKeyEvent,
    QMouseEvent,
    QResizeEvent,
    QShowEvent,
)
from PySide6.QtWidgets import (
    QAbstractScrollArea,
    QApplication,
    QFrame,
    QHBoxLayout,
    QLabel,
    QLayout,
    QLineEdit,
    QPushButton,
    QScrollArea,
    QSizePolicy,
    QToolButton,
    QVBoxLayout,
    QWidget,
)
from shiboken6 import isValid

from app.gui.animations import appear
from app.gui.formatted import plain_tip, without_overrides
from app.gui.theme import Theme

# The page grid: maximum column width, margin, and the space reserved for a scroll bar.
PAGE_WIDTH, PAGE_MARGIN, SCROLL_BAR = 960, 32, 12

_RELEASED_MS = 20  # interval for checking whether the mouse button was released
_EMPTY_WIDTH = 440  # maximum line width of an empty page
_TOAST_WIDTH = 46  # maximum width of a toast in letters of body text

LabelKind = Literal["", "muted", "small", "title", "strong", "chip", "chip-ok", "chip-warn", "chip-bad", "glyph"]
Tone = Literal["info", "ok", "warn", "bad"]


def label(
    text: str = "", kind: LabelKind = "", *, wrap: bool = False, selectable: bool = False, tip: str = ""
) -> QLabel:
    """A plain-text label. Markup in the text is not interpreted."""
    result = QLabel(without_overrides(text), textFormat=Qt.TextFormat.PlainText)
    result.setProperty("kind", kind)
    result.setWordWrap(wrap)
    result.setToolTip(plain_tip(tip))
    if kind.startswith("chip"):
        result.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Fixed)
    if selectable:
        result.setTextInteractionFlags(
            Qt.TextInteractionFlag.TextSelectableByMouse | Qt.TextInteractionFlag.TextSelectableByKeyboard
        )
    return result


def literal(text: str) -> str:
    """A text for a button or a menu entry, where a single "&" would underline the next letter and not be shown."""
    return text.replace("&", "&&")


def set_kind(widget: QWidget, kind: str) -> None:
    """Change a widget's kind and update its style."""
    if widget.property("kind") != kind:
        widget.setProperty("kind", kind)
        widget.style().unpolish(widget)
        widget.style().polish(widget)


class _Button(QPushButton):
    """A button that a double click presses once: the second press might hit another button in the same place."""

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        """Ignore the second press."""
        event.accept()


def button(
    text: str, on_click: Callable[[], object] | None = None, kind: str = "", *, name: str = "", tip: str = ""
) -> QPushButton:
    """A push button. `kind` is primary, danger, link or empty; `name` is for screen readers."""
    result = _Button(literal(text))
    result.setAccessibleName(name)
    result.setToolTip(plain_tip(tip))
    result.setProperty("kind", kind)
    result.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Fixed)
    if on_click is not None:
        result.clicked.connect(lambda _checked=False: on_click())
    return result


class IconButton(QToolButton):
    """An icon button. `words` is its tooltip and accessible name.

    A double click presses it once, or twice if it `steps` through something.
    """

    def __init__(
        self,
        theme: Theme,
        icon: str,
        words: str,
        on_click: Callable[[], object] | None = None,
        *,
        colour: str = "muted",
        size: int = 18,
        steps: bool = False,
    ) -> None:
        super().__init__()
        self._theme, self._icon, self._colour = theme, icon, colour
        self._size, self._steps = size, steps
        self.set_words(words)
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self._refresh()
        theme.changed.connect(self._refresh)
        if on_click is not None:
            self.clicked.connect(lambda _checked=False: on_click())

    def set_words(self, words: str) -> None:
        self.setToolTip(plain_tip(words))
        self.setAccessibleName(words)

    def set_icon(self, icon: str, colour: str | None = None) -> None:
        self._icon = icon
        self._colour = colour or self._colour
        self._refresh()

    def set_quiet(self, quiet: bool) -> None:
        """Hide the icon unless the button has the focus. Size and name stay."""
        if quiet != self._quiet:
            self._quiet = quiet
            self._refresh()

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        """Press again only to step; see `_Button`."""
        if self._steps:
            super().mouseDoubleClickEvent(event)

    def focusInEvent(self, event: QFocusEvent) -> None:
        """Show the icon for keyboard users."""
        super().focusInEvent(event)
        self._refresh()

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        self._refresh()

    _quiet = False

    def _refresh(self) -> None:
        side = self._theme.tokens.scaled(self._size)
        self.setIconSize(QSize(side, side))
        hidden = self._quiet and not self.hasFocus()
        self.setIcon(QIcon() if hidden else self._theme.icon(self._icon, self._colour))


Item = QWidget | QLayout | int
Margins = tuple[int, int, int, int]
L = TypeVar("L", QHBoxLayout, QVBoxLayout)


def row(*items: Item, spacing: int = 8, margins: Margins = (0, 0, 0, 0), grow: int | None = None) -> QHBoxLayout:
    """A horizontal layout. A number adds stretch; the item at position `grow` takes the free space."""
    return _filled(QHBoxLayout(), items, spacing, margins, grow)


def stack(*items: Item, spacing: int = 8, margins: Margins = (0, 0, 0, 0), grow: int | None = None) -> QVBoxLayout:
    """A vertical layout, as `row`."""
    return _filled(QVBoxLayout(), items, spacing, margins, grow)


def _filled(layout: L, items: tuple[Item, ...], spacing: int, margins: Margins, grow: int | None) -> L:
    layout.setSpacing(spacing)
    layout.setContentsMargins(*margins)
    for item in items:
        if isinstance(item, QWidget):
            layout.addWidget(item)
        elif isinstance(item, QLayout):
            layout.addLayout(item)
        else:
            layout.addStretch(item)
    if grow is not None:
        layout.setStretch(grow, 1)
    return layout


def card(*items: Item, kind: str = "card", spacing: int = 8, margin: int = 16) -> QFrame:
    """A framed group of items."""
    return framed(kind, stack(*items, spacing=spacing, margins=(margin, margin, margin, margin)))


def framed(kind: str, layout: QLayout | None = None) -> QFrame:
    """A frame of this kind."""
    frame = QFrame()
    frame.setProperty("kind", kind)
    if layout is not None:
        frame.setLayout(layout)
    return frame


def holding(layout: QLayout) -> QWidget:
    """A plain widget with this layout."""
    widget = QWidget()
    widget.setLayout(layout)
    return widget


def rule() -> QFrame:
    """A horizontal hairline."""
    return framed("rule")


def when_released(owner: QObject, run: Callable[[], object]) -> None:
    """Call `run` now, or after release if a mouse button is pressed.

    Rebuilding a widget between press and release would lose the click. `run` should use the newest state.
    """
    if QGuiApplication.mouseButtons() == Qt.MouseButton.NoButton:
        run()
    else:
        QTimer.singleShot(_RELEASED_MS, owner, lambda: when_released(owner, run))


def clear(layout: QLayout) -> None:
    """Remove and delete everything in a layout. The focus stays on the page or goes to a new one of its name."""
    while (item := layout.takeAt(0)) is not None:
        widget, inner = item.widget(), item.layout()
        if widget is not None:
            _keep_focus_near(widget)
            widget.hide()
            widget.deleteLater()
        elif inner is not None:
            clear(inner)


def _keep_focus_near(widget: QWidget) -> None:
    """If the widget has the focus, move it to the surrounding page, not to the window's next control."""
    focused = QApplication.focusWidget()
    if focused is None or not (focused is widget or widget.isAncestorOf(focused)):
        return
    around = widget.parentWidget()
    while around is not None and not isinstance(around, QScrollArea):
        around = around.parentWidget()
    if around is not None:
        around.setFocus()
        if name := focused.accessibleName():
            page = around
            QTimer.singleShot(0, page, lambda: _focus_again(page, widget, name))


def _focus_again(page: QWidget, old: QWidget, name: str) -> None:
    """Give the focus to the control that took the place of one in `old`, unless the user went elsewhere."""
    for each in page.findChildren(QWidget) if page.hasFocus() else ():
        is_old = isValid(old) and (each is old or old.isAncestorOf(each))
        if each.accessibleName() == name and not is_old:
            each.setFocus()
            return


def reserve_scroll_bar(area: QAbstractScrollArea) -> None:
    """Reserve the space of a hidden scroll bar, so that text does not wrap again when it appears."""
    width, settling = -1, False

    def reserve(_low: int, high: int) -> None:
        nonlocal width, settling
        target = 0 if high else SCROLL_BAR
        # Setting margins triggers a layout, which may change the range again: ignore nested calls.
        if settling or target == width:
            return
        settling, width = True, target
        area.setViewportMargins(0, 0, target, 0)
        settling = False

    area.verticalScrollBar().rangeChanged.connect(reserve)
    reserve(0, 0)


def scrolled(column: QLayout, name: str) -> QScrollArea:
    """A frameless, vertically scrolling area around `column` with the parent's background."""
    inner = QFrame()
    inner.setLayout(column)
    area = QScrollArea(widgetResizable=True)
    area.setAccessibleName(name)
    area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
    area.setFrameShape(QFrame.Shape.NoFrame)
    area.setWidget(inner)
    area.viewport().setAutoFillBackground(False)
    inner.setAutoFillBackground(False)
    return area


class _Subtitle(QLabel):
    """The text below the title, as high as its wrapped lines, which the header layout does not ensure."""

    def __init__(self, text: str) -> None:
        super().__init__(text, textFormat=Qt.TextFormat.PlainText, wordWrap=True)
        self.setProperty("kind", "muted")

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Follow the width."""
        super().resizeEvent(event)
        self._fit()

    def setText(self, text: str) -> None:
        """Show another text in as many lines as it needs."""
        super().setText(text)
        self._fit()

    def _fit(self) -> None:
        self.setMinimumHeight(max(0, self.heightForWidth(self.width())))


class Page(QScrollArea):
    """A scrolling page with a title and a content column."""

    def __init__(self, title: str, subtitle: str = "") -> None:
        super().__init__()
        reserve_scroll_bar(self)
        self.setWidgetResizable(True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        inner = QWidget()
        inner.setProperty("kind", "page")
        column = QWidget(maximumWidth=PAGE_WIDTH)  # of all pages: the row of their names aligns with them
        column.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Preferred)
        self.title = label(title, "title")
        self.subtitle = _Subtitle(subtitle)
        if not subtitle:  # showing a label that has no parent yet would open a window
            self.subtitle.hide()
        self.header = QHBoxLayout()
        self.header.setSpacing(8)
        self.header.addLayout(stack(self.title, self.subtitle, spacing=4), 1)
        self.content = stack(self.header, spacing=16, margins=(PAGE_MARGIN, 24, PAGE_MARGIN, PAGE_MARGIN))
        column.setLayout(self.content)
        outer = row(spacing=0)
        outer.addStretch(1)
        outer.addWidget(column, 100)
        outer.addStretch(1)
        # Put the stretch below the column: with top alignment, wrapped lines would not get their height.
        whole = stack(outer, spacing=0)
        whole.addStretch(1)
        inner.setLayout(whole)
        self._inner = inner
        self._places: dict[QWidget, int] = {}  # y of each visible widget within `inner` in the last layout
        self.setWidget(inner)
        self.setAccessibleName(title)
        self._timer = QTimer(self)
        self._on_shown: Callable[[], object] | None = None

    def while_visible(self, every_ms: int, again: Callable[[], object], shown: Callable[[], object]) -> None:
        """Call `shown` when the page becomes visible, and `again` every `every_ms` while it stays visible."""
        self._timer.setInterval(every_ms)
        self._timer.timeout.connect(again)
        self._on_shown = shown

    def showEvent(self, event: QShowEvent) -> None:
        """Start the periodic updates."""
        super().showEvent(event)
        if self._on_shown:
            self._on_shown()
            self._timer.start()

    def hideEvent(self, event: QHideEvent) -> None:
        """Stop the periodic updates."""
        super().hideEvent(event)
        self._timer.stop()

    def event(self, event: QEvent) -> bool:
        """Scroll along when content above changes its height, so that a control does not move under the mouse."""
        top = self.verticalScrollBar().value()
        handled = super().event(event)
        if event.type() == QEvent.Type.LayoutRequest and self.widget() is not None:
            before = self._places
            self._note_places()
            if top:  # at the top of the page, new content pushes the rest down
                self._stay(top, before)
        return handled

    def _stay(self, top: int, before: dict[QWidget, int]) -> None:
        """Keep the widget under the mouse, else the first visible one, where it was in the viewport."""
        inner = self._inner
        pointed = inner.childAt(inner.mapFromGlobal(QCursor.pos())) if self.viewport().underMouse() else None
        seen = [widget for widget in before if widget in self._places and before[widget] >= top]
        anchor = pointed if pointed in seen else min(seen, key=before.__getitem__, default=None)
        if anchor is not None:
            self.verticalScrollBar().setValue(top + self._places[anchor] - before[anchor])

    def _note_places(self) -> None:
        inner = self._inner
        widgets = inner.findChildren(QWidget)
        self._places = {widget: widget.mapTo(inner, QPoint(0, 0)).y() for widget in widgets if widget.isVisible()}

    def set_subtitle(self, text: str) -> None:
        """Set the text below the title."""
        self.subtitle.setText(text)
        self.subtitle.setVisible(bool(text))

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Remember where the widgets are."""
        super().resizeEvent(event)
        self._note_places()

    def add_section(self, title: str, *items: QWidget | QLayout) -> None:
        """Add a heading with items at the end of the page."""
        self.content.addLayout(stack(label(title, "strong", wrap=True), *items, spacing=8))


class Banner(QFrame):
    """A message with action buttons: a bar in a layout, or a toast that floats over a page and moves nothing there.

    A toast without actions and problems disappears by itself.
    """

    replaced = Signal(str)  # a message that was still visible when the next one came
    toast_ms = 10_000  # how long such a toast stays while the window is active
    tone: Tone = "info"

    def __init__(self, theme: Theme, over: QWidget | None = None, *, at_top: bool = False) -> None:
        """`over`: the widget that it floats over, at its bottom or its top."""
        super().__init__(over)
        self.over, self.at_top = over, at_top
        self._timer = QTimer(self, singleShot=True)
        self._timer.timeout.connect(self._on_time)
        if over is not None:
            over.installEventFilter(self)
        self._text = label("", wrap=True, selectable=True)
        self._actions = QHBoxLayout()
        self._theme = theme
        self._before: QWidget | None = None  # had the focus before the banner appeared
        self._problems: dict[str, str] = {}  # of tasks that run again and again
        self._close = IconButton(theme, "close", self.tr("Close"), self.hide)
        layout = row(self._text, self._actions, self._close, spacing=8, margins=(16, 8, 8, 8))
        layout.setStretch(0, 1)
        self.setLayout(layout)
        self.hide()

    @property
    def text(self) -> str:
        return self._text.text()

    def notify(self, text: str, tone: Tone = "info", *actions: tuple[str, Callable[[], object]]) -> None:
        """Show a message. Each action is a button."""
        if self.isVisible() and text != self.text:
            self.replaced.emit(self.text)
        clear(self._actions)
        for words, on_click in actions:

            def act(run: Callable[[], object] = on_click) -> None:
                self.hide()
                run()

            self._actions.addWidget(button(words, act))
        is_new = not self.isVisible()
        self._before = QApplication.focusWidget() if is_new else self._before
        self._text.setText(text)
        self.tone = tone
        set_kind(self, f"banner-{tone}" if self.over is None else f"toast-{tone}")
        self.setAccessibleName(text)
        self._place()
        if is_new:
            appear(self._theme, self)
        QAccessible.updateAccessibility(QAccessibleEvent(self, QAccessible.Event.Alert))
        self._timer.stop()
        if self.over is not None and tone in {"info", "ok"} and not actions:
            self._timer.start(self.toast_ms)

    def report(self, text: str, *, of: str = "", tone: Tone = "bad") -> None:
        """Show the problem of a task that runs again and again. Without a text it is solved, which hides it.

        The same problem is shown once, so that the user can close the message.
        """
        before = self._problems.get(of, "")
        self._problems[of] = text
        if text and text != before:
            self.notify(text, tone)
        elif before and not text and self.text == before:
            self.hide()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Follow the size of the page."""
        if event.type() == QEvent.Type.Resize and not self.isHidden():
            self._place()
        return super().eventFilter(watched, event)

    def event(self, event: QEvent) -> bool:
        """Follow the size of the text."""
        handled = super().event(event)
        if event.type() == QEvent.Type.LayoutRequest:
            self._place()
        return handled

    def area(self) -> QRect:
        """The part of its parent in which a toast floats."""
        return self.over.rect() if self.over is not None else QRect()

    def _place(self) -> None:
        """Put a toast into the middle of the area's lower or upper edge."""
        layout, area = self.layout(), self.area()
        if layout is None or area.isEmpty():
            return
        unit, body = self._theme.tokens.unit, self._theme.tokens.body
        words = self._text.fontMetrics().horizontalAdvance(self._text.text()) + unit
        frame = layout.totalSizeHint().width() - self._text.sizeHint().width()
        width = min(area.width() - 4 * unit, _TOAST_WIDTH * body, words + frame)
        height = max(layout.totalHeightForWidth(width), layout.totalMinimumSize().height())
        top = area.y() + (2 * unit if self.at_top else area.height() - height - 2 * unit)
        self.setGeometry(area.x() + (area.width() - width) // 2, max(0, top), width, height)
        self.raise_()

    def _on_time(self) -> None:
        """Disappear, unless the user is reading or using it."""
        focused = QApplication.focusWidget()
        is_used = self.underMouse() or (focused is not None and self.isAncestorOf(focused))
        if is_used or not self.window().isActiveWindow():
            self._timer.start(self.toast_ms)
        else:
            self.hide()

    def hideEvent(self, event: QHideEvent) -> None:
        """Return the focus to the widget that had it before, not to the next control."""
        focused = self.focusWidget()
        super().hideEvent(event)
        before, self._before = self._before, None
        if focused is None or before is None or not isValid(before) or not before.isVisible():
            return
        if self.isAncestorOf(QApplication.focusWidget() or self) or focused.hasFocus():
            before.setFocus()
        else:
            QTimer.singleShot(0, before, before.setFocus)


class EmptyState(QWidget):
    """The empty state of a page: what will appear here, and the next step."""

    pressed = Signal()

    def __init__(self, title: str, text: str, action: str = "") -> None:
        super().__init__()
        words = label(text, "muted", wrap=True)
        words.setAlignment(Qt.AlignmentFlag.AlignHCenter)
        words.setMinimumWidth(_EMPTY_WIDTH // 2)
        words.setMaximumWidth(_EMPTY_WIDTH)
        layout = stack(1, spacing=8)
        layout.addWidget(label(title, "strong"), 0, Qt.AlignmentFlag.AlignHCenter)
        line = row(1, words, 1, margins=(16, 0, 16, 0))
        line.setStretch(1, 100)
        layout.addLayout(line)  # with an alignment, wrapped lines would not get their height
        if action:
            layout.addSpacing(8)
            layout.addWidget(button(action, self.pressed.emit, "primary"), 0, Qt.AlignmentFlag.AlignHCenter)
        layout.addStretch(1)
        self.setLayout(layout)

    def add_below(self, widget: QWidget) -> None:
        layout = self.layout()
        assert isinstance(layout, QVBoxLayout)
        layout.insertWidget(layout.count() - 1, widget, 0, Qt.AlignmentFlag.AlignHCenter)


# Single-line fields.


def line_field(hint: str, name: str = "") -> QLineEdit:
    """A text field with a placeholder. Its accessible name is `name`, or the placeholder."""
    field = QLineEdit(placeholderText=hint)
    field.setAccessibleName(name or hint)
    return field


class _SearchField(QLineEdit):
    """Esc clears it; an empty one leaves Esc to the window."""

    def event(self, event: QEvent) -> bool:
        """Take Esc from the window's shortcut, which stops the answer."""
        if not isinstance(event, QKeyEvent) or event.key() != Qt.Key.Key_Escape or not self.text():
            return super().event(event)
        if event.type() == QEvent.Type.KeyPress:
            self.clear()
        event.accept()
        return True


def search_field(hint: str, name: str = "") -> QLineEdit:
    """A text field with a clear button."""
    field = _SearchField(placeholderText=hint, clearButtonEnabled=True)
    field.setAccessibleName(name or hint)
    return field
