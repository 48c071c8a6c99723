"""Every format through the reader process: the text, its page, and the reported problems."""

import json
import os
import random
from email.message import EmailMessage

import pytest

from devices import child as limited_child
from devices.child import ChildFailed
from engine.documents import reader_process
from engine.documents.file_types import kind_of
from engine.documents.reader_process import Reader
from tests.support import documents_made as made
from tests.support.servers import runs, wait_for

RTF = (
    rb"{\rtf1\ansi\ansicpg1252{\fonttbl{\f0\fcharset0 Arial;}{\f1\fcharset204 Times;}}{\info{\title x}}\f0 "
    rb"Gr\'fc\'dfe \u8364?, 800.\par {\f1 \'d1\'e5\'ea\'f0\'e5\'f2}\par\par\trowd a\cell b\cell\row "
    rb"1\cell 2\cell\row\par{\pict 01ff}}"
)


@pytest.fixture(scope="module")
def reader():
    reader = Reader()
    yield reader
    reader.close()


def read(reader, path):
    answers = list(reader.read(path, kind_of(path.name)))
    return [page for answer in answers for page in answer.pages], answers[-1].problem


def text_of(page):
    return "\n".join(chunk.text for chunk in page.chunks)


def test_a_pdf_keeps_its_pages_and_tells_which_is_a_scan(reader, tmp_path):
    path = made.pdf(tmp_path / "a.pdf", [["First page (of three)"], [], ["The third page."]], pictures={1})
    pages, problem = read(reader, path)
    assert not problem
    assert [page.number for page in pages] == [1, 2, 3]
    assert text_of(pages[0]) == "First page (of three)"
    assert "needs OCR" in pages[1].problem
    assert text_of(pages[2]) == "The third page."


def test_a_filled_form_and_comments_of_a_pdf_are_read(reader, tmp_path):
    widget, shown = (
        b"<</Type/Annot/Subtype/Widget/Rect[200 700 400 720]/F 4/DA(/F 11 Tf 0 g)",
        b"/F 4/Rect[60 60 90 90]",
    )
    objects = [
        (
            b"<</Type/Catalog/Pages 2 0 R/AcroForm<</Fields[6 0 R 7 0 R 8 0 R 9 0 R]/DR<</Font<</F 5 0 R>>>>>>"
            b"/Names<</EmbeddedFiles<</Names[(bill.pdf)12 0 R]>>>>>>"
        ),
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        (
            b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 595 842]/Resources<</Font<</F 5 0 R>>>>/Contents 4 0 R"
            b"/Annots[6 0 R 7 0 R 8 0 R 9 0 R 10 0 R 11 0 R]>>"
        ),
        b"<</Length 50>>\nstream\nBT /F 11 Tf 60 780 Td (Name of the applicant:) Tj ET \nendstream",
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>",
        widget + b"/FT/Tx/T(name)/TU(Your name)/V(Ida Nielsen)>>",
        widget + b"/FT/Tx/T(city)/V<FEFF00C60072F8>>>".replace(b"F8>", b"00F8>"),
        widget + b"/FT/Tx/T(empty)>>",
        widget.replace(b"/F 4", b"/F 2") + b"/FT/Tx/T(hidden)/V(Secret)>>",
        b"<</Type/Annot/Subtype/FreeText/DA(/F 11 Tf)/Contents(Paid on the third of May)%s>>" % shown,
        b"<</Type/Annot/Subtype/Text/Contents(The pump leaks)%s>>" % shown,
        b"<</Type/Filespec/F(bill.pdf)/UF(bill.pdf)/EF<</F 13 0 R>>>>",
        b"<</Type/EmbeddedFile/Length 2>>\nstream\nhi\nendstream",
    ]
    ((page,), problem) = read(reader, made.pdf_of(tmp_path / "form.pdf", objects))
    assert (page.problem, problem) == ("", "")
    assert text_of(page).split("\n") == [
        "Name of the applicant:",
        "Your name: Ida Nielsen",
        "city: \u00c6r\u00f8",
        "Paid on the third of May",
        "The pump leaks",
        "Attachments (not read): bill.pdf",
    ]


@pytest.mark.parametrize("step", [40, 120])
def test_cells_of_a_table_in_a_pdf_stay_apart(reader, tmp_path, step):
    rows = [("part", "price", "n"), ("Rope", "12.50", "3"), ("Anchor", "80.00", "1"), ("", "7", "8")]
    cells = [
        (60 + step * j, 700 - 14 * i, cell) for i, row in enumerate(rows) for j, cell in enumerate(row) if cell
    ]
    drawn = "".join(f"BT /F 11 Tf {x} {y} Td ({cell}) Tj ET\n" for x, y, cell in cells).encode()
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 595 842]/Resources<</Font<</F 5 0 R>>>>/Contents 4 0 R>>",
        b"<</Length %d>>\nstream\n%s\nendstream" % (len(drawn), drawn),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>",
    ]
    ((page,), _) = read(reader, made.pdf_of(tmp_path / "table.pdf", objects))
    assert text_of(page) == "part price n\nRope 12.50 3\nAnchor 80.00 1\n7 8"


