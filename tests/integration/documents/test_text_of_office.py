# ruff: noqa: E501 - pieces of XML
"""Text that Word, PowerPoint, Excel and browsers display is read; hidden text is not."""

import zipfile
from datetime import date, datetime

import openpyxl
import pytest
from openpyxl.comments import Comment

from engine.documents import file_types
from engine.documents.formats import office
from engine.documents.reader_process import Reader
from tests.support import documents_made as made

OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
STRICT = "http://purl.oclc.org/ooxml/wordprocessingml/main"
PACKAGE = "http://schemas.openxmlformats.org/package/2006"
TYPES = (
    f'<Types xmlns="{PACKAGE}/content-types">'
    '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
    '<Default Extension="xml" ContentType="application/xml"/>'
    '<Override PartName="/word/document.xml" ContentType="{}"/></Types>'
)
SPACES = (
    'xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006" xmlns:v="urn:schemas-microsoft-com:vml" '
    'xmlns:wps="http://schemas.microsoft.com/office/word/2010/wordprocessingShape" '
    'xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math" '
    'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main" '
    f'xmlns:r="{OFFICE}"'
)


@pytest.fixture(scope="module")
def text_of():
    reader = Reader()

    def read(path):
        answers = list(reader.read(path, file_types.kind_of(path.name)))
        pages = [page for answer in answers for page in answer.pages]
        problems = [p for p in (*(a.problem for a in answers), *(page.problem for page in pages)) if p]
        return "\n".join(chunk.text for page in pages for chunk in page.chunks), problems

    yield read
    reader.close()


def word_file(path, body, space=WORD, **parts):
    """A Word file; `parts`, such as footnotes, are related parts by name."""
    related = "".join(
        f'<Relationship Id="{name}" Type="{OFFICE}/{name.rstrip("0123456789")}" Target="{target}"/>'
        for name, (target, _) in parts.items()
    )
    kind = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("[Content_Types].xml", TYPES.format(kind))
        archive.writestr(
            "_rels/.rels",
            f'<Relationships xmlns="{PACKAGE}/relationships"><Relationship Id="r" Type="{OFFICE}/officeDocument" Target="word/document.xml"/></Relationships>',
        )
        archive.writestr(
            "word/document.xml", f'<w:document xmlns:w="{space}" {SPACES}><w:body>{body}</w:body></w:document>'
        )
        archive.writestr(
            "word/_rels/document.xml.rels",
            f'<Relationships xmlns="{PACKAGE}/relationships">{related}</Relationships>',
        )
        for target, raw in parts.values():
            archive.writestr(f"word/{target}", raw.replace("<w:root", f'<w:root xmlns:w="{space}" {SPACES}'))
    return path


def run(text, settings=""):
    return f'<w:r><w:rPr>{settings}</w:rPr><w:t xml:space="preserve">{text}</w:t></w:r>'


def par(*inner):
    return f"<w:p>{''.join(inner)}</w:p>"


def field(code, result=None):
    mark = '<w:r><w:fldChar w:fldCharType="{}"/></w:r>'.format
    middle = "" if result is None else mark("separate") + result
    return f"{mark('begin')}<w:r><w:instrText>{code}</w:instrText></w:r>{middle}{mark('end')}"


def cell(*inner, settings=""):
    return f"<w:tc><w:tcPr>{settings}</w:tcPr>{''.join(inner)}</w:tc>"


def row(*cells, settings=""):
    return f"<w:tr><w:trPr>{settings}</w:trPr>{''.join(cells)}</w:tr>"


def control(inner):
    return f"<w:sdt><w:sdtPr><w:alias w:val='X'/></w:sdtPr><w:sdtContent>{inner}</w:sdtContent></w:sdt>"


def box(inner):
    return f"<w:txbxContent>{inner}</w:txbxContent>"


