"""A drawn formula as one letter of a text document, standing on the baseline of its line."""

from PySide6.QtCore import QRect, QRectF, QSizeF
from PySide6.QtGui import (
    QFontMetricsF,
    QPainter,
    QPyTextObject,
    QTextCharFormat,
    QTextDocument,
    QTextFormat,
)

from app.gui.formulas import Picture

OBJECT_LETTER = "\ufffc"
OBJECT = QTextFormat.ObjectTypes.UserObject.value + 1
SOURCE = QTextFormat.Property.UserProperty + 11
_NUMBER = QTextFormat.Property.UserProperty + 12


class FormulaObjects(QPyTextObject):
    """The pictures of one document, by number."""

    def __init__(self, document: QTextDocument) -> None:
        super().__init__(document)
        self._pictures: list[Picture] = []
        document.documentLayout().registerHandler(OBJECT, self)

    def format_of(self, picture: Picture, source: str, base: QTextCharFormat) -> QTextCharFormat:
        """The format of the letter that stands for this picture; `source` is what copying gives."""
        made = QTextCharFormat(base)
        made.setObjectType(OBJECT)
        # Qt puts the middle of such a letter at half the height of an x; see `_height`.
        made.setVerticalAlignment(QTextCharFormat.VerticalAlignment.AlignMiddle)
        made.setProperty(SOURCE, source)
        made.setProperty(_NUMBER, len(self._pictures))
        self._pictures.append(picture)
        return made

    def intrinsicSize(self, document: QTextDocument, position: int, text_format: QTextFormat) -> QSizeF:
        """Room for it."""
        del document, position
        picture = self._picture(text_format)
        return QSizeF(picture.width, _height(picture, text_format)) if picture else QSizeF(0, 0)

    def drawObject(
        self,
        painter: QPainter,
        rect: QRectF | QRect,
        document: QTextDocument,
        position: int,
        text_format: QTextFormat,
    ) -> None:
        """Its paths, so that it is sharp at every scale."""
        del document, position
        picture = self._picture(text_format)
        if picture is not None:
            down = (_height(picture, text_format) + _half_x(text_format)) / 2 - picture.ascent
            box = QRectF(rect.x(), rect.y() + down, picture.width, picture.height)
            picture.renderer.render(painter, box)

    def _picture(self, text_format: QTextFormat) -> Picture | None:
        number = int(text_format.property(_NUMBER) or 0)
        return self._pictures[number] if number < len(self._pictures) else None


def _half_x(text_format: QTextFormat) -> float:
    return QFontMetricsF(text_format.toCharFormat().font()).xHeight() / 2


def _height(picture: Picture, text_format: QTextFormat) -> float:
    """So high that, laid with its middle at half an x, the baseline of the picture is that of the line.

    Source: QTextDocumentLayout::resizeInlineObject: ascent (h + x/2) / 2, descent (h - x/2) / 2.
    """
    half, below = _half_x(text_format), picture.height - picture.ascent
    return max(2 * picture.ascent - half, 2 * below + half)
