"""Document readers by type; splitting pages into passages."""

import re
import time

import pytest

from engine.documents import formats
from engine.documents.reader_child import MOST_CHARS, TABLE_CHARS, Cutter
from engine.documents.types import Block, Page

LONG_CHARS = 40_000_000
# One pass over it takes well under a second; copying the remainder for every chunk took minutes.
MOST_S = 20


def test_a_block_without_ends_is_cut_once_through():
    text = "whale" * (LONG_CHARS // 5)
    began = time.process_time()
    read = Cutter().cut(Page(1, (Block("text", text),), "", ""))
    assert time.process_time() - began < MOST_S
    assert "".join(chunk.text for chunk in read.chunks) == text
    assert max(len(chunk.text) for chunk in read.chunks) <= MOST_CHARS


@pytest.mark.parametrize("kind", formats._READERS)
def test_every_kind_of_file_has_its_reader(kind):
    """They are looked up by name when the first file of the type is read."""
    assert callable(formats.reader_of(kind))


LONG = " ".join(f"word{number}" for number in range(1000))


def chunks(tmp_path, name, content, kind):
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    cutter = Cutter()
    return [chunk for page in formats.reader_of(kind)(path) for chunk in cutter.cut(page).chunks]


@pytest.mark.parametrize(
    ("name", "kind", "content"),
    [
        ("cell.csv", "csv", f"name,review\nIda,short\nPer,{LONG}\n"),
        ("cell.md", "markdown", f"| a | b |\n|---|---|\n| 1 | 2 |\n| 1 | {LONG} |\n"),
        ("cell.html", "html", f"<table><tr><td>1<td>2<tr><td>1<td>{LONG}</table>"),
        ("head.html", "html", f"<table><tr><td>1<td>{LONG}</table>"),
        ("layout.html", "html", f"<table><tr><td>{LONG}</table>"),
        ("line.sql", "code", "-- rows\n" * 40 + f"insert {LONG};\n"),
        ("line.xml", "code", "<a>\n" * 40 + f"<p>{LONG}</p>\n"),
    ],
)
def test_a_long_cell_or_line_is_read_to_its_end(tmp_path, name, kind, content):
    cut = chunks(tmp_path, name, content, kind)
    assert set(re.findall(r"word\d+", " ".join(chunk.text for chunk in cut))) == set(LONG.split())
    assert max(len(chunk.text) for chunk in cut) <= MOST_CHARS + TABLE_CHARS


def test_the_parts_of_a_long_row_have_the_head(tmp_path):
    cut = chunks(tmp_path, "a.csv", f"name,review\nIda,short\nPer,{LONG}\n", "csv")
    assert len(cut) > 7
    assert all(chunk.text.startswith("name | review\n") for chunk in cut)


def test_data_in_letters_is_not_read_to_its_end(tmp_path):
    (cut, *_) = chunks(tmp_path, "a.css", "a {}\n" * 80 + f"b {{ url('data:{'A' * 20_000}') }}\n", "code")
    assert len(cut.text) < 6000


def test_text_in_tables_in_tables_is_read_once_and_not_as_a_row(tmp_path):
    page = "<h2>News</h2><p>The harbour is open.</p><table><tr><th>day<th>m<tr><td>1<td>3.2</table>"
    for _ in range(6):
        page = f"<table><tr><td>{page}</td><td></td></tr></table>"
    (cut,) = chunks(tmp_path, "letter.html", page, "html")
    assert (cut.heading, cut.text) == ("News", "News\n\nThe harbour is open.\n\nday | m\n1 | 3.2")


def test_soft_hyphens_are_not_read_and_half_characters_are_replaced(tmp_path):
    (cut,) = chunks(tmp_path, "a.html", "<p>Donau&shy;dampf \u00fcber</p>", "html")
    assert cut.text == "Donaudampf \u00fcber"
    read = Cutter().cut(Page(1, (Block("text", "a \ud83d b"),), "\ud83d", "\ud83d"))
    assert (read.chunks[0].text, read.label, read.problem) == ("a \ufffd b", "\ufffd", "\ufffd")


@pytest.mark.parametrize(
    ("name", "kind", "content", "word", "line"),
    [
        ("a.json", "code", '{"a": [1, 2, 3],\n' + ' "b": "gr\\u00fcn",\n' * 120 + ' "heron": 1}\n', "heron", 93),
        ("rows.csv", "csv", 'a,b\n\n1,"two\nlines"\n' + "2,x\n" * 10 + f"3,{'y ' * 500}\n4,heron\n", "heron", 15),
        ("stated.csv", "csv", "sep=;\na;b\n" + f"3;{'y ' * 500}\n" * 4 + "4;heron\n", "heron", 6),
        ("second.csv", "csv", "a,b\n" + "1,x\n" * 60 + f"3,{'y ' * 500}\n" + "4,heron\n", "heron", 62),
        ("page.html", "html", "<p>One.\n\n<p>Two.\n<h1>Three</h1><p>heron", "heron", 0),
        ("book.ipynb", "notebook", '{"cells": [{"cell_type": "markdown", "source": ["heron"]}]}', "heron", 0),
        ("mail.eml", "eml", "From: a@b\nSubject: x\n\nOne.\n\nheron\n", "heron", 0),
        ("one.json", "code", '{"a": "' + "b " * 600 + '", "heron": 1}', "heron", 0),
    ],
)  # fmt: skip
def test_a_passage_names_the_line_of_the_file(tmp_path, name, kind, content, word, line):
    cut = next(chunk for chunk in chunks(tmp_path, name, content, kind) if word in chunk.text)
    assert cut.line == line


def test_rows_have_the_numbers_that_a_spreadsheet_shows(tmp_path):
    import openpyxl

    (tmp_path / "a.csv").write_text("Stock\n\n\npart,count\ngasket,3\n")
    (page,) = formats.reader_of("csv")(tmp_path / "a.csv")
    assert page.label == "rows 1 to 5"
    book = openpyxl.Workbook()
    book.active.title = "Stock"
    for number in (3, 4, 8, *range(100, 170)):
        book.active.cell(number, 2, f"gasket {number}")
    book.save(tmp_path / "a.xlsx")
    pages = list(formats.reader_of("xlsx")(tmp_path / "a.xlsx"))
    assert [page.label for page in pages] == ["Stock, rows 3 to 156", "Stock, rows 157 to 169"]


def test_a_cell_that_spans_rows_is_in_each_of_them(tmp_path):
    page = (
        "<table><tr><th>year<th colspan=2>ferry<tr><td rowspan=3>2024<td>Ida<td>7<tr><td rowspan=2>Per<td>8<tr>"
        "<td>9<tr><td>2025<td>Bo<td>1</table>"
    )
    (cut,) = chunks(tmp_path, "a.html", page, "html")
    assert cut.text.split("\n")[1:] == ["2024 | Ida | 7", "2024 | Per | 8", "2024 | Per | 9", "2025 | Bo | 1"]


def test_a_formula_without_a_result_is_a_problem(tmp_path):
    import openpyxl

    book = openpyxl.Workbook()
    book.active.append(["gasket", "=1+2"])
    book.save(tmp_path / "a.xlsx")
    page, unread = formats.reader_of("xlsx")(tmp_path / "a.xlsx")
    assert page.blocks[-1].text == "gasket"
    assert "formulas whose results are not stored" in unread.problem