OLD, NEW = par(run("old")), par(run("shown"))
IF = 'IF <w:r><w:t>hidden</w:t></w:r> = "a" "b" "c"'
SHOWN = {
    "inserted words": (par(run("a "), f"<w:ins>{run('shown')}</w:ins>", "<w:del><w:r><w:delText>gone</w:delText></w:r></w:del>"), "a shown"),
    "text marked as deleted": (par(run("shown"), f"<w:del>{run(' gone')}</w:del>"), "shown"),
    "an inserted paragraph": (f"<w:ins>{NEW}</w:ins>", "shown"),
    "a deleted paragraph": (f"<w:del>{OLD}</w:del>{NEW}", "shown"),
    "moved text": (par(f"<w:moveFrom>{run('gone')}</w:moveFrom>") + par(f"<w:moveTo>{run('shown')}</w:moveTo>"), "shown"),
    "insertions in a deletion": (par(f"<w:del><w:ins>{run('gone')}</w:ins></w:del>", run("shown")), "shown"),
    "a control around paragraphs": (control(NEW), "shown"),
    "controls in controls": (control(control(control(NEW))), "shown"),
    "a control in a paragraph": (par(run("Name: "), control(run("shown"))), "Name: shown"),
    "a control around a table": (control(f"<w:tbl>{row(cell(NEW))}</w:tbl>"), "shown"),
    "a control around a row": (f"<w:tbl>{control(row(cell(NEW)))}</w:tbl>", "shown"),
    "a control around a cell": (f"<w:tbl>{row(control(cell(NEW)), cell(par(run('b'))))}</w:tbl>", "shown | b"),
    "an inserted row": (f"<w:tbl>{row(cell(NEW), settings='<w:ins/>')}{row(cell(OLD), settings='<w:del/>')}</w:tbl>", "shown"),
    "a deleted cell": (f"<w:tbl>{row(cell(NEW), cell(OLD, settings='<w:cellDel/>'))}</w:tbl>", "shown"),
    "a table in a table": (f"<w:tbl>{row(cell(f'<w:tbl>{row(cell(NEW), cell(NEW))}</w:tbl>'), cell(par(run('b'))))}</w:tbl>", "shown, shown | b"),
    "several paragraphs in a cell": (f"<w:tbl>{row(cell(par(run('a')), par(run('b'))))}</w:tbl>", "a b"),
    "merged cells": (
        f"<w:tbl>{row(cell(NEW, settings='<w:vMerge w:val=&quot;restart&quot;/>'), cell(par(run('1'))))}"
        f"{row(cell('<w:p/>', settings='<w:vMerge/>'), cell(par(run('2'))))}</w:tbl>".replace("&quot;", '"'),
        "shown | 1\nshown | 2",
    ),
    "a simple field": (par(f'<w:fldSimple w:instr="DATE">{run("shown")}</w:fldSimple>'), "shown"),
    "a field": (par(run("on "), field("DATE", run("shown"))), "on shown"),
    "a field in a field": (par(field(f"IF {field('MERGEFIELD x', run('hidden'))} = 1", run("shown"))), "shown"),
    "a field without an end": (par('<w:r><w:fldChar w:fldCharType="begin"/></w:r>') + NEW, "shown"),
    "a field over paragraphs": (
        par('<w:r><w:fldChar w:fldCharType="begin"/></w:r><w:r><w:instrText>TOC</w:instrText></w:r>'
            f'<w:r><w:fldChar w:fldCharType="separate"/></w:r>{run("one")}')
        + par(run("two"), '<w:r><w:fldChar w:fldCharType="end"/></w:r>') + NEW,
        "one\n\ntwo\n\nshown",
    ),
    "a link": (par(f'<w:hyperlink r:id="x">{run("shown")}</w:hyperlink>'), "shown"),
    "smart tags": (par(f"<w:smartTag><w:smartTag>{run('shown')}</w:smartTag></w:smartTag>"), "shown"),
    "custom XML": (f"<w:customXml><w:customXmlPr/>{par('<w:customXml>', run('shown'), '</w:customXml>')}</w:customXml>", "shown"),
    "another direction": (par(f'<w:dir w:val="rtl"><w:bdo w:val="rtl">{run("shown")}</w:bdo></w:dir>'), "shown"),
    "a text box": (par(run("a"), f"<w:r><w:pict><v:shape><v:textbox>{box(NEW)}</v:textbox></v:shape></w:pict></w:r>"), "a\n\nshown"),
    "a text box in two forms": (
        par(f"<w:r><mc:AlternateContent><mc:Choice Requires='wps'><wps:txbx>{box(NEW)}</wps:txbx></mc:Choice>"
            f"<mc:Fallback><w:pict><v:textbox>{box(NEW)}</v:textbox></w:pict></mc:Fallback></mc:AlternateContent></w:r>"),
        "shown",
    ),
    "a text box in its old form alone": (
        par(f"<w:r><mc:AlternateContent><mc:Choice Requires='wpg'/><mc:Fallback><v:textbox>{box(NEW)}</v:textbox>"
            "</mc:Fallback></mc:AlternateContent></w:r>"),
        "shown",
    ),
    "a formula": (par("<m:oMath><m:r><m:t>x=1</m:t></m:r></m:oMath>"), "x=1"),
    "breaks and tabs": (par("<w:r><w:t>a</w:t><w:br/><w:t>b</w:t><w:tab/><w:t>c</w:t><w:noBreakHyphen/><w:t>d</w:t></w:r>"), "a\nb c-d"),
    "a symbol": (par('<w:r><w:sym w:font="Symbol" w:char="03B1"/><w:sym w:font="Wingdings" w:char="F0FC"/></w:r>'), "\u03b1"),
    "hidden text": (par(run("shown"), run(" hidden", "<w:vanish/>"), run("!", '<w:vanish w:val="0"/>')), "shown!"),
    "a comment inside": (par("<w:r><w:t>sho<!-- x -->wn</w:t></w:r>"), "shown"),
}  # fmt: skip