def test_a_scan_without_ocr_installed_says_what_to_install(tmp_path):
    path = made.pdf(tmp_path / "a.pdf", [["Text."], []], pictures={1})
    reader = Reader(ocr=True)
    try:
        pages, problem = read(reader, path)
    finally:
        reader.close()
    assert not problem
    assert text_of(pages[0]) == "Text."
    assert any(words in pages[1].problem for words in ("OCR is not installed", "OCR could read"))


def test_a_document_that_needs_too_much_memory_says_so_after_a_fresh_child_tried_it(tmp_path, monkeypatch):
    monkeypatch.setattr(reader_process, "MEMORY_BYTES", 300 << 20)
    (tmp_path / "large.txt").write_text("whale " * (20 << 20))
    (tmp_path / "small.txt").write_text("The dory is red.")
    reader = Reader()
    try:
        pages, problem = read(reader, tmp_path / "large.txt")
        assert (pages, problem) == ([], "reading it needs too much memory")
        pages, problem = read(reader, tmp_path / "small.txt")
        assert (text_of(pages[0]), problem) == ("The dory is red.", "")
    finally:
        reader.close()


def test_a_long_pdf_comes_in_several_answers_without_a_gap(reader, tmp_path):
    path = made.pdf(tmp_path / "long.pdf", [[f"This is page {n}."] for n in range(1, 201)])
    answers = list(reader.read(path, "pdf"))
    assert len(answers) > 1
    assert [page.number for answer in answers for page in answer.pages] == list(range(1, 201))
    later = list(reader.read(path, "pdf", first=150))
    assert text_of(later[0].pages[0]) == "This is page 150."


def test_a_word_document_keeps_headings_and_whole_tables(reader, tmp_path):
    pages, _ = read(reader, made.docx(tmp_path / "a.docx"))
    table = next(chunk for chunk in pages[0].chunks if "412 crowns" in chunk.text)
    assert table.heading == "Annual report » Costs"
    assert "item | price\nred paint | 412 crowns" in table.text


def test_a_long_sheet_repeats_its_head(reader, tmp_path):
    pages, _ = read(reader, made.xlsx(tmp_path / "a.xlsx"))
    assert [page.label for page in pages] == [
        "Stock, rows 1 to 60",
        "Stock, rows 61 to 120",
        "Stock, rows 121 to 151",
    ]
    assert all("part | count" in text_of(page) for page in pages)
    assert "gasket 149 | 447" in text_of(pages[-1])


def test_slides_come_in_their_own_order(reader, tmp_path):
    path = made.pptx(tmp_path / "a.pptx", [("Herring", "They swim in shoals."), ("Cod", "They do not.")])
    pages, _ = read(reader, path)
    assert [page.label for page in pages] == ["slide 1", "slide 2"]
    assert pages[0].chunks[0].heading == "Herring"
    assert "shoals" in text_of(pages[0])


def test_a_book_is_read_in_the_order_of_its_spine(reader, tmp_path):
    path = made.epub(tmp_path / "a.epub", ["<h1>One</h1><p>Begin.</p>", "<h1>Two</h1><p>End.</p>"])
    pages, _ = read(reader, path)
    assert [page.label for page in pages] == ["One", "Two"]


def test_html_keeps_tables_and_leaves_scripts_out(reader, tmp_path):
    path = tmp_path / "a.html"
    path.write_text(
        "<html><head><title>no</title></head><body><nav>menu</nav>"
        "<div role='navigation'><h3>Contents</h3>next</div>"
        "<h2>Tides</h2><p>High <b>water</b> at noon.</p>"
        "<script>alert('x')</script><table><tr><th>day</th><th>m</th></tr><tr><td>1</td><td>3.2</td></tr></table>"
    )
    pages, _ = read(reader, path)
    whole = text_of(pages[0])
    assert "High water at noon." in whole
    assert "day | m\n1 | 3.2" in whole
    assert not any(word in whole for word in ("alert", "menu", "Contents", "next"))
    assert pages[0].chunks[0].heading == "Tides"


