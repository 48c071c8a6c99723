"""Decodes text, and splits formats without pages into parts of about one page."""

import contextlib
import re
from collections.abc import Iterable, Iterator
from typing import Final

from msgspec.structs import replace

from engine.documents.types import NO_TEXT, PART_CHARS, BadDocument, Block, Page

# A heading starts a new part if the current one has at least this length.
_LEAST_CHARS = PART_CHARS // 3
_CHAPTER_LEVEL = 2


def in_parts(blocks: Iterable[Block], first: int = 1) -> Iterator[Page]:
    """Pages numbered from `first`. A part starts at a heading if possible, never inside a block."""
    part: list[Block] = []
    size, number = 0, first
    for block in blocks:
        at_heading = block.kind == "heading" and block.level <= _CHAPTER_LEVEL and size >= _LEAST_CHARS
        if part and (at_heading or size + len(block.text) > PART_CHARS):
            moved = [part.pop()] if part[-1].kind == "heading" and len(part) > 1 else []
            yield Page(number, tuple(part), _label(part))
            part, number = moved, number + 1
            size = sum(len(b.text) for b in part)
        part.append(block)
        size += len(block.text)
    if part:
        yield Page(number, tuple(part), _label(part))


def _label(blocks: list[Block]) -> str:
    return next((b.text[:80] for b in blocks if b.kind == "heading"), "")


# Encodings that files without a mark have, by language group.
_ENCODINGS: Final = (
    "cp1252 cp1250 cp1257 cp1254 cp1251 koi8_r koi8_u cp866 cp1253 cp1255 cp1256 cp874 gb18030 big5 cp932 euc_jp "
    "iso2022_jp cp949 cp850"
)
_BOMS: Final = (
    (b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe\0\0", "utf-32"), (b"\0\0\xfe\xff", "utf-32"),
    (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"),
)  # fmt: skip
# Bytes of Western European texts that are not ASCII: fewer than a tenth of all bytes.
_WESTERN: Final = frozenset(
    "\u00a0äöüÄÖÜßáéíóúÁÉÍÓÚàèìòùÀÈÌÒÙâêîôûÂÊÎÔÛãõñÃÕÑçÇåÅæÆøØëïËÏœŒÿ€£§°©®¢¥µ¿¡«»‹›„“”‚‘’–—…•·×÷±²³¹½¼¾ªº™†‡‰¶"  # noqa: RUF001
)
_WESTERN_SHARE: Final = 0.1
# Hebrew letters and marks in Windows-1255. Cyrillic texts of that length contain other letters, too.
_HEBREW: Final = frozenset(
    b"\x84\x91\x92\x93\x94\x96\x97\xa0\xa4\xa7\xab\xb7\xbb" + bytes(range(0xC0, 0xD4)) + bytes(range(0xE0, 0xFB))
)
# Letters of ISO 8859-2 that are signs in Windows-1250, within a word; and bytes that only Windows-1250 has.
_LATIN2: Final = re.compile(rb"[A-Za-z\xc0-\xff][\xa6\xab\xb1\xb6\xbb][A-Za-z\xc0-\xff]")
_LATIN2_NEVER: Final = re.compile(rb"[\x80-\x9f]")
_ENOUGH_HIGH: Final = 60
_JAPANESE_MAIL: Final = re.compile(rb"\x1b\$[@B].{2,400}?\x1b\([BJ]", re.DOTALL)
SAMPLE_BYTES: Final = 64 << 10
# Bytes that no text has in any encoding; files of other kinds have more of them than this share.
_CONTROLS: Final = bytes({*range(9), *range(14, 27), *range(28, 32), 127})
_CONTROLS_SHARE: Final = 0.01
_LAST_ASCII: Final = 127


def reject_binary(head: bytes) -> None:
    """Raises: BadDocument: the beginning of a file shows that it is not text."""
    if b"\0" in head and not any(head.startswith(mark) for mark, _ in _BOMS):
        _utf16(head)


def decoded(raw: bytes) -> str:
    """A text by its BOM, as UTF-8, or in the encoding that its bytes point to. Raises: BadDocument: not text."""
    for mark, encoding in _BOMS:
        if raw.startswith(mark):
            return _lines(raw.decode(encoding, errors="replace"))
    if _JAPANESE_MAIL.search(raw):  # in seven bits, like ASCII
        with contextlib.suppress(UnicodeDecodeError):
            return _lines(raw.decode("iso2022_jp"))
    if b"\0" in raw[:SAMPLE_BYTES]:
        return _lines(_utf16(raw))
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        text = raw.decode(_encoding(raw), errors="replace")
    return _lines(text)


def _utf16(raw: bytes) -> str:
    """UTF-16 without a BOM: every second byte of most texts is zero. Raises: BadDocument: not text."""
    sample = raw[:SAMPLE_BYTES]
    for encoding, zeros in (("utf-16-le", sample[1::2]), ("utf-16-be", sample[::2])):
        if zeros.count(0) > len(zeros) // 2 and sample.count(0) < len(sample) * 0.6:
            text = raw.decode(encoding, errors="replace")
            if "\0" not in text:
                return text
    raise BadDocument(NO_TEXT)


def _encoding(raw: bytes) -> str:
    """The encoding that the bytes point to. Raises: BadDocument: too many are control characters."""
    sample = raw[:SAMPLE_BYTES]
    if len(sample) - len(sample.translate(None, _CONTROLS)) > _CONTROLS_SHARE * len(sample):
        raise BadDocument(NO_TEXT)
    try:
        from charset_normalizer import from_bytes
    except ImportError:  # the extra `documents` is not installed
        return "cp1252"
    first = next((place for place, byte in enumerate(raw) if byte > _LAST_ASCII), 0)
    sample = raw[max(first - SAMPLE_BYTES // 4, 0) :][:SAMPLE_BYTES]
    high = bytes(byte for byte in sample if byte > _LAST_ASCII)
    # With only a few bytes, a detector names an arbitrary encoding.
    western = _WESTERN.issuperset(high.decode("cp1252", errors="replace"))
    if western and len(high) < _WESTERN_SHARE * len(sample) + 3:
        return "cp1252"
    if len(high) >= _ENOUGH_HIGH and _HEBREW.issuperset(high):
        return "cp1255"
    best = from_bytes(sample, cp_isolation=_ENCODINGS.split()).best()
    unsure = best is None or best.encoding == "cp1250"
    if unsure and _LATIN2.search(sample) and not _LATIN2_NEVER.search(sample):
        return "iso8859_2"
    return "cp1252" if best is None else best.encoding


def _lines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def paragraphs(text: str, line: int = 0) -> Iterator[Block]:
    """Text between empty lines; overlong paragraphs (files without empty lines) are split at line ends.

    `line` is the first line of the text in its file. 0: its lines are not those of the file.
    """
    for block in _paragraphs(text, line):
        yield block if line else replace(block, line=0)


def _paragraphs(text: str, line: int) -> Iterator[Block]:
    rows: list[str] = []
    began, size = line, 0
    for number, row in enumerate(text.split("\n"), line):
        if (not row.strip() or size > PART_CHARS // 2) and rows:
            yield Block("text", "\n".join(rows), line=began)
            rows, size = [], 0
        if row.strip():
            if not rows:
                began = number
            rows.append(row.rstrip())
            size += len(row)
    if rows:
        yield Block("text", "\n".join(rows), line=began)