@pytest.mark.parametrize("space", [WORD, STRICT], ids=["transitional", "strict"])
@pytest.mark.parametrize(("body", "expected"), SHOWN.values(), ids=SHOWN.keys())
def test_word_text_is_what_word_shows(text_of, tmp_path, body, expected, space):
    assert text_of(word_file(tmp_path / "a.docx", body, space)) == (expected, [])


def test_notes_headers_and_headings_of_any_style_are_read(text_of, tmp_path):
    styles = (
        '<w:root><w:style w:styleId="B1"><w:name w:val="heading 1"/></w:style>'
        '<w:style w:styleId="Mine"><w:basedOn w:val="B1"/></w:style>'
        '<w:style w:styleId="Loop"><w:basedOn w:val="Loop"/></w:style></w:root>'
    )
    notes = f'<w:root><w:footnote w:id="2">{par(run("the note"))}</w:footnote></w:root>'
    body = par('<w:pPr><w:pStyle w:val="Mine"/></w:pPr>', run("Chapter")) + par(
        '<w:pPr><w:pStyle w:val="Loop"/></w:pPr>', run("text"), '<w:r><w:footnoteReference w:id="2"/></w:r>'
    )
    margin = f"<w:root>{par(run('Header words'))}</w:root>"
    path = word_file(
        tmp_path / "a.docx", body, styles=("styles.xml", styles), footnotes=("footnotes.xml", notes),
        header1=("header1.xml", margin), header2=("header2.xml", margin),
        footer1=("footer1.xml", f"<w:root>{par(run('17'))}</w:root>"),
    )  # fmt: skip
    text, problems = text_of(path)
    assert text.split() == ["Header", "words", "Chapter", "text", "the", "note"]
    assert problems == []
    reader = Reader()
    try:
        (answer,) = reader.read(path, "docx")
    finally:
        reader.close()
    assert {chunk.heading for page in answer.pages for chunk in page.chunks} >= {"Chapter"}


def test_an_embedded_page_is_read_and_another_embedded_file_is_a_problem(text_of, tmp_path):
    chunk = '<w:altChunk r:id="aFChunk1"/>'
    page = word_file(
        tmp_path / "a.docx", NEW + chunk, aFChunk1=("c.html", "<html><body><p>of the page</p></body></html>")
    )
    assert text_of(page) == ("shown\n\nof the page", [])
    other = word_file(tmp_path / "b.docx", chunk, aFChunk1=("c.rtf", "{\\rtf1 x}"))
    assert "c.rtf" in text_of(other)[1][0]


