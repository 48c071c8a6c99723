"""Draws the chat list: whole rows, a menu button on the hovered row, search matches highlighted."""

from PySide6.QtCore import QModelIndex, QPersistentModelIndex, QPoint, QRect, QSize, Qt, Signal
from PySide6.QtGui import QFont, QMouseEvent, QPainter, QTextCharFormat, QTextLayout
from PySide6.QtWidgets import QStyle, QStyledItemDelegate, QStyleOptionViewItem, QTreeView, QWidget

from app.gui.theme import Theme
from app.gui.widgets.basics import line_field

ID = Qt.ItemDataRole.UserRole + 1
MESSAGE = Qt.ItemDataRole.UserRole + 2
FOLDER = Qt.ItemDataRole.UserRole + 3
EXCERPT = Qt.ItemDataRole.UserRole + 4  # U+0002 and U+0003 mark the matching words

Index = QModelIndex | QPersistentModelIndex
_BUTTON = 28  # width in pixels of the menu button at the right of a row


class ChatTree(QTreeView):
    """Chat list. A right click or a click on a row's dots opens the menu; other clicks open the entry."""

    menu_wanted = Signal(QPoint)

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self.setMouseTracking(True)
        self.setHeaderHidden(True)
        self.setIndentation(0)
        self.setRootIsDecorated(False)
        self.setUniformRowHeights(False)
        self.setEditTriggers(QTreeView.EditTrigger.EditKeyPressed | QTreeView.EditTrigger.DoubleClicked)
        self.setExpandsOnDoubleClick(False)
        self.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        self.setTextElideMode(Qt.TextElideMode.ElideRight)
        self.setSelectionMode(QTreeView.SelectionMode.ExtendedSelection)
        self.setItemDelegate(ChatRows(theme, self))
        self.customContextMenuRequested.connect(self.menu_wanted)

    @property
    def is_editing(self) -> bool:
        """Whether the user edits the name of a row."""
        return self.state() == QTreeView.State.EditingState

    def button_rect(self, index: QModelIndex) -> QRect:
        """The rectangle of a row's menu button, in viewport coordinates."""
        row = self.visualRect(index)
        return QRect(self.viewport().width() - _BUTTON, row.top(), _BUTTON, row.height())

    def mousePressEvent(self, event: QMouseEvent) -> None:
        """Do not select the row when the click opens its menu."""
        if event.button() == Qt.MouseButton.RightButton:
            return
        at = event.position().toPoint()
        index = self.indexAt(at)
        if index.data(ID) and self.button_rect(index).contains(at):
            self.menu_wanted.emit(at)
            return
        super().mousePressEvent(event)

    def drawBranches(self, painter: QPainter, rect: QRect, index: Index) -> None:
        """Draw nothing: `ChatRows` draws whole rows."""
        del painter, rect, index