def test_mail_is_one_page_a_message_and_names_attachments(reader, tmp_path):
    path = made.mbox(tmp_path / "a.mbox", [made.message(f"Boat {n}", f"Boat {n} leaks.") for n in range(3)])
    pages, _ = read(reader, path)
    assert [page.label for page in pages] == ["Boat 0", "Boat 1", "Boat 2"]
    assert "Boat 1 leaks." in text_of(pages[1])
    assert "numbers.csv" in text_of(pages[1])


def with_attachments(folder, subject="Boats"):
    """A mail with a text, a table, a Word file, a PDF, a damaged PDF, a picture, and a mail with a note."""
    inner = EmailMessage()
    inner["From"], inner["Subject"] = "tom@example.org", "Inner words"
    inner.set_content("The inner boat sinks.")
    inner.add_attachment("A note within: the rudder.\n", filename="note.txt", charset="utf-16")
    mail = made.message(subject, "All boats are attached.")
    mail.add_attachment(made.docx(folder / "w.docx").read_bytes(), maintype="application", subtype="octet-stream",
                        filename="w.docx")  # fmt: skip
    mail.add_attachment(made.pdf(folder / "p.pdf", [["Page of the pilot."]]).read_bytes(), maintype="application",
                        subtype="pdf")  # fmt: skip
    mail.add_attachment(b"%PDF-broken", maintype="application", subtype="pdf", filename="broken.pdf")
    mail.add_attachment(b"\x89PNG", maintype="image", subtype="png", filename="photo.png")
    mail.add_attachment(inner)
    mail.add_attachment(inner.as_bytes(), maintype="application", subtype="octet-stream", filename="same.eml")
    return mail


@pytest.mark.parametrize("kind", ["eml", "mbox"])
def test_attachments_of_a_mail_are_read_and_the_others_are_named(reader, tmp_path, kind):
    path, mail = tmp_path / f"a.{kind}", with_attachments(tmp_path)
    if kind == "eml":
        path.write_bytes(mail.as_bytes())
    else:
        made.mbox(path, [mail, made.message("Second", "The second one.")])
    pages, problem = read(reader, path)
    assert not problem
    text = text_of(pages[0])
    for words in (
        "All boats are attached.",
        "1 | 2",
        "412 crowns",
        "Page of the pilot.",
        "The inner boat sinks.",
        "Inner words",
    ):
        assert words in text
    assert text.count("A note within: the rudder.") == 2
    assert "Attachments (not read): broken.pdf (it is damaged, or not a PDF), photo.png" in text
    assert len(pages) == (1 if kind == "eml" else 2)