def test_text_of_slides_keeps_its_words_apart_and_its_drawings(text_of, tmp_path):
    path = made.pptx(tmp_path / "a.pptx", [("Title", "one</a:t></a:r><a:br/><a:r><a:t>two")])
    dgm = '<d:m xmlns:d="x" xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main"><a:p><a:r><a:t>in a diagram</a:t></a:r></a:p></d:m>'
    chart = '<c:c xmlns:c="y"><c:cat><c:strCache><c:pt idx="0"><c:v>North</c:v></c:pt></c:strCache></c:cat></c:c>'
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(
            "ppt/slides/_rels/slide1.xml.rels",
            f'<Relationships><Relationship Id="a" Type="{OFFICE}/diagramData" Target="../diagrams/data1.xml"/>'
            f'<Relationship Id="b" Type="{OFFICE}/chart" Target="../charts/chart1.xml"/></Relationships>',
        )
        archive.writestr("ppt/diagrams/data1.xml", dgm)
        archive.writestr("ppt/charts/chart1.xml", chart)
    text, problems = text_of(path)
    assert problems == []
    assert text.split() == ["Title", "one", "two", "in", "a", "diagram", "North"]


def test_cells_of_slides_with_several_paragraphs_keep_words_apart():
    from lxml import etree

    space = "http://schemas.openxmlformats.org/drawingml/2006/main"
    cell_ = etree.fromstring(
        f'<a:tc xmlns:a="{space}"><a:p><a:r><a:t>one</a:t></a:r></a:p><a:p><a:r><a:t>two</a:t></a:r></a:p></a:tc>'
    )
    assert office._text(cell_) == "one two"


@pytest.mark.parametrize("far", [("rows", 5, 1), ("columns", 1, 5)])
def test_what_a_sheet_has_too_much_of_is_a_problem(tmp_path, monkeypatch, far):
    what, at_row, at_column = far
    monkeypatch.setattr(office, "_MAX_ROWS", 4)
    monkeypatch.setattr(office, "_MAX_COLUMNS", 4)
    book = openpyxl.Workbook()
    book.active["A1"] = "near"
    book.active.cell(at_row, at_column, "far")
    book.save(tmp_path / "a.xlsx")
    pages = list(office.xlsx(tmp_path / "a.xlsx"))
    assert [bool(page.problem) for page in pages] == [False, True]
    assert what in pages[1].problem


@pytest.mark.parametrize(
    ("place", "far"), [("XFD1048576", ("columns", "rows")), ("XFD1", ("columns",)), ("A1048576", ("rows",))]
)
def test_a_sheet_whose_only_cell_is_far_away_has_a_reason(text_of, tmp_path, place, far):
    book = openpyxl.Workbook()
    book.active[place] = "far"
    book.save(tmp_path / "a.xlsx")
    text, problems = text_of(tmp_path / "a.xlsx")
    assert text == ""
    (problem,) = problems
    assert tuple(part.split()[0] for part in problem.split("; ")) == far


def test_comments_and_days_of_a_workbook_are_read(text_of, tmp_path):
    book = openpyxl.Workbook()
    book.active.append(["Boat", date(2026, 3, 1), datetime(2026, 3, 1, 14, 30)])  # noqa: DTZ001 - as in a sheet
    book.active["A1"].comment = Comment("It leaks.", "Ida")
    book.save(tmp_path / "a.xlsx")
    text, problems = text_of(tmp_path / "a.xlsx")
    assert "Boat | 2026-03-01 | 2026-03-01 14:30:00" in text
    assert "A1: It leaks." in text
    assert not problems