class ChatRows(QStyledItemDelegate):
    """Draws chats with rounded backgrounds, and groups as small headings with an arrow."""

    def __init__(self, theme: Theme, parent: QWidget) -> None:
        super().__init__(parent)
        self._theme = theme

    def sizeHint(self, option: QStyleOptionViewItem, index: Index) -> QSize:
        """Row height. Headings have extra space above."""
        del option
        tokens = self._theme.tokens
        line = round(tokens.body * 1.3)
        return QSize(0, line + (tokens.unit * 2 if index.data(ID) else tokens.unit + tokens.unit // 2))

    def createEditor(self, parent: QWidget, option: QStyleOptionViewItem, index: Index) -> QWidget:
        del option, index
        editor = line_field("", self.tr("Name"))
        editor.setParent(parent)
        return editor

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        tokens = self._theme.tokens
        whole = QRect(0, option.rect.top(), option.rect.right() + 1, option.rect.height())
        state = option.state
        hovered = bool(state & QStyle.StateFlag.State_MouseOver)
        if index.data(ID):
            self._paint_chat(
                painter, whole, index, hovered=hovered, chosen=bool(state & QStyle.StateFlag.State_Selected)
            )
        else:
            font = self._theme.font("small", strong=True)
            painter.setFont(font)
            painter.setPen(tokens.colour("muted"))
            view = self.parent()
            opened = isinstance(view, QTreeView) and view.isExpanded(index)
            words = whole.adjusted(tokens.unit, tokens.unit // 2, -_BUTTON, 0)
            painter.drawText(words, Qt.AlignmentFlag.AlignVCenter, str(index.data()))
            if hovered or not opened:
                icon = self._theme.icon("down" if opened else "right", "muted")
                icon.paint(painter, QRect(whole.right() - 20, words.center().y() - 7, 14, 14))
        painter.restore()

    def _paint_chat(self, painter: QPainter, whole: QRect, index: Index, *, hovered: bool, chosen: bool) -> None:
        tokens = self._theme.tokens
        if chosen or hovered:
            _paint_ground(painter, whole, self._theme, chosen=chosen)
        font = self._theme.font()
        painter.setFont(font)
        painter.setPen(tokens.colour("text"))
        words = whole.adjusted(tokens.unit, 0, -(_BUTTON if hovered else tokens.unit), 0)
        metrics = painter.fontMetrics()
        text = metrics.elidedText(str(index.data()), Qt.TextElideMode.ElideRight, words.width())
        painter.drawText(words, Qt.AlignmentFlag.AlignVCenter, text)
        if hovered:
            self._theme.icon("more", "muted").paint(
                painter, QRect(whole.right() - _BUTTON + 5, whole.center().y() - 9, 18, 18)
            )


class HitRows(QStyledItemDelegate):
    """Draws a search result: the chat's title, then two lines of text with the matches in bold."""

    def __init__(self, theme: Theme, parent: QWidget) -> None:
        super().__init__(parent)
        self._theme = theme

    def sizeHint(self, option: QStyleOptionViewItem, index: Index) -> QSize:
        """Row height: three lines."""
        del option, index
        tokens = self._theme.tokens
        return QSize(0, round(1.35 * tokens.body + 2.8 * tokens.small) + 2 * tokens.unit)

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        """Draw one search result."""
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        tokens = self._theme.tokens
        whole = QRect(option.rect)
        state = option.state
        if state & (QStyle.StateFlag.State_MouseOver | QStyle.StateFlag.State_Selected):
            chosen = bool(state & QStyle.StateFlag.State_Selected)
            _paint_ground(painter, whole, self._theme, chosen=chosen)
        inner = whole.adjusted(tokens.unit, tokens.unit // 2, -tokens.unit, -tokens.unit // 2)
        painter.setFont(self._theme.font(strong=True))
        painter.setPen(tokens.colour("text"))
        title = painter.fontMetrics().elidedText(
            str(index.data()).partition("\n")[0], Qt.TextElideMode.ElideRight, inner.width()
        )
        painter.drawText(inner, Qt.AlignmentFlag.AlignTop, title)
        inner.setTop(inner.top() + round(1.4 * tokens.body))
        self._paint_excerpt(painter, inner, str(index.data(EXCERPT) or ""))
        painter.restore()

    def _paint_excerpt(self, painter: QPainter, at: QRect, marked: str) -> None:
        tokens = self._theme.tokens
        text, ranges = "", []
        for number, part in enumerate(marked.replace("\x03", "\x02").split("\x02")):
            if number % 2:
                strong = QTextCharFormat()
                strong.setFontWeight(QFont.Weight.DemiBold)
                strong.setForeground(tokens.colour("link"))
                chunk = QTextLayout.FormatRange()
                chunk.start, chunk.length, chunk.format = len(text), len(part), strong
                ranges.append(chunk)
            text += part
        layout = QTextLayout(text, self._theme.font("small"))
        layout.setFormats(ranges)
        layout.beginLayout()
        top = 0.0
        for _ in range(2):
            line = layout.createLine()
            if not line.isValid():
                break
            line.setLineWidth(at.width())
            line.setPosition(QPoint(0, round(top)))
            top += line.height()
        layout.endLayout()
        painter.setPen(tokens.colour("muted"))
        layout.draw(painter, at.topLeft())


def _paint_ground(painter: QPainter, whole: QRect, theme: Theme, *, chosen: bool) -> None:
    tokens = theme.tokens
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(tokens.colour("accent_soft" if chosen else "hover"))
    painter.drawRoundedRect(whole.adjusted(0, 1, 0, -1), tokens.radius - 2, tokens.radius - 2)
