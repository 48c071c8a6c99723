"""Rich Text Format: paragraphs, tables and notes. Images, styles and deleted text are omitted."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from engine.documents.formats.pseudo_pages import in_parts, paragraphs
from engine.documents.types import BadDocument, Block, Page

_PART: Final = re.compile(
    rb"\\([a-z]{1,32})(-?\d{1,10})? ?|\\'([0-9a-f]{2})|\\([^a-z'])|([{}])|[\r\n]+|([^\\{}\r\n]+)", re.IGNORECASE
)
# Groups without text. Every group that begins with \* is skipped too, except the text of fields and shapes.
_LEFT_OUT: Final = frozenset(
    b"fonttbl colortbl stylesheet listtable listoverridetable revtbl rsidtbl generator info pict object objdata "
    b"themedata colorschememapping datastore latentstyles xmlnstbl fldinst filetbl bkmkstart bkmkend nonshppict "
    b"private ftnsep ftnsepc aftnsep aftnsepc annotation atnid atnauthor atntime".split()
)
_KEPT: Final = frozenset({b"shptxt", b"shpinst", b"fldrslt"})
_SIGNS: Final = {
    b"par": "\n\n", b"sect": "\n\n", b"page": "\n\n", b"line": "\n", b"tab": " ", b"row": "\n", b"nestrow": "\n",
    b"cell": " | ", b"nestcell": " | ", b"emdash": "\u2014", b"endash": "\u2013", b"bullet": "\u2022",
    b"lquote": "\u2018", b"rquote": "\u2019", b"ldblquote": "\u201c", b"rdblquote": "\u201d",
}  # fmt: skip
_ESCAPED: Final = {b"~": " ", b"_": "-", b"-": ""}
# Hidden and deleted text.
_HIDDEN: Final = frozenset({b"v", b"deleted"})
_CHARSETS: Final = {
    0: "cp1252", 77: "mac_roman", 128: "cp932", 129: "cp949", 134: "gb18030", 136: "big5", 161: "cp1253",
    162: "cp1254", 177: "cp1255", 178: "cp1256", 186: "cp1257", 204: "cp1251", 222: "cp874", 238: "cp1250",
}  # fmt: skip


def rtf(path: Path) -> Iterator[Page]:
    """The document in parts of about a page. Raises: BadDocument: it is not RTF."""
    raw = path.read_bytes()
    if not raw.lstrip().startswith(b"{\\rtf"):
        raise BadDocument("it is not RTF")
    yield from in_parts(_blocks(_Text().read(raw)))


def _blocks(text: str) -> Iterator[Block]:
    for block in paragraphs(text):
        rows = [row.strip().removesuffix("|").strip() for row in block.text.split("\n")]
        if all(" | " in row for row in rows):
            yield Block("table", "\n".join(rows))
        else:
            yield Block("text", "\n".join(rows))


class _Group(NamedTuple):
    """State that ends with its group. `after_u`: characters after a Unicode one that stand for the same."""

    left_out: bool = False
    after_u: int = 1
    encoding: str = ""


class _Text:
    """Collects the text of one file."""

    def __init__(self) -> None:
        self._out: list[str] = []
        self._bytes = bytearray()
        self._default = "cp1252"
        self._fonts: dict[int, str] = {}
        self._font = 0
        self._skip = 0
        self._star = False
        self._group = _Group()
        self._stack: list[_Group] = []

    def read(self, raw: bytes) -> str:
        """The text of an RTF file."""
        for match in _PART.finditer(raw):
            word, number, code, sign, brace, text = match.groups()
            if brace is not None:
                self._flush()
                self._brace(brace)
            elif sign == b"*":
                self._star = True
            elif word is not None:
                self._word(word.lower(), None if number is None else int(number))
                self._star = False
            elif not self._group.left_out:
                self._characters(code, sign, text or b"")
        self._flush()
        # Characters beyond U+FFFF are written as two halves.
        return "".join(self._out).encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def _brace(self, brace: bytes) -> None:
        if brace == b"{":
            self._stack.append(self._group)
        elif self._stack:
            self._group = self._stack.pop()
        self._star = False

    def _word(self, word: bytes, number: int | None) -> None:
        value = number or 0
        group = self._group
        if word in _LEFT_OUT or (self._star and word not in _KEPT) or (word in _HIDDEN and number != 0):
            self._group = group._replace(left_out=True)
        elif word == b"ansicpg":
            self._default = f"cp{value}"
        elif word == b"f":
            self._flush()
            self._font = value
            self._group = group._replace(encoding=self._fonts.get(value, group.encoding))
        elif word == b"fcharset":
            self._fonts[self._font] = _CHARSETS.get(value, "")
        elif word == b"uc":
            self._group = group._replace(after_u=value)
        elif not group.left_out:
            self._sign(word, value)

    def _sign(self, word: bytes, value: int) -> None:
        if word == b"u":
            self._flush()
            self._out.append(chr(value % 65536))
            self._skip = self._group.after_u
        elif word in _SIGNS:
            self._flush()
            self._out.append(_SIGNS[word])

    def _characters(self, code: bytes | None, sign: bytes | None, text: bytes) -> None:
        if sign is not None:
            self._flush()
            self._out.append(_ESCAPED.get(sign, sign.decode("ascii", "replace")))
            return
        data = text if code is None else bytes((int(code, 16),))
        self._bytes += data[self._skip :]
        self._skip = max(self._skip - len(data), 0)

    def _flush(self) -> None:
        """Decode the collected bytes: a character of an East Asian text has two."""
        if self._bytes:
            try:
                self._out.append(self._bytes.decode(self._group.encoding or self._default, "replace"))
            except LookupError:
                self._out.append(self._bytes.decode("cp1252", "replace"))
            self._bytes.clear()