def test_comments_of_a_word_file_are_read(text_of, tmp_path):
    comment = (
        '<w:root><w:comment w:id="1" w:author="Ida"><w:p><w:r><w:t>It leaks.</w:t></w:r></w:p></w:comment></w:root>'
    )
    body = par(run("The dory"), '<w:r><w:commentReference w:id="1"/></w:r>')
    word_file(tmp_path / "a.docx", body, comments=("comments.xml", comment))
    assert text_of(tmp_path / "a.docx") == ("The dory\n\nIt leaks.", [])


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("<details><summary>Sum</summary>det</details><textarea>area</textarea>", "Sum\n\ndet\n\narea"),
        ("<form><h1>Head</h1><p>All of it</p><select><option>no</option></select></form>", "Head\n\nAll of it"),
        ("<table><caption>Prices</caption><tr><td>one<br>two</td><td><p>a</p><p>b</p></td></tr></table>", "Prices\n\none two | a b"),
        ("<table><tr><td>a<script>no()</script></td></tr></table>", "a"),
        ("<h1>One<br>two</h1><p>x", "One two\n\nx"),
    ],
)  # fmt: skip
def test_a_page_is_read_as_it_is_shown(text_of, tmp_path, page, expected):
    (tmp_path / "a.html").write_text(f"<html><body>{page}</body></html>")
    assert text_of(tmp_path / "a.html") == (expected, [])


def test_a_book_without_a_list_of_chapters_is_a_problem(text_of, tmp_path):
    assert "list of chapters is empty" in text_of(made.epub(tmp_path / "a.epub", []))[1][0]


ODF = "urn:oasis:names:tc:opendocument:xmlns"


def odf_file(path, body, margins="", manifest=""):
    spaces = " ".join(f'xmlns:{name}="{ODF}:{name}:1.0"' for name in ("office", "text", "table", "style"))
    spaces += f' xmlns:draw="{ODF}:drawing:1.0"'
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("META-INF/manifest.xml", f"<manifest>{manifest}</manifest>")
        archive.writestr(
            "content.xml",
            f"<office:document-content {spaces}><office:body>{body}</office:body></office:document-content>",
        )
        archive.writestr("styles.xml", f"<office:document-styles {spaces}>{margins}</office:document-styles>")
    return path


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("<text:p>a <text:span>b</text:span><text:s text:c='2'/>c<text:line-break/>d<text:tab/>e</text:p>", "a b  c\nd e"),
        ("<text:h text:outline-level='2'>Head</text:h><text:p>x</text:p>", "Head\n\nx"),
        ("<text:tracked-changes><text:changed-region><text:deletion><text:p>gone</text:p></text:deletion></text:changed-region></text:tracked-changes><text:p>shown</text:p>", "shown"),
        ("<text:p>a<text:change-start/>new<text:change-end/><office:annotation><text:p>gone</text:p></office:annotation></text:p>", "anew"),
        ("<text:section><text:list><text:list-item><text:p>one</text:p></text:list-item></text:list></text:section>", "one"),
        ("<text:p>a<text:note><text:note-citation>1</text:note-citation><text:note-body><text:p>note</text:p></text:note-body></text:note></text:p>", "a\n\nnote"),
        ("<text:p>a<draw:frame><draw:text-box><text:p>boxed</text:p></draw:text-box></draw:frame></text:p>", "a\n\nboxed"),
        ("<table:table><table:table-header-rows><table:table-row><table:table-cell><text:p>h</text:p></table:table-cell></table:table-row></table:table-header-rows><table:table-row><table:table-cell><text:p>a</text:p><text:p>b</text:p></table:table-cell><table:table-cell table:number-columns-repeated='1000000'/></table:table-row></table:table>", "h\na b"),
        ("<draw:page><draw:frame><draw:text-box><text:p>slide</text:p></draw:text-box></draw:frame></draw:page>", "slide"),
    ],
)  # fmt: skip
def test_opendocument_text_is_what_libreoffice_shows(text_of, tmp_path, body, expected):
    assert text_of(odf_file(tmp_path / "a.odt", body)) == (expected, [])


def test_margins_and_encryption_of_opendocument(text_of, tmp_path):
    margins = "<style:header><text:p>Top</text:p></style:header><style:footer><text:p>7</text:p></style:footer>"
    assert text_of(odf_file(tmp_path / "a.odt", "<text:p>x</text:p>", margins)) == ("Top\n\nx", [])
    assert text_of(odf_file(tmp_path / "b.odt", "", manifest="<encryption-data/>")) == ("", ["it is encrypted"])
    (tmp_path / "c.odt").write_bytes(b"no archive")
    assert text_of(tmp_path / "c.odt")[1]


