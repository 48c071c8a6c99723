"""Files attached to a chat: text, images, PDF and Word, and unsupported or damaged files."""

import re
import time
import zipfile

import pytest

from app import attachments
from app.attachments import DocumentError, read
from tests.support import documents_made as made

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 64


def pdf_saying(text):
    stream = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET".encode()
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>>",
        b"<</Length %d>>stream\n%s\nendstream" % (len(stream), stream),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    out, offsets = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        offsets.append(len(out))
        out += b"%d 0 obj%s\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    tail = b"xref\n0 6\n0000000000 65535 f \n%strailer<</Size 6/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF"
    return out + tail % (table, len(out))


def test_text_and_code_are_read_as_they_are(tmp_path):
    file = tmp_path / "a b.py"
    file.write_text("print('ü')\n", "utf-8")
    document = read(file)
    assert (document.name, document.text, document.data) == ("a b.py", "print('ü')\n", None)
    latin = tmp_path / "latin.txt"
    latin.write_bytes("gr\xfcn".encode("latin-1"))
    assert read(latin).text == "grün"


def test_scanned_pages_are_named_and_a_file_of_scans_says_how_many(tmp_path):
    """A PDF whose scans are left out in silence would be answered from as if it were whole."""
    some = made.pdf(tmp_path / "some.pdf", [["Text."], [], ["More."], [], []], pictures={1, 3, 4})
    assert read(some).text.endswith("[3 of 5 pages are pictures without text and are not here: 2, 4-5]")
    all_scans = made.pdf(tmp_path / "all.pdf", [[], []], pictures={0, 1})
    with pytest.raises(DocumentError, match=r"2 of its 2 pages are pictures without text\. Attach these pages"):
        read(all_scans)


def test_what_is_missing_in_a_document_is_named(tmp_path, monkeypatch):
    book = made.epub(tmp_path / "book.epub", ["<p>One.</p>", "<p>Two.</p>"])
    with zipfile.ZipFile(book) as archive:
        parts = {name: archive.read(name) for name in archive.namelist() if not name.endswith("c1.xhtml")}
    with zipfile.ZipFile(book, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    assert read(book).text == "One.\n\n[Not read: OEBPS/text/c1.xhtml is named in the book but not in it]"
    long = made.pdf(tmp_path / "long.pdf", [[f"Page {number}."] for number in range(200)])
    monkeypatch.setattr(attachments, "MAX_TEXT_BYTES", 100)
    assert re.search(r"\[Not read: the rest after \d+ characters\]$", read(long).text)


def test_an_image_is_kept_as_bytes(tmp_path):
    file = tmp_path / "x.PNG"
    file.write_bytes(PNG)
    assert (read(file).mime, read(file).data) == ("image/png", PNG)


def test_word_gives_paragraphs_and_tables(tmp_path):
    from docx import Document as Word

    word = Word()
    word.add_paragraph("First line")
    table = word.add_table(1, 2)
    table.cell(0, 0).text, table.cell(0, 1).text = "left", "right"
    word.save(str(tmp_path / "x.docx"))
    assert read(tmp_path / "x.docx").text == "First line\n\nleft | right"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("letter.doc", ".doc files are not read; save it as .docx"),
        ("Table.XLS", ".xls files are not read; save it as .docx, .pptx, .xlsx"),
        ("slides.ppt", ".ppt files are not read; save it as"),
        ("photo.HEIC", ".heic images are not read; save it as PNG"),
        ("scan.tiff", ".tiff images are not read; save it as PNG"),
    ],
)
def test_a_format_that_is_not_read_names_one_that_is(tmp_path, name, words):
    (tmp_path / name).write_bytes(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 600)
    with pytest.raises(DocumentError, match=re.escape(words)):
        read(tmp_path / name)


def test_pdf_gives_its_text(tmp_path):
    (tmp_path / "x.pdf").write_bytes(pdf_saying("Hello from a page"))
    assert "Hello from a page" in read(tmp_path / "x.pdf").text


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.bin", b"\0\1\2\0"),
        ("x.pdf", b"%PDF-1.4 cut short"),
        ("x.pdf", b"\xff" * 3000),
        ("x.docx", b"PK\x03\x04 not a zip"),
        ("x.docx", b""),
    ],
)
def test_what_is_damaged_is_refused_by_name(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DocumentError) as caught:
        read(tmp_path / name)
    assert caught.value.name == name
    assert caught.value.reason


def test_what_is_too_large_or_not_there_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("app.attachments.MAX_TEXT_BYTES", 10)
    (tmp_path / "big.txt").write_text("x" * 11)
    for path in (tmp_path / "big.txt", tmp_path / "missing.txt", tmp_path):
        with pytest.raises(DocumentError):
            read(path)


def word_file(path, body, **more):
    """A Word file with `body` as its text, of any size."""
    kind = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"
    types = f'<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types"><Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/><Override PartName="/word/document.xml" ContentType="{kind}"/></Types>'  # noqa: E501
    relation = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument"
    relations = f'<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships"><Relationship Id="r1" Type="{relation}" Target="word/document.xml"/></Relationships>'  # noqa: E501
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("[Content_Types].xml", types)
        archive.writestr("_rels/.rels", relations)
        with archive.open("word/document.xml", "w") as part:
            part.write(
                b'<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"><w:body>'
            )
            for piece in body:
                part.write(piece)
            part.write(b"</w:body></w:document>")
    return path


def test_a_word_file_that_inflates_is_refused_by_what_it_says(tmp_path):
    whole = word_file(tmp_path / "a.docx", [b"<w:p><w:r><w:t>Hello</w:t></w:r></w:p>"])
    assert read(whole).text == "Hello"
    bomb = word_file(tmp_path / "bomb.docx", (b" " * (1 << 20) for _ in range(300)))
    assert bomb.stat().st_size < 1 << 20
    begun = time.monotonic()
    with pytest.raises(DocumentError, match="unpacks to 300 MiB"):
        read(bomb)
    assert time.monotonic() - begun < 60


@pytest.mark.timeout(400)
def test_a_word_file_of_many_paragraphs_is_bounded_in_memory(tmp_path, monkeypatch):
    """The file has a few hundred kilobytes, but several gigabytes when parsed."""
    many = word_file(tmp_path / "many.docx", (b"<w:p/>" * 100_000 for _ in range(130)))
    with pytest.raises(DocumentError, match=r"needs more than|longer than|could not be read|damaged"):
        read(many)


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("cp1252", "Grüße aus München"),
        ("utf-8-sig", "Grüße aus München"),
        ("utf-16", "Grüße aus München"),
        ("gbk", "本合同由甲乙双方于二零一九年签订，租金每月为八百元。"),  # noqa: RUF001
    ],
)
def test_a_text_is_decoded_as_in_collections(tmp_path, encoding, text):
    path = tmp_path / "note.txt"
    path.write_bytes(text.encode(encoding))
    assert read(path).text == text
