"""The text formats of a rendered message, derived from the theme."""

from PySide6.QtGui import (
    QColor,
    QFont,
    QFontMetricsF,
    QTextBlockFormat,
    QTextCharFormat,
    QTextFormat,
    QTextTableFormat,
)

from app.gui.latex_images import Formula, FormulaImage
from app.gui.theme import Theme

CODE = QTextFormat.Property.UserProperty + 1
QUOTE = QTextFormat.Property.UserProperty + 2
TABLE = QTextFormat.Property.UserProperty + 3  # a table as Markdown, for the clipboard
CELLS = QTextFormat.Property.UserProperty + 4  # a table as tab-separated values
# Heading sizes relative to the body text. Measured by eye at 100 % and 200 %: visible but not too large.
_HEADINGS = {1: 1.4, 2: 1.22, 3: 1.1}
_FORMULA = 1.15  # STIX letters are smaller than Inter letters of the same size
_CODE_HEADER = 32  # pixels at the normal text size
CODE_PADDING_UNITS = 1.5
INDENT_UNITS = 3  # indentation of a list


def code_header(theme: Theme) -> int:
    """The height of the header of a code block in pixels."""
    return theme.tokens.scaled(_CODE_HEADER)


class Formats:
    """Block and character formats for one theme."""

    def __init__(self, theme: Theme) -> None:
        self.theme = theme
        self.unit = theme.tokens.unit
        self.text = QTextCharFormat()
        self.text.setFont(theme.font())
        self._mono = theme.font(mono=True)

    def formula(self, latex: str, *, display: bool) -> FormulaImage | None:
        """The image of a formula in the text's size and colour, or None if it is not rendered yet."""
        tokens = self.theme.tokens
        size = round(tokens.body * _FORMULA)
        return self.theme.formulas.get(Formula(latex, display, size, tokens.colours["text"]))

    def paragraph(self, *, tight: bool = False) -> QTextBlockFormat:
        """Format of a paragraph. `tight`: little space below it."""
        block = QTextBlockFormat()
        block.setBottomMargin(self.unit / 4 if tight else self.unit)
        block.setLineHeight(140, QTextBlockFormat.LineHeightTypes.ProportionalHeight.value)
        return block

    def nest(self, block: QTextBlockFormat, indent: int, quote: int) -> None:
        """Indent a block for a list of depth `indent` and quotes of depth `quote`."""
        block.setIndent(indent)
        if quote:
            block.setLeftMargin(block.leftMargin() + 2 * self.unit * quote)
            block.setProperty(QUOTE, quote)

    def hang(self, block: QTextBlockFormat, box: str) -> None:
        """Set a box before the text of a list item, in place of a bullet; its other lines begin under the text."""
        if box:
            block.setTextIndent(-QFontMetricsF(self.text.font()).horizontalAdvance(box))

    def inset(self, indent: int, quote: int) -> float:
        """Left offset in pixels of text in these lists and quotes."""
        return self.unit * (INDENT_UNITS * indent + 2 * quote)

    def heading(self, level: int) -> tuple[QTextBlockFormat, QTextCharFormat]:
        """Block and character format of a heading of level 1 to 6."""
        block = QTextBlockFormat()
        block.setHeadingLevel(level)
        block.setTopMargin(self.unit * 1.5)
        block.setBottomMargin(self.unit)
        text = QTextCharFormat(self.text)
        font = self.theme.font(strong=True)
        font.setPixelSize(round(self.theme.tokens.body * _HEADINGS.get(level, 1.0)))
        text.setFont(font)
        return block, text

    @property
    def code_top(self) -> float:
        """Space above the first line of a code block, for its header."""
        return code_header(self.theme) + 0.5 * self.unit

    @property
    def code_bottom(self) -> float:
        """Space below the last line of a code block: the frame's padding and the paragraph spacing."""
        return self.unit * (CODE_PADDING_UNITS + 1)

    def code_line(
        self, language: str, above: float, *, first: bool, last: bool, wraps: bool = True
    ) -> QTextBlockFormat:
        """Format of one line of a code block. The first line leaves space for the header, plus `above`."""
        block = QTextBlockFormat()
        block.setNonBreakableLines(not wraps)
        block.setLeftMargin(1.5 * self.unit)
        block.setRightMargin(1.5 * self.unit)
        block.setTopMargin(self.code_top + above if first else 0)
        block.setBottomMargin(self.unit * (CODE_PADDING_UNITS + 1.5) if last else 0)
        block.setLineHeight(130, QTextBlockFormat.LineHeightTypes.ProportionalHeight.value)
        block.setProperty(QTextFormat.Property.BlockCodeLanguage, language)
        block.setProperty(CODE, 1)
        return block

    def code(self, colour: str | None = None) -> QTextCharFormat:
        text = QTextCharFormat()
        text.setFont(self._mono)
        if colour is not None:
            text.setForeground(QColor(colour))
        return text

    def inline_code(self, base: QTextCharFormat) -> QTextCharFormat:
        text = QTextCharFormat(base)
        text.setFont(self._mono)
        text.setBackground(self.theme.tokens.colour("hover"))
        return text

    def emphasis(self, base: QTextCharFormat, kind: str) -> QTextCharFormat:
        """`base` as em, strong or s."""
        text = QTextCharFormat(base)
        if kind == "strong":
            text.setFontWeight(QFont.Weight.DemiBold)
        elif kind == "em":
            text.setFontItalic(True)
        else:
            text.setFontStrikeOut(True)
        return text

    def link(self, base: QTextCharFormat, address: str) -> QTextCharFormat:
        """`base` as a link."""
        text = QTextCharFormat(base)
        text.setAnchor(True)
        text.setAnchorHref(address)
        text.setForeground(self.theme.tokens.colour("link"))
        text.setFontUnderline(True)
        return text

    def rule(self) -> QTextBlockFormat:
        block = QTextBlockFormat()
        block.setTopMargin(self.unit)
        block.setBottomMargin(self.unit)
        block.setProperty(QTextFormat.Property.BlockTrailingHorizontalRulerWidth, 1)
        block.setBackground(self.theme.tokens.colour("border"))
        return block

    def gap(self) -> QTextBlockFormat:
        """Format of the block that Qt requires after a table, as low as possible."""
        block = QTextBlockFormat()
        block.setLineHeight(self.unit, QTextBlockFormat.LineHeightTypes.FixedHeight.value)
        return block

    def table(self, *, after_code: bool) -> QTextTableFormat:
        table = QTextTableFormat()
        table.setCellPadding(self.unit * 0.75)
        table.setCellSpacing(0)
        table.setBorder(1)
        table.setBorderBrush(self.theme.tokens.colour("border"))
        table.setBorderStyle(QTextTableFormat.BorderStyle.BorderStyle_Solid)
        table.setBorderCollapse(True)
        # The bottom margin of a code block does not push a table down.
        table.setTopMargin(self.unit * (CODE_PADDING_UNITS + 1.5) if after_code else self.unit)
        return table