@pytest.mark.parametrize("kind", ["eml", "mbox"])
def test_an_attachment_that_stops_the_reader_leaves_the_text_of_its_mail(reader, tmp_path, monkeypatch, kind):
    path = tmp_path / f"a.{kind}"
    if kind == "eml":
        path.write_bytes(with_attachments(tmp_path).as_bytes())
    else:
        made.mbox(path, [with_attachments(tmp_path, f"Boats {n}") for n in range(2)])
    send = reader._send

    def stopped(request):
        if request.attachments:
            raise ChildFailed(timed_out=True, out_of_memory=False, exit_code=None)
        return send(request)

    monkeypatch.setattr(reader, "_send", stopped)
    pages, _ = read(reader, path)
    assert len(pages) == (1 if kind == "eml" else 2)
    for page in pages:
        assert "All boats are attached." in text_of(page)
        assert "w.docx, attachment 3.pdf, broken.pdf" in text_of(page)
        assert "took longer than" in page.problem


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("sep.csv", "sep=;\nname;price\nIda;1,20\n", "name | price\nIda | 1,20"),
        ("unclosed.csv", 'id,text\n1,"begun\n' + "2,row\n" * 300_000, "id | text"),
        ("lines.csv", 'id,text\n1,"two\nlines, ""both"""\n', '1 | two lines, "both"'),
        (
            "undeclared.html",
            ("<p>" + "Секретное собрание состоится во вторник. " * 3).encode("cp1251"),
            "Секретное",
        ),
        (
            "lies.html",
            ("<meta charset=utf-8><p>" + "Секретное собрание состоится во вторник. " * 3).encode("koi8-r"),
            "Секретное",
        ),
        ("stated.html", "<meta charset='gb2312'><p>租金每月为八百元".encode("gbk"), "租金每月为八百元"),
        ("wide.html", "<p>Flut um zw\u00f6lf".encode("utf-16"), "Flut um zw\u00f6lf"),
        (
            "stated.eml",
            b"From: a@b\nContent-Type: text/html; charset=koi8-r\n\n<p>" + "Секрет".encode("koi8-r"),
            "Секрет",
        ),
        (
            "empty-plain.eml",
            (
                b"From: a@b\nContent-Type: multipart/alternative; boundary=x\n\n--x\nContent-Type: text/plain\n"
                b"\n \n--x\nContent-Type: text/html\n\n<p>The dory leaks.\n--x--\n"
            ),
            "The dory leaks.",
        ),
        (
            "page.mhtml",
            (
                b"From: <Saved>\nContent-Type: multipart/related; boundary=x\n\n--x\nContent-Type: text/html\n\n"
                b"<p>The dory leaks.\n--x\nContent-Type: image/png\n\nx\n--x--\n"
            ),
            "The dory leaks.",
        ),
        (
            "hebrew.txt",
            ("הסוד נמצא כאן והוא מחכה לקורא שימצא אותו בתוך הטקסט הארוך הזה. " * 2).encode("cp1255"),
            "הסוד נמצא",
        ),
        (
            "mail-japanese.txt",
            "秘密はここにあり、読者がそれを見つけるのを待っています。".encode("iso2022_jp"),
            "秘密は",
        ),
        (
            "polish.txt",
            ("Zażółć gęślą jaźń, święto będzie w środę, mówił ksiądz. " * 2).encode("iso8859_2"),
            "gęślą jaźń",
        ),
        (
            "a.fb2",
            (
                '<?xml version="1.0" encoding="utf-8"?><FictionBook><body><section><title><p>One</p></title>'
                "<p>A dory.</p></section></body><binary>AAAA</binary></FictionBook>"
            ),
            "One\n\nA dory.",
        ),
        (
            "a.ipynb",
            json.dumps(
                {
                    "cells": [
                        {"cell_type": "markdown", "source": ["# Boats\n", "A dory."]},
                        {
                            "cell_type": "code",
                            "source": "leak()",
                            "outputs": [{"text": ["wet\n"]}, {"data": {"text/plain": "7"}}],
                        },
                    ]
                }
            ),
            "A dory.\n\nleak()\n\nwet\n\n7",
        ),
        ("a.csv", "name;age\nIda;7\n", "name | age\nIda | 7"),
        ("a.md", "# Top\n\ntext\n\n| a | b |\n|---|---|\n| 1 | 2 |\n", "| a | b |\n|---|---|\n| 1 | 2 |"),
        ("a.py", "import os\n\n\ndef swim():\n    return 1\n", "def swim():"),
        ("latin.txt", "caf\u00e9 na\u00efve".encode("cp1252"), "caf\u00e9 na\u00efve"),
        ("wide.txt", "h\u00e9".encode("utf-16"), "h\u00e9"),
        ("bare-wide.txt", "Flut um zw\u00f6lf".encode("utf-16-le"), "Flut um zw\u00f6lf"),
        ("german.txt", ("Grüße aus München. " * 3).encode("cp1252"), "Grüße aus München."),
        (
            "russian.txt",
            "Секретное собрание состоится во вторник.".encode("cp1251"),
            "Секретное собрание",
        ),
        (
            "koi8.csv",
            ("имя;город\n" + "Иван Петров;Санкт Петербург, улица Ленина\n" * 3).encode("koi8-r"),
            "Иван Петров | Санкт",
        ),
        (
            "chinese.txt",
            "本合同由甲乙双方于二零一九年签订。租金每月为八百元。".encode("gbk"),
            "租金每月为八百元",
        ),
        (
            "japanese.md",
            "この契約は二〇一九年に締結され、家賃は月額八万円です。".encode("shift-jis"),
            "家賃は月額八万円です",
        ),
        (
            "korean.txt",
            "이 계약은 2019년에 체결되었으며 월세는 팔십만 원이다.".encode("euc-kr"),
            "월세는 팔십만 원이다",
        ),
        ("czech.txt", "Příliš žluťoučký kůň úpěl ďábelské ódy.".encode("cp1250"), "žluťoučký kůň"),
        ("one-line.json", json.dumps([{"boat": f"dory {n}", "length": n} for n in range(99)]), '"boat": "dory 7"'),
        ("a.jsonl", "\n".join(json.dumps({"boat": n, "note": "wet " * 120}) for n in range(9)), '"boat": 1'),
        ("escaped.jsonl", '{"a": "Gr\\u00f6\\u00dfe"}\n{"a": "\\u00d6l"}\n', '{"a": "Größe"}\n{"a": "Öl"}'),
        ("no-headers.eml", "MIME-Version: 1.0\nContent-Type: text/plain\n\nThe boat leaks.\n", "The boat leaks."),
        ("form.html", "<html><body><form><h1>Boats</h1><p>A dory leaks.</p></form></body></html>", "A dory leaks."),
        ("a.rtf", RTF, "Gr\u00fc\u00dfe €, 800.\n\n\u0421\u0435\u043a\u0440\u0435\u0442\n\na | b\n1 | 2"),
        (
            "note.rtf",
            rb"{\rtf1 Foot{\footnote note}{\*\generator x} \{end\}{\v gone}\~here}",
            "Footnote {end} here",
        ),
    ],
)
def test_plain_formats(reader, tmp_path, name, content, expected):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    pages, problem = read(reader, path)
    assert not problem
    assert expected in text_of(pages[0])


