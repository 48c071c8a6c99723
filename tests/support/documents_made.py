"""Creates files of every format that collections support, with known text on known pages."""

import mailbox
import zipfile
from email.message import EmailMessage
from pathlib import Path


def pdf(path: Path, pages: list[list[str]], *, pictures: set[int] = frozenset()) -> Path:
    """Write a PDF with lines of text in Helvetica; pages in `pictures` (from 0) contain a grey image instead."""
    objects: list[bytes] = [b"<</Type/Catalog/Pages 2 0 R>>", b""]
    font = len(objects) + 1
    objects.append(b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>")
    picture = len(objects) + 1
    head = b"<</Type/XObject/Subtype/Image/Width 2/Height 2/ColorSpace/DeviceGray/BitsPerComponent 8/Length 4>>"
    objects.append(head + b"\nstream\n\x10\x80\x40\xf0\nendstream")
    kids = []
    for number, lines in enumerate(pages):
        if number in pictures:
            drawn = b"q 400 0 0 600 50 100 cm /Im Do Q"
        else:
            shown = "".join(f"({_escaped(line)}) Tj T*\n" for line in lines)
            drawn = f"BT /F 11 Tf 14 TL 60 780 Td\n{shown}ET".encode("cp1252")
        objects.append(b"<</Length %d>>\nstream\n%s\nendstream" % (len(drawn), drawn))
        content = len(objects)
        resources = b"<</Font<</F %d 0 R>>/XObject<</Im %d 0 R>>>>" % (font, picture)
        objects.append(
            b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 595 842]/Resources %s/Contents %d 0 R>>" % (resources, content)
        )
        kids.append(b"%d 0 R" % len(objects))
    objects[1] = b"<</Type/Pages/Count %d/Kids[%s]>>" % (len(kids), b" ".join(kids))
    return pdf_of(path, objects)


def _escaped(line: str) -> str:
    return line.replace("\\", "\\\\").replace("(", "\\(").replace(")", "\\)")


def pdf_of(path: Path, objects: list[bytes]) -> Path:
    """Write a PDF from its objects; the first one is the catalog."""
    out, places = bytearray(b"%PDF-1.7\n"), []
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % place for place in places)
    out += b"trailer\n<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, table)
    path.write_bytes(bytes(out))
    return path


def docx(path: Path) -> Path:
    import docx as word

    document = word.Document()
    document.add_heading("Annual report", 1)
    document.add_paragraph("The lighthouse of Skagen was repainted in May.")
    document.add_heading("Costs", 2)
    table = document.add_table(rows=2, cols=2)
    for row, cells in zip(table.rows, [("item", "price"), ("red paint", "412 crowns")], strict=True):
        for cell, text in zip(row.cells, cells, strict=True):
            cell.text = text
    document.save(str(path))
    return path


def xlsx(path: Path) -> Path:
    import openpyxl

    book = openpyxl.Workbook()
    sheet = book.active
    sheet.title = "Stock"
    sheet.append(["part", "count"])
    for number in range(150):
        sheet.append([f"gasket {number}", number * 3])
    book.create_sheet("Empty")
    book.save(path)
    return path


_SLIDE = """<?xml version="1.0"?><p:sld xmlns:p="http://schemas.openxmlformats.org/presentationml/2006/main"
 xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main"><p:cSld><p:spTree>
 <p:sp><p:nvSpPr><p:nvPr><p:ph type="title"/></p:nvPr></p:nvSpPr>
 <p:txBody><a:p><a:r><a:t>{title}</a:t></a:r></a:p></p:txBody></p:sp>
 <p:sp><p:txBody><a:p><a:r><a:t>{text}</a:t></a:r></a:p></p:txBody></p:sp></p:spTree></p:cSld></p:sld>"""


def pptx(path: Path, slides: list[tuple[str, str]]) -> Path:
    """Write slides with PowerPoint's archive layout; the last slide comes first in the archive."""
    r = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    with zipfile.ZipFile(path, "w") as archive:
        for number, (title, text) in reversed(list(enumerate(slides, 1))):
            archive.writestr(f"ppt/slides/slide{number}.xml", _SLIDE.format(title=title, text=text))
        listed = "".join(f'<p:sldId id="{255 + n}" r:id="rId{n}"/>' for n in range(1, len(slides) + 1))
        archive.writestr(
            "ppt/presentation.xml",
            f'<p:presentation xmlns:p="http://schemas.openxmlformats.org/presentationml/2006/main" xmlns:r="{r}">'
            f"<p:sldIdLst>{listed}</p:sldIdLst></p:presentation>",
        )
        relations = "".join(
            f'<Relationship Id="rId{n}" Type="{r}/slide" Target="slides/slide{n}.xml"/>'
            for n in range(1, len(slides) + 1)
        )
        archive.writestr("ppt/_rels/presentation.xml.rels", f"<Relationships>{relations}</Relationships>")
    return path


def epub(path: Path, chapters: list[str]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("mimetype", "application/epub+zip")
        archive.writestr(
            "META-INF/container.xml",
            '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
            '<rootfile full-path="OEBPS/content.opf"/></rootfiles></container>',
        )
        items = "".join(f'<item id="c{n}" href="text/c{n}.xhtml"/>' for n in range(len(chapters)))
        spine = "".join(f'<itemref idref="c{n}"/>' for n in range(len(chapters)))
        archive.writestr(
            "OEBPS/content.opf",
            f'<package xmlns="http://www.idpf.org/2007/opf"><manifest>{items}</manifest><spine>{spine}</spine>'
            "</package>",
        )
        for number, text in enumerate(chapters):
            archive.writestr(f"OEBPS/text/c{number}.xhtml", f"<html><body>{text}</body></html>")
    return path


def message(subject: str, text: str) -> EmailMessage:
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = "ida@example.org", "per@example.org", subject
    mail.set_content(text)
    mail.add_attachment(b"1,2", maintype="text", subtype="csv", filename="numbers.csv")
    return mail


def mbox(path: Path, messages: list[EmailMessage]) -> Path:
    box = mailbox.mbox(path)
    for mail in messages:
        box.add(mail)
    box.close()
    return path