def test_an_opendocument_of_one_file_is_read(text_of, tmp_path):
    spaces = " ".join(f'xmlns:{name}="{ODF}:{name}:1.0"' for name in ("office", "text", "style"))
    (tmp_path / "a.fodt").write_text(
        f"<office:document {spaces}><office:master-styles><style:header><text:p>Top</text:p></style:header>"
        "</office:master-styles><office:body><office:text><text:h text:outline-level='1'>Head</text:h>"
        "<text:p>x</text:p></office:text></office:body></office:document>"
    )
    assert text_of(tmp_path / "a.fodt") == ("Top\nHead\n\nx", [])
    (tmp_path / "b.fods").write_text("<office:document")
    assert text_of(tmp_path / "b.fods")[1] == ["it is damaged, or not an OpenDocument file"]


def test_a_known_format_that_is_not_read_is_a_reason(text_of, tmp_path):
    (tmp_path / "a.doc").write_text("{\\rtf1 words}")
    assert text_of(tmp_path / "a.doc")[1] == [
        ".doc files are not read; save it as .docx, .pptx, .xlsx, .odt or PDF"
    ]


LEVELS = (("decimal", "%1."), ("decimal", "%1.%2"), ("lowerLetter", "(%3)"), ("upperRoman", "%4)"), ("bullet", "o"))
NUMBERING = "<w:root>{}{}</w:root>".format(
    '<w:abstractNum w:abstractNumId="7">'
    + "".join(
        f'<w:lvl w:ilvl="{depth}"><w:start w:val="{1 + 3 * (depth == 3)}"/><w:numFmt w:val="{form}"/>'
        f'<w:lvlText w:val="{text}"/></w:lvl>'
        for depth, (form, text) in enumerate(LEVELS)
    )
    + "</w:abstractNum>",
    '<w:num w:numId="1"><w:abstractNumId w:val="7"/></w:num>'
    '<w:num w:numId="2"><w:abstractNumId w:val="7"/><w:lvlOverride w:ilvl="0"><w:startOverride w:val="1"/>'
    "</w:lvlOverride></w:num>",
)


def test_automatic_numbers_of_paragraphs_are_read(text_of, tmp_path):
    """Contracts name their clauses by numbers that Word computes."""
    styles = (
        '<w:root><w:style w:styleId="Clause"><w:name w:val="heading 1"/><w:pPr><w:numPr><w:numId w:val="1"/></w:numPr>'
        '</w:pPr></w:style><w:style w:styleId="Sub"><w:basedOn w:val="Clause"/><w:pPr><w:numPr><w:ilvl w:val="1"/>'
        '</w:numPr></w:pPr></w:style><w:style w:styleId="Loop"><w:basedOn w:val="Loop"/></w:style></w:root>'
    )

    def item(text, style="", numbers=""):
        style = f'<w:pStyle w:val="{style}"/>' if style else ""
        return par(f"<w:pPr>{style}{f'<w:numPr>{numbers}</w:numPr>' if numbers else ''}</w:pPr>", run(text))

    def at(depth, number=1):
        return f'<w:ilvl w:val="{depth}"/><w:numId w:val="{number}"/>'

    body = (
        item("Rent", "Clause") + item("Amount", "Sub") + item("Due date", "Sub") + item("first", "", at(2))
        + item("second", "", at(2)) + item("deep", "", at(3)) + item("dot", "", at(4)) + item("plain", "Loop")
        + item("Term", "Clause") + item("Notice", "Sub") + item("again", "", at(2)) + item("none", "Clause", at(0, 0))
        + item("other list", "", at(0, 2)) + item("of it", "", at(0, 2)) + item("End", "Clause")
    )  # fmt: skip
    path = word_file(
        tmp_path / "a.docx", body, styles=("styles.xml", styles), numbering=("numbering.xml", NUMBERING)
    )
    text, problems = text_of(path)
    assert problems == []
    assert text.replace("\n\n", "\n").split("\n") == [
        "1. Rent", "1.1 Amount", "1.2 Due date", "(a) first", "(b) second", "IV) deep", "dot", "plain",
        "2. Term", "2.1 Notice", "(a) again", "none", "1. other list", "2. of it", "3. End",
    ]  # fmt: skip