def nested_mail(depth, lines=1):
    """A mail whose text is in the innermost of so many parts."""
    opened = (f'Content-Type: multipart/mixed; boundary="b{n}"\n\n--b{n}\n' for n in range(depth))
    closed = (f"\n--b{n}--\n" for n in reversed(range(depth)))
    text = "Content-Type: text/plain\n\nThe tide comes at noon.\n" + "and again\n" * lines
    return "".join(["From: a@b\nSubject: x\n", *opened, text, *closed]).encode()


def test_a_mail_forwarded_many_times_is_read(reader, tmp_path):
    (tmp_path / "forwarded.eml").write_bytes(nested_mail(30, 100))
    pages, problem = read(reader, tmp_path / "forwarded.eml")
    assert not problem
    assert "The tide comes at noon." in text_of(pages[0])


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("empty.txt", b"", "there is no text in it"),
        ("blank.md", b" \n\n", "there is no text in it"),
        ("blank.html", b"<html><body><script>x</script></body></html>", "there is no text in it"),
        ("head.csv", b"\n;;\n", "there is no text in it"),
        ("app.min.js", b"var a=1;" * 200, "it is generated: its lines have more than 400 characters on average"),
        ("nothing.eml", b"", "it has neither the headers nor the text of a mail"),
        ("parts.eml", nested_mail(31), "its parts are nested more than 30 deep"),
        ("letters.eml", b"Subject: x\nContent-Type: message/rfc822\n\n" * 3000,
         "its parts are nested more than 30 deep"),
        ("locked.docx", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 600,
         "it is encrypted, or in a format of Office before 2007"),
        ("other.rtf", b"plain", "it is not RTF"),
    ],
)  # fmt: skip
def test_a_file_without_content_has_a_reason(reader, tmp_path, name, content, reason):
    (tmp_path / name).write_bytes(content)
    pages, problem = read(reader, tmp_path / name)
    assert not any(page.chunks for page in pages)
    assert problem == reason


@pytest.mark.parametrize("suffix", ["pdf", "docx", "xlsx", "pptx", "epub", "txt", "eml"])
def test_garbage_is_a_reason_and_the_child_lives(reader, tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(b"\x00\x01PK\x03\x04" + random.Random(5).randbytes(5000))
    pages, problem = read(reader, path)
    pid = reader.pid
    assert not [page for page in pages if page.chunks]
    assert problem
    good = tmp_path / "good.txt"
    good.write_text("still here")
    assert text_of(read(reader, good)[0][0]) == "still here"
    assert reader.pid == pid


def test_an_archive_that_unpacks_to_too_much_is_refused(reader, tmp_path):
    import zipfile

    path = tmp_path / "bomb.epub"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("META-INF/container.xml", b"0" * (257 << 20))
    assert "unpacks to" in read(reader, path)[1]


def test_a_page_that_stalls_the_parser_is_told_and_the_next_ones_are_read(tmp_path, monkeypatch):
    """A named pipe is a file that never ends; a PDF keeps its other pages after the child process is killed."""
    monkeypatch.setattr(reader_process, "PAGE_LIMIT_S", 2.0)
    monkeypatch.setattr(limited_child, "_STALLED_S", 4.0)
    reader = Reader()
    try:
        pipe = tmp_path / "stall.txt"
        os.mkfifo(pipe)
        asked = []
        monkeypatch.setattr(
            reader, "_send", lambda request, ask=reader._send: asked.append(request) or ask(request)
        )
        (answer,) = reader.read(pipe, "text")
        assert "took longer than 2 s" in answer.problem
        assert len(asked) == 1, "it would only stall again"
        path = made.pdf(tmp_path / "long.pdf", [[f"This is page {n}."] for n in range(1, 151)])
        numbers = []
        for answer in reader.read(path, "pdf"):
            numbers += [page.number for page in answer.pages]
            if len(numbers) < 100:
                os.kill(reader.pid, 9)
                wait_for(lambda pid=reader.pid: not runs(pid), what="end of the child")
        assert numbers == list(range(1, 151))
    finally:
        reader.close()
