"""A rendered formula as one character of a text document, aligned with the text baseline."""

from PySide6.QtCore import QRect, QRectF, QSizeF
from PySide6.QtGui import (
    QFontMetricsF,
    QPainter,
    QPyTextObject,
    QTextCharFormat,
    QTextDocument,
    QTextFormat,
)

from app.gui.latex_images import FormulaImage

OBJECT_LETTER = "\ufffc"
OBJECT = QTextFormat.ObjectTypes.UserObject.value + 1
SOURCE = QTextFormat.Property.UserProperty + 11
_NUMBER = QTextFormat.Property.UserProperty + 12


class FormulaObjects(QPyTextObject):
    """The formula images of one document, by number."""

    def __init__(self, document: QTextDocument) -> None:
        super().__init__(document)
        self._images: list[FormulaImage] = []
        document.documentLayout().registerHandler(OBJECT, self)

    def format_of(self, image: FormulaImage, source: str, base: QTextCharFormat) -> QTextCharFormat:
        """The format of the character that shows this image. `source` is the text to copy."""
        text_format = QTextCharFormat(base)
        text_format.setObjectType(OBJECT)
        # Qt centres such a character at half the x-height; see `_height`.
        text_format.setVerticalAlignment(QTextCharFormat.VerticalAlignment.AlignMiddle)
        text_format.setProperty(SOURCE, source)
        text_format.setProperty(_NUMBER, len(self._images))
        self._images.append(image)
        return text_format

    def intrinsicSize(self, document: QTextDocument, position: int, text_format: QTextFormat) -> QSizeF:
        del document, position
        image = self._image(text_format)
        return QSizeF(image.width, _height(image, text_format)) if image else QSizeF(0, 0)

    def drawObject(
        self,
        painter: QPainter,
        rect: QRectF | QRect,
        document: QTextDocument,
        position: int,
        text_format: QTextFormat,
    ) -> None:
        """Draw the image as paths, so that it is sharp at every scale."""
        del document, position
        image = self._image(text_format)
        if image is not None:
            down = (_height(image, text_format) + _half_x(text_format)) / 2 - image.ascent
            box = QRectF(rect.x(), rect.y() + down, image.width, image.height)
            image.renderer.render(painter, box)

    def _image(self, text_format: QTextFormat) -> FormulaImage | None:
        number = int(text_format.property(_NUMBER) or 0)
        return self._images[number] if number < len(self._images) else None


def _half_x(text_format: QTextFormat) -> float:
    return QFontMetricsF(text_format.toCharFormat().font()).xHeight() / 2


def _height(image: FormulaImage, text_format: QTextFormat) -> float:
    """Object height for which the image's baseline matches the line's when centred at half the x-height.

    Source: QTextDocumentLayout::resizeInlineObject: ascent (h + x/2) / 2, descent (h - x/2) / 2.
    """
    half, below = _half_x(text_format), image.height - image.ascent
    return max(2 * image.ascent - half, 2 * below + half)
